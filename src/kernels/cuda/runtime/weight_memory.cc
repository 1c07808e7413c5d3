#include "kernels/cuda/runtime/weight_memory.h"

#include <utility>

#include "base/integers.h"
#include "kernels/cuda/common/memory.h"

namespace lathe::cuda {

Result<std::byte*> WeightMemory::take(std::int64_t bytes) {
  if (bytes == 0) return static_cast<std::byte*>(nullptr);
  const std::int64_t size = round_up(bytes, 256);
  if (const std::int64_t all = std::exchange(expected_, 0); all > size) {
    // If not all of it fits, the error is that of the first array that does not.
    if (const auto at = allocate(all)) at_ = *at, left_ = all;
  }
  if (left_ < size) return allocate(bytes);
  left_ -= size;
  return std::exchange(at_, at_ + size);
}

Result<std::byte*> WeightMemory::allocate(std::int64_t bytes) {
  auto memory = allocate_device_bytes(bytes);
  if (!memory) return memory.error();
  owned_.push_back(std::move(*memory));
  return owned_.back().get();
}

}  // namespace lathe::cuda
