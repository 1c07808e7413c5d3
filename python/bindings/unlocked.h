// Calls without Python's lock, and the end of the interpreter. A daemon thread that asks for the
// lock after the interpreter's end is unwound by Python, through frames of C++ that end the process
// with a signal. So end_calls(), which the package registers with atexit, waits for calls in
// progress, and later ones end their thread with SystemExit.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>

namespace lathe::python {

/// Whether end_calls() has begun. Long calls should return soon.
bool ending();

/// Ends the thread: raises SystemExit.
[[noreturn]] void end_thread();

/// Releases Python's lock for its scope, which end_calls() waits for. Errors: SystemExit if
/// ending().
class Unlocked {
 public:
  Unlocked();
  ~Unlocked();
  Unlocked(const Unlocked&) = delete;

 private:
  std::optional<nanobind::gil_scoped_release> released_;
};

}  // namespace lathe::python
