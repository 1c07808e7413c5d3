// The parts of the extension module, one file each. The Python files of lathe/ check scalars and
// give defaults; everything here takes complete arguments.
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
void bind_engine(nanobind::module_& m);
void bind_command(nanobind::module_& m);

}  // namespace lathe::python
