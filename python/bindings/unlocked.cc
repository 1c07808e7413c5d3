#include "unlocked.h"

#include <pthread.h>

#include <atomic>

#include "bindings.h"

namespace nb = nanobind;

namespace lathe::python {
namespace {

std::atomic<bool> ended = false;
std::atomic<int> in_progress = 0;

void end_calls() {
  ended = true;
  const nb::gil_scoped_release unlocked;
  for (int calls = in_progress; calls > 0; calls = in_progress) in_progress.wait(calls);
}

}  // namespace

bool ending() { return ended; }

void end_thread() {
  PyErr_SetString(PyExc_SystemExit, "lathe: the interpreter ends");
  throw nb::python_error();
}

// The count changes while this thread holds Python's lock, so none begins after end_calls() has
// looked, and one that has ended is back in Python.
Unlocked::Unlocked() {
  if (ended) end_thread();
  ++in_progress;
  released_.emplace();
}

Unlocked::~Unlocked() {
  released_.reset();
  --in_progress;
  in_progress.notify_all();
}

void bind_unlocked(nb::module_& m) {
  // The calls of other threads do not go on in a forked process.
  pthread_atfork(nullptr, nullptr, [] { in_progress = 0; });
  m.def("end_calls", &end_calls);
}

}  // namespace lathe::python
