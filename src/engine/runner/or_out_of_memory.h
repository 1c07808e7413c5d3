// or_out_of_memory(): for the parts of a step that ranks have to agree on.
#pragma once

#include <utility>

#include "base/memory.h"

namespace lathe {

/// Returns body(), a Result<void>, or an error if it throws OutOfMemory.
template <class Body>
Result<void> or_out_of_memory(Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const OutOfMemory& e) {
    return Error{ErrorCode::exhausted, "host memory", "enough for a step", e.what(), ""};
  }
}

}  // namespace lathe
