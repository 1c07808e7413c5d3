// The parts of the extension module, one file each. The Python files of lathe/ check scalars and
// add defaults, so all arguments here are complete.
#pragma once

#include <nanobind/nanobind.h>

namespace lathe::python {

void bind_layout(nanobind::module_& m);
void bind_codec(nanobind::module_& m);
void bind_plan(nanobind::module_& m);
void bind_attend(nanobind::module_& m);
void bind_attend_cuda(nanobind::module_& m);
void bind_attend_repeat(nanobind::module_& m);
void bind_attend_workspace(nanobind::module_& m);
void bind_merge(nanobind::module_& m);
void bind_engine(nanobind::module_& m);
void bind_unlocked(nanobind::module_& m);
void bind_command(nanobind::module_& m);

}  // namespace lathe::python
