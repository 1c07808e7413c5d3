// Makes random weights on the device, for models without a checkpoint.
#pragma once

#include "base/result.h"
#include "kernels/cuda/common/stream.h"
#include "kernels/cuda/runtime/upload_ring.h"
#include "kernels/cuda/runtime/weight_memory.h"
#include "kernels/linear.h"
#include "kernels/random_weights.h"

namespace lathe::cuda {

/// In memory as upload_weights() would put them. Errors: out of memory.
Result<WeightStack> random_weights(const RandomWeights& weights, UploadRing& ring,
                                   const Stream& stream, WeightMemory& memory);

}  // namespace lathe::cuda
