// Staging: copies the lists of a step to the device. They are put side by side in pinned memory,
// and one copy brings all of them. The same lists in the same order get the same addresses in every
// step, which is what captured graphs need. Pinned memory has two halves, so that the lists of the
// next step can be put together while the device reads those of one; on the device the stream's
// order keeps them apart.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/memory.h"
#include "base/result.h"

namespace lathe::cuda {

class Staging {
 public:
  /// The same bytes on the host and on the device.
  struct Place {
    std::byte* pinned = nullptr;
    std::byte* device = nullptr;
  };
  /// Room for bytes that the caller writes before flush(), at a multiple of 256; null for none.
  /// Errors: no memory for more of them.
  Result<Place> take(std::int64_t bytes);
  /// Where a copy of `host` will lie on the device, at a multiple of 256; null where `host` is
  /// empty. Errors: as take().
  Result<std::byte*> add(std::span<const std::byte> host);
  template <class T>
  Result<std::span<const T>> add_list(std::span<const T> host) {
    auto at = add(std::as_bytes(host));
    if (!at) return at.error();
    return std::span<const T>(reinterpret_cast<const T*>(*at), host.size());
  }
  /// Makes room for so many bytes at once. Errors: no memory.
  Result<void> reserve(std::int64_t bytes);
  /// Puts the copy of what was added since the last one on the stream.
  Result<void> flush(cudaStream_t stream);
  /// Starts over, once the device has read all of it.
  void reset();
  /// Starts over in the other half, once the device has read all of that.
  void turn();
  /// Bytes on the device.
  std::int64_t bytes() const;

 private:
  struct Block {
    OwnedBytes pinned;  // [2, size]
    OwnedBytes device;  // [size]
    std::int64_t size = 0;
    std::int64_t used = 0, copied = 0;
  };
  std::vector<Block> blocks_;
  std::size_t block_ = 0;  // the one that add() fills
  std::int64_t half_ = 0;
};

}  // namespace lathe::cuda
