// Launches the kernels of hyper-connections.
#include "kernels/cuda/sm90/hyper/add_slices.cuh"

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/norm_after_launch.cuh"
#include "kernels/cuda/sm90/hyper/hyper.cuh"

namespace lathe::cuda {

cudaError_t launch_hyper_mix(const HyperMixParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  if (p.norm.h.data != nullptr) {
    return launch_norm_after<1>(hyper_mix_kernel<true>, p.rows, stream, p);
  }
  return launch_kernel(hyper_mix_kernel<false>,
                       {.grid = static_cast<unsigned>(p.rows), .block = kMixThreads, .early = true},
                       stream, p);
}

cudaError_t launch_hyper_add(const HyperAddParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(p.rows), blocks_for(p.n, kHyperWord * kHyperAddThreads));
  return launch_kernel(hyper_add_kernel, {.grid = grid, .block = kHyperAddThreads, .early = true},
                       stream, p);
}

cudaError_t launch_hyper_add_slices(const HyperAddParams& add, const NarrowGemm& product,
                                    cudaStream_t stream) {
  if (add.rows == 0) return cudaSuccess;
  const LaunchShape shape{.grid = static_cast<unsigned>(narrow_slices(product)),
                          .block = kSliceThreads,
                          .cluster = kHyperStreams,
                          .early = true};
  const auto kernel = add.rows <= 4   ? hyper_add_slices_kernel<1>
                      : add.rows <= 8 ? hyper_add_slices_kernel<2>
                                      : hyper_add_slices_kernel<4>;
  return launch_kernel(kernel, shape, stream, add, product);
}

}  // namespace lathe::cuda
