#include "kernels/cuda/runtime/staging.h"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/common/memory.h"

namespace lathe::cuda {

Result<std::byte*> Staging::add(std::span<const std::byte> host) {
  if (host.empty()) return static_cast<std::byte*>(nullptr);
  const auto place = take(std::ssize(host));
  if (!place) return place.error();
  std::memcpy(place->pinned, host.data(), host.size());
  return place->device;
}

Result<Staging::Place> Staging::take(std::int64_t wanted) {
  constexpr std::int64_t kLeast = std::int64_t{1} << 20;
  constexpr std::int64_t kAlignment = 256;
  if (wanted == 0) return Place();
  const std::int64_t bytes = (wanted + kAlignment - 1) / kAlignment * kAlignment;
  while (block_ < blocks_.size() && blocks_[block_].used + bytes > blocks_[block_].size) ++block_;
  if (block_ == blocks_.size()) {
    const std::int64_t size = std::max({kLeast, bytes, this->bytes()});
    if (auto ok = reserve(size); !ok) return ok.error();
  }
  Block& b = blocks_[block_];
  const Place place{b.pinned.get() + half_ * b.size + b.used, b.device.get() + b.used};
  b.used += bytes;
  return place;
}

Result<void> Staging::reserve(std::int64_t bytes) {
  auto pinned = allocate_pinned_bytes(2 * bytes);
  if (!pinned) return pinned.error();
  auto device = allocate_device_bytes(bytes);
  if (!device) return device.error();
  blocks_.push_back({std::move(*pinned), std::move(*device), bytes});
  return {};
}

Result<void> Staging::flush(cudaStream_t stream) {
  for (std::size_t i = 0; i <= block_ && i < blocks_.size(); ++i) {
    Block& b = blocks_[i];
    if (b.copied == b.used) continue;
    const std::span<const std::byte> news(b.pinned.get() + half_ * b.size + b.copied,
                                          static_cast<std::size_t>(b.used - b.copied));
    if (auto ok = copy_to_device(news, b.device.get() + b.copied, stream); !ok) return ok;
    b.copied = b.used;
  }
  return {};
}

void Staging::reset() {
  for (Block& b : blocks_) b.used = b.copied = 0;
  block_ = 0;
}

void Staging::turn() {
  reset();
  half_ = 1 - half_;
}

std::int64_t Staging::bytes() const {
  std::int64_t sum = 0;
  for (const Block& b : blocks_) sum += b.size;
  return sum;
}

}  // namespace lathe::cuda
