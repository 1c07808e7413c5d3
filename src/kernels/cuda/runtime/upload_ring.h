// UploadRing: copies pageable memory, or files, to the device at the rate of the host's threads.
// Each thread fills its own two pinned slots in turn, and the device reads a slot while the thread
// fills the other, so no thread waits for another one. The slots are small enough to stay in a
// core's caches: what a thread writes, the device reads without a way through memory. A plain
// cudaMemcpy of pageable memory runs on one thread of the driver, which is slower.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/memory.h"
#include "base/result.h"
#include "base/threads.h"
#include "kernels/cuda/common/stream.h"
#include "kernels/weight_source.h"

namespace lathe::cuda {

/// Bytes on the host and their destination on the device.
struct HostPiece {
  std::span<const std::byte> from;
  std::byte* to = nullptr;
};

class UploadRing {
 public:
  /// For the calling thread's device. source: copies the pieces; null: they are read at their
  /// addresses. Errors: the pinned memory cannot be allocated.
  static Result<std::unique_ptr<UploadRing>> make(const WeightSource* source = nullptr);
  /// Without a source, returns once all pieces have been read. With one, pieces of several calls
  /// are read together, so that all threads have work: until flush(), they must stay, and `stream`
  /// does not have their copies. Errors: the source's.
  Result<void> copy(std::span<const HostPiece> pieces, const Stream& stream);
  /// Returns once all pieces have been read and their copies are on `stream`.
  Result<void> flush(const Stream& stream);

 private:
  struct Slot {
    std::byte* memory;  // [kPartBytes]
    Mark read;          // set when the device has read it
  };
  struct alignas(64) Worker {
    std::vector<Slot> slots;  // [2]
    std::size_t next = 0;
    bool has_device = false;  // the thread uses the ring's device
  };
  UploadRing(int workers, OwnedBytes memory, const WeightSource* source)
      : source_(source), pool_(workers), memory_(std::move(memory)) {}
  Result<void> send(const HostPiece& part, Worker& worker, const Stream& stream);

  const WeightSource* source_;  // or null
  int device_ = 0;
  ThreadPool pool_;
  OwnedBytes memory_;  // of all slots, pinned
  std::vector<Worker> workers_;
  std::vector<HostPiece> parts_;  // that have not been read
  std::size_t bytes_ = 0;         // of parts_
};

}  // namespace lathe::cuda
