// The launches of the codec kernels. It includes little, as nvcc reads it.
#pragma once

#include <cuda_runtime_api.h>

#include "base/dtype.h"
#include "kernels/cuda/sm90/codec/codec_params.h"

namespace lathe::cuda {

constexpr unsigned grid_of(std::int64_t rows, std::int32_t rows_of_block) {
  return static_cast<unsigned>((rows + rows_of_block - 1) / rows_of_block);
}

// Each puts one kernel on the stream; counts are not 0. `dtype` and `in`: of the rows.
cudaError_t launch_encode(const EncodeParams& p, DType dtype, bool rope, cudaStream_t stream);
cudaError_t launch_decode(const DecodeParams& p, DType dtype, cudaStream_t stream);
cudaError_t launch_requantize(const RequantParams& p, bool to_block, cudaStream_t stream);
cudaError_t launch_move(const MoveParams& p, cudaStream_t stream);
cudaError_t launch_rotate(const RotateParams& p, DType in, DType out, cudaStream_t stream);

}  // namespace lathe::cuda
