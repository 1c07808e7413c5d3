// Launches the compressor kernels.
#include "kernels/cuda/sm90/compress/compress.cuh"

#include "kernels/cuda/common/launch.h"

namespace lathe::cuda {

cudaError_t launch_compress(const CompressParams& p, std::int32_t halves, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  const bool wide = p.dim > kCompressThreads;
  const auto kernel = halves == 2 ? (wide ? compress_kernel<2, 2> : compress_kernel<2, 1>)
                                  : (wide ? compress_kernel<1, 2> : compress_kernel<1, 1>);
  return launch_kernel(
      kernel, {.grid = static_cast<unsigned>(p.rows), .block = kCompressThreads, .early = true},
      stream, p);
}

}  // namespace lathe::cuda
