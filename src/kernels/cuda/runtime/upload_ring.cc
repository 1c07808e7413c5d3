#include "kernels/cuda/runtime/upload_ring.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>

#include "kernels/cuda/common/memory.h"

namespace lathe::cuda {
namespace {

constexpr std::size_t kHalfBytes = std::size_t{64} << 20;
// Of one thread's task. An array of 32 MiB should still keep 16 threads busy.
constexpr std::size_t kPartBytes = std::size_t{1} << 20;
constexpr int kMostWorkers = 16;  // one copies 2 to 3 GB/s next to others; the bus has 55

}  // namespace

// Half of the processors: each rank has a ring.
Result<std::unique_ptr<UploadRing>> UploadRing::make(const WeightSource* source) {
  const int workers =
      std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 2, kMostWorkers);
  auto memory = allocate_pinned_bytes(2 * kHalfBytes);
  if (!memory) return memory.error();
  std::unique_ptr<UploadRing> ring(new UploadRing(workers, std::move(*memory), source));
  for (int half = 0; half < 2; ++half) {
    auto mark = Mark::make();
    if (!mark) return mark.error();
    ring->read_.push_back(std::move(*mark));
  }
  return ring;
}

Result<void> UploadRing::copy(std::span<const HostPiece> pieces, const Stream& stream) {
  for (const HostPiece& p : pieces) {
    for (std::size_t at = 0; at < p.from.size();) {
      if (filled_ == kHalfBytes) {
        if (auto ok = send(stream); !ok) return ok;
      }
      const std::size_t bytes = std::min({kPartBytes, p.from.size() - at, kHalfBytes - filled_});
      parts_.push_back({p.from.subspan(at, bytes), p.to + at});
      filled_ += bytes;
      at += bytes;
    }
  }
  return send(stream);
}

// Waits until the device has read this half's previous contents; a mark that was never set is no
// wait.
Result<void> UploadRing::send(const Stream& stream) {
  const std::vector<HostPiece> parts = std::exchange(parts_, {});
  if (std::exchange(filled_, 0) == 0) return {};
  Mark& read = read_[half_];
  std::byte* const pinned = memory_.get() + half_ * kHalfBytes;
  half_ = 1 - half_;
  if (auto ok = read.wait(); !ok) return ok;
  std::vector<std::byte*> places;
  for (std::byte* at = pinned; const HostPiece& p : parts) {
    places.push_back(at);
    at += p.from.size();
  }
  std::vector<std::optional<Error>> failures(parts.size());
  pool_.run(std::ssize(parts), [&](std::int64_t task, int) {
    const auto i = static_cast<std::size_t>(task);
    const std::span<const std::byte> from = parts[i].from;
    if (source_ == nullptr) {
      std::memcpy(places[i], from.data(), from.size());
    } else if (auto ok = source_->copy(from.data(), {places[i], from.size()}); !ok) {
      failures[i] = ok.error();
    }
  });
  for (const std::optional<Error>& failure : failures) {
    if (failure) return *failure;
  }
  // One transfer for neighbouring parts that are adjacent on the device as well.
  for (std::size_t i = 0, next; i < parts.size(); i = next) {
    std::size_t bytes = parts[i].from.size();
    for (next = i + 1; next < parts.size() && parts[next].to == parts[i].to + bytes; ++next) {
      bytes += parts[next].from.size();
    }
    if (auto ok = copy_to_device(std::span<const std::byte>(places[i], bytes), parts[i].to, stream);
        !ok) {
      return ok;
    }
  }
  return read.set(stream);
}

}  // namespace lathe::cuda
