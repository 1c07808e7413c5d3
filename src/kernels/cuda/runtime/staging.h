// Staging: copies a step's lists to the device in one transfer. Lists are collected in pinned
// memory one after the other. The same lists in the same order get the same addresses in every
// step, which captured graphs rely on. Pinned memory has two halves, so that the host can fill in
// the next step's lists while the device still reads the current ones; on the device the stream's
// order keeps the steps apart.
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
  /// The same list on the host and on the device.
  struct Place {
    std::byte* pinned = nullptr;
    std::byte* device = nullptr;
  };
  /// Space for `bytes` that the caller fills in before flush(), aligned to 256; null for 0 bytes.
  /// Errors: out of memory.
  Result<Place> take(std::int64_t bytes);
  /// Address that `host` will have on the device, aligned to 256; null if `host` is empty. Errors:
  /// as take().
  Result<std::byte*> add(std::span<const std::byte> host);
  template <class T>
  Result<std::span<const T>> add_list(std::span<const T> host) {
    auto at = add(std::as_bytes(host));
    if (!at) return at.error();
    return std::span<const T>(reinterpret_cast<const T*>(*at), host.size());
  }
  /// Allocates `bytes` in advance. Errors: out of memory.
  Result<void> reserve(std::int64_t bytes);
  /// Starts the copy of everything added since the last flush.
  Result<void> flush(cudaStream_t stream);
  /// Starts over in the same half. Precondition: the device has read it.
  void reset();
  /// Starts over in the other half. Precondition: the device has read that half.
  void turn();
  /// Bytes allocated on the device.
  std::int64_t bytes() const;

 private:
  struct Block {
    OwnedBytes pinned;  // [2, size]
    OwnedBytes device;  // [size]
    std::int64_t size = 0;
    std::int64_t used = 0, copied = 0;
  };
  std::vector<Block> blocks_;
  std::size_t block_ = 0;  // the block that add() fills
  std::int64_t half_ = 0;
};

}  // namespace lathe::cuda
