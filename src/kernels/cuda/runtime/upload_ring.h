// Copies to the device at the rate of the bus, from memory that is not pinned: threads copy it into
// one half of a pinned buffer while the device reads the other. A plain copy of such memory goes
// through one thread of the driver.
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

namespace lathe::cuda {

/// Bytes of the host to bytes of the device.
struct HostPiece {
  std::span<const std::byte> from;
  std::byte* to = nullptr;
};

class UploadRing {
 public:
  /// Errors: no memory to pin.
  static Result<std::unique_ptr<UploadRing>> make();
  /// What the pieces hold has been read when the call returns; the stream brings it.
  Result<void> copy(std::span<const HostPiece> pieces, const Stream& stream);

 private:
  UploadRing(int workers, OwnedBytes memory) : pool_(workers), memory_(std::move(memory)) {}
  Result<void> send(const Stream& stream);

  ThreadPool pool_;
  OwnedBytes memory_;             // two halves
  std::vector<Mark> read_;        // [halves] by the device
  std::size_t half_ = 0;          // to be filled
  std::vector<HostPiece> parts_;  // that fill it, one after the other
  std::size_t filled_ = 0;        // bytes of parts_
};

}  // namespace lathe::cuda
