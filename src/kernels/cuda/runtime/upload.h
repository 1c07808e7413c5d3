// Copies weights to the device when a model is loaded.
#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"
#include "kernels/cuda/common/stream.h"
#include "kernels/cuda/runtime/upload_ring.h"
#include "kernels/cuda/runtime/weight_memory.h"
#include "kernels/linear.h"

namespace lathe::cuda {

/// Copies `host` to device memory from `memory`; null if `host` is empty. The copy is asynchronous
/// on `stream`. `host` must stay until the call returns, or, if the ring has a source, until its
/// flush().
Result<std::byte*> upload_bytes(std::span<const std::byte> host, UploadRing& ring,
                                const Stream& stream, WeightMemory& memory);
Result<WeightView> upload_weight(const WeightView& weight, UploadRing& ring, const Stream& stream,
                                 WeightMemory& memory);
/// Puts the matrices one after the other; elements and each kind of scales have an array. u4 and
/// NVFP4 are stored as sm90/matmul/pack/packed_weights.h says.
Result<WeightStack> upload_weights(const WeightStack& weights, UploadRing& ring,
                                   const Stream& stream, WeightMemory& memory);

}  // namespace lathe::cuda
