// Declares the launches of the codec kernels. Includes little, to keep nvcc fast.
#pragma once

#include <cuda_runtime_api.h>

#include "base/dtype.h"
#include "kernels/cuda/sm90/codec/codec_params.h"

namespace lathe::cuda {

/// Blocks for p.count rows.
template <class Params>
constexpr unsigned blocks_of(const Params& p) {
  return static_cast<unsigned>((p.count + p.block_rows - 1) / p.block_rows);
}

// Each launches one kernel; launch_order() clears the totals and launches two. p.count must not be
// 0. `dtype`: of the rows.
cudaError_t launch_order(const OrderParams& p, cudaStream_t stream);
cudaError_t launch_encode(const EncodeParams& p, DType dtype, bool rope, cudaStream_t stream);
cudaError_t launch_decode(const DecodeParams& p, DType dtype, cudaStream_t stream);
cudaError_t launch_requantize(const RequantParams& p, bool to_block, cudaStream_t stream);
cudaError_t launch_move(const MoveParams& p, cudaStream_t stream);

}  // namespace lathe::cuda
