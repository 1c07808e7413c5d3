// Launches kernels that norm their rows (norm_after.cuh).
#pragma once

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/norm_after.cuh"

namespace lathe::cuda {

/// kBlocks blocks a row, as one cluster.
template <int kBlocks, class Params>
cudaError_t launch_norm_after(void (*kernel)(Params), std::int64_t rows, cudaStream_t stream,
                              const std::type_identity_t<Params>& params) {
  return launch_kernel(kernel,
                       {.grid = static_cast<unsigned>(kBlocks * rows),
                        .block = kNormAfterThreads<kBlocks>,
                        .shared_bytes = sizeof(NormAfterShared<kBlocks>),
                        .cluster = kBlocks,
                        .early = true},
                       stream, params);
}

}  // namespace lathe::cuda
