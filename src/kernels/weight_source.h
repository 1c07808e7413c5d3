// WeightSource: copies weights from a checkpoint while a backend uploads them.
#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"

namespace lathe {

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// Copies the bytes of a weight that begin at `from`, an address inside an array that was given
  /// to Backend::prepare(). The address itself may be unreadable. Thread-safe. Errors: io.
  virtual Result<void> copy(const std::byte* from, std::span<std::byte> to) const = 0;
};

}  // namespace lathe
