#include "bindings.h"

NB_MODULE(_lathe, m) {
  m.doc() = "What lathe/*.py stands on; its arguments may change, use the package's own names.";
  lathe::python::bind_layout(m);
  lathe::python::bind_codec(m);
  lathe::python::bind_plan(m);
  lathe::python::bind_attend(m);
  lathe::python::bind_attend_repeat(m);
  lathe::python::bind_attend_cuda(m);
  lathe::python::bind_attend_workspace(m);
  lathe::python::bind_merge(m);
  lathe::python::bind_engine(m);
  lathe::python::bind_unlocked(m);
  lathe::python::bind_command(m);
}
