// Launches an instance of the grouped GEMM for few tokens.
#pragma once

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/matmul/few/few_kernel.cuh"
#include "kernels/cuda/sm90/matmul/few/few_kernels.h"

namespace lathe::cuda {

template <class T>
cudaError_t launch_few_tile(const FewParams& f, int sms, cudaStream_t stream) {
  constexpr auto kernel = few_kernel<T>;
  if (const cudaError_t status = allow_shared<kernel>(kFewShared); status != cudaSuccess) {
    return status;
  }
  return launch_kernel(kernel,
                       {.grid = static_cast<unsigned>(sms),
                        .block = T::kThreads,
                        .shared_bytes = kFewShared,
                        .early = true},
                       stream, f);
}

template <class Row>
cudaError_t launch_few_rows(const FewParams& f, int sms, cudaStream_t stream) {
  if constexpr (Row::kHasZeros) {
    return launch_few_tile<FewTile<Row, kFewZeroWarps>>(f, sms, stream);
  } else if (f.warps == kFewWarps) {
    return launch_few_tile<FewTile<Row, kFewWarps>>(f, sms, stream);
  } else {
    return launch_few_tile<FewTile<Row, kFewLongWarps>>(f, sms, stream);
  }
}

}  // namespace lathe::cuda
