#include "base/arena.h"

#include <algorithm>
#include <new>
#include <utility>

namespace lathe {

std::byte* Arena::take(std::int64_t bytes) {
  LATHE_CHECK(bytes >= 0, "Arena::take of a negative size");
  constexpr std::int64_t kLeastBlock = std::int64_t{1} << 20;
  const std::int64_t size = (bytes + 63) / 64 * 64;
  while (block_ < blocks_.size() && used_ + size > blocks_[block_].size) {
    ++block_;
    used_ = 0;
  }
  if (block_ == blocks_.size()) {
    // Double the capacity: a step of any size then needs few blocks, and the last is most of it.
    const std::int64_t grown = std::max({kLeastBlock, size, capacity()});
    auto block = memory_.allocate(grown);
    if (!block) throw OutOfMemory(block.error());
    blocks_.push_back({std::move(block).value(), grown});
    used_ = 0;
  }
  std::byte* at = blocks_[block_].bytes.get() + used_;
  used_ += size;
  taken_ += size;
  high_water_ = std::max(high_water_, taken_);
  return at;
}

std::int64_t Arena::capacity() const {
  std::int64_t sum = 0;
  for (const Block& b : blocks_) sum += b.size;
  return sum;
}

}  // namespace lathe
