// Launches the compressor kernels.
#include "kernels/cuda/sm90/compress/compress.cuh"

#include "kernels/cuda/common/launch.h"

namespace lathe::cuda {

cudaError_t launch_compress(const CompressParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  const bool wide = p.dim > kCompressThreads;
  const auto kernel = p.halves == 2 ? (wide ? compress_kernel<2, 2> : compress_kernel<2, 1>)
                                    : (wide ? compress_kernel<1, 2> : compress_kernel<1, 1>);
  return launch_kernel(
      kernel, {.grid = static_cast<unsigned>(p.rows), .block = kCompressThreads, .early = true},
      stream, p);
}

bool compress_pairs(const CompressParams& entries, const CompressParams& keys) {
  return entries.rows == keys.rows && entries.halves == 2 && keys.halves == 2 &&
         entries.dim > kCompressThreads && keys.dim <= kCompressThreads;
}

cudaError_t launch_compress_pair(const CompressParams& entries, const CompressParams& keys,
                                 cudaStream_t stream) {
  if (entries.rows == 0) return cudaSuccess;
  return launch_kernel(compress_pair_kernel,
                       {.grid = dim3(static_cast<unsigned>(entries.rows), 2),
                        .block = kCompressThreads,
                        .early = true},
                       stream, entries, keys);
}

}  // namespace lathe::cuda
