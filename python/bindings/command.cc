// The lathe command inside the package.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <csignal>
#include <string>
#include <vector>

#include "bindings.h"
#ifdef LATHE_HAS_COMMAND
#include "tools/run_command.h"
#endif

namespace nb = nanobind;

namespace lathe::python {

#ifdef LATHE_HAS_COMMAND

namespace {

int command(std::vector<std::string> words) {
  // A program's defaults: Python defers Ctrl-C and ignores closed pipes.
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGPIPE, SIG_DFL);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const nb::gil_scoped_release unlocked;
  return run_command(static_cast<int>(words.size()), argv.data());
}

}  // namespace

void bind_command(nb::module_& m) { m.def("command", &command, nb::arg("words")); }

#else

void bind_command(nb::module_&) {}

#endif

}  // namespace lathe::python
