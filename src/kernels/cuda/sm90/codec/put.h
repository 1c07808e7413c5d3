// Launches one codec kernel on a stream with the grid that its parameters give.
#pragma once

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/codec/codec_kernels.h"

namespace lathe::cuda {

template <class Params>
cudaError_t put(void (*kernel)(Params), const Params& p, cudaStream_t stream,
                std::int32_t shared = 0, bool early = false) {
  return launch_kernel(kernel,
                       {.grid = blocks_of(p),
                        .block = static_cast<unsigned>(p.threads),
                        .shared_bytes = shared,
                        .early = early},
                       stream, p);
}

}  // namespace lathe::cuda
