// WeightMemory: device memory for a model's weights, many arrays in one allocation.
//
// The driver hands out whole pages of 2 MiB and needs 0.2 to 0.5 ms for a call, more with peer
// access: 707 arrays of Qwen3-32B took 0.34 s, and the ends of gpt-oss-120b's pages 270 MiB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/memory.h"
#include "base/result.h"

namespace lathe::cuda {

class WeightMemory {
 public:
  /// Allocations are appended to `owned`. expected: how many bytes take() will be asked for, with
  /// each size rounded up to 256. What exceeds them is allocated by itself.
  explicit WeightMemory(std::vector<OwnedBytes>& owned, std::int64_t expected = 0)
      : owned_(owned), expected_(expected) {}

  /// Bytes on the calling thread's device, aligned to 256, contents unspecified; null: none.
  /// Errors: as allocate_device_bytes().
  Result<std::byte*> take(std::int64_t bytes);

  const std::vector<OwnedBytes>* owner() const { return &owned_; }

 private:
  Result<std::byte*> allocate(std::int64_t bytes);

  std::vector<OwnedBytes>& owned_;
  std::int64_t expected_;  // 0 once it has been allocated
  std::byte* at_ = nullptr;
  std::int64_t left_ = 0;  // bytes from at_ on
};

}  // namespace lathe::cuda
