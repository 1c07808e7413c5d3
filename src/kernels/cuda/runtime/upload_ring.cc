#include "kernels/cuda/runtime/upload_ring.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>

#include "kernels/cuda/common/memory.h"

namespace lathe::cuda {
namespace {

// Of a slot, and of one thread's task. The bus moves it in 20 us, and a transfer costs 2 us.
constexpr std::size_t kPartBytes = std::size_t{1} << 20;
// Read together. At the end of them some threads wait for the last ones.
constexpr std::size_t kMostPending = std::size_t{512} << 20;
constexpr int kMostWorkers = 16;  // one copies 2 to 3 GB/s next to others; the bus has 55

}  // namespace

// Half of the processors: each rank has a ring.
Result<std::unique_ptr<UploadRing>> UploadRing::make(const WeightSource* source) {
  const int workers =
      std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 2, kMostWorkers);
  auto memory = allocate_pinned_bytes(static_cast<std::int64_t>(workers * 2 * kPartBytes));
  if (!memory) return memory.error();
  std::byte* at = memory->get();
  std::unique_ptr<UploadRing> ring(new UploadRing(workers, std::move(*memory), source));
  if (auto ok = call_result(cudaGetDevice(&ring->device_), "cudaGetDevice"); !ok) return ok.error();
  ring->workers_.resize(static_cast<std::size_t>(workers));
  for (Worker& worker : ring->workers_) {
    for (int i = 0; i < 2; ++i, at += kPartBytes) {
      auto mark = Mark::make();
      if (!mark) return mark.error();
      worker.slots.push_back({at, std::move(*mark)});
    }
  }
  return ring;
}

Result<void> UploadRing::copy(std::span<const HostPiece> pieces, const Stream& stream) {
  for (const HostPiece& p : pieces) {
    for (std::size_t at = 0; at < p.from.size(); at += kPartBytes) {
      const std::size_t bytes = std::min(kPartBytes, p.from.size() - at);
      parts_.push_back({p.from.subspan(at, bytes), p.to + at});
      bytes_ += bytes;
      if (bytes_ < kMostPending) continue;
      if (auto ok = flush(stream); !ok) return ok;
    }
  }
  return source_ == nullptr ? flush(stream) : Result<void>();
}

Result<void> UploadRing::flush(const Stream& stream) {
  const std::vector<HostPiece> parts = std::exchange(parts_, {});
  bytes_ = 0;
  std::vector<std::optional<Error>> failures(parts.size());
  pool_.run(std::ssize(parts), [&](std::int64_t task, int worker) {
    const auto i = static_cast<std::size_t>(task);
    if (auto ok = send(parts[i], workers_[static_cast<std::size_t>(worker)], stream); !ok) {
      failures[i] = ok.error();
    }
  });
  for (const std::optional<Error>& failure : failures) {
    if (failure) return *failure;
  }
  return {};
}

// On the worker's thread. A mark that was never set is no wait.
Result<void> UploadRing::send(const HostPiece& part, Worker& worker, const Stream& stream) {
  if (!worker.has_device) {
    if (auto ok = call_result(cudaSetDevice(device_), "cudaSetDevice"); !ok) return ok;
    worker.has_device = true;
  }
  Slot& slot = worker.slots[worker.next];
  worker.next = 1 - worker.next;
  if (auto ok = slot.read.wait(); !ok) return ok;
  const std::span<std::byte> pinned(slot.memory, part.from.size());
  if (source_ == nullptr) {
    std::memcpy(pinned.data(), part.from.data(), pinned.size());
  } else if (auto ok = source_->copy(part.from.data(), pinned); !ok) {
    return ok;
  }
  if (auto ok = copy_to_device(std::span<const std::byte>(pinned), part.to, stream); !ok) return ok;
  return slot.read.set(stream);
}

}  // namespace lathe::cuda
