// Tells a process from its forks.
#pragma once

#include <unistd.h>

#include "base/result.h"

namespace lathe {

/// The process that made an object with threads. A fork has none of them, so it must neither wait
/// for them nor join them.
class MakersProcess {
 public:
  bool is_this() const { return getpid() == id_; }
  /// Errors: this process is a fork of it.
  Result<void> check() const {
    if (is_this()) return {};
    return Error{ErrorCode::unsupported, "engine", "the process that made it", "a fork of it",
                 "make the engine after the fork"};
  }

 private:
  pid_t id_ = getpid();
};

}  // namespace lathe
