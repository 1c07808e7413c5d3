// UploadRing: copies pageable memory to the device at the rate of the bus. Threads copy into one
// half of a pinned buffer while the device reads the other half. A plain cudaMemcpy of pageable
// memory runs on one thread of the driver, which is slower.
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
  /// source: copies the pieces; null: they are read at their addresses. Errors: the pinned buffer
  /// cannot be allocated.
  static Result<std::unique_ptr<UploadRing>> make(const WeightSource* source = nullptr);
  /// Returns once all pieces have been read; the copies to the device are asynchronous on `stream`.
  /// Errors: the source's.
  Result<void> copy(std::span<const HostPiece> pieces, const Stream& stream);

 private:
  UploadRing(int workers, OwnedBytes memory, const WeightSource* source)
      : source_(source), pool_(workers), memory_(std::move(memory)) {}
  Result<void> send(const Stream& stream);

  const WeightSource* source_;  // or null
  ThreadPool pool_;
  OwnedBytes memory_;             // [2, kHalfBytes] pinned
  std::vector<Mark> read_;        // [2] set when the device has read a half
  std::size_t half_ = 0;          // the half to fill next
  std::vector<HostPiece> parts_;  // pieces of this half, in order
  std::size_t filled_ = 0;        // bytes of parts_
};

}  // namespace lathe::cuda
