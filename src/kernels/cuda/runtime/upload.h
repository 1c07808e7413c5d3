// Copies weights to the device, once, when a model is loaded.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/memory.h"
#include "base/result.h"
#include "kernels/cuda/common/stream.h"
#include "kernels/cuda/runtime/upload_ring.h"
#include "kernels/linear.h"

namespace lathe::cuda {

/// A copy of host bytes in device memory that goes to the end of `owned`; null for none. The stream
/// brings it; the host's bytes have been read when the call returns.
Result<std::byte*> upload_bytes(std::span<const std::byte> host, UploadRing& ring,
                                const Stream& stream, std::vector<OwnedBytes>& owned);
Result<WeightView> upload_weight(const WeightView& weight, UploadRing& ring, const Stream& stream,
                                 std::vector<OwnedBytes>& owned);
/// One after the other, each part of all weights in an array of its own.
Result<WeightStack> upload_weights(const WeightStack& weights, UploadRing& ring,
                                   const Stream& stream, std::vector<OwnedBytes>& owned);

}  // namespace lathe::cuda
