#include "kernels/cuda/sm90/latent/combine/combine.cuh"

#include "kernels/cuda/common/early_launch.h"
#include "kernels/cuda/sm90/latent/latent_kernels.h"

namespace lathe::cuda {
namespace {

template <PartOrder kOrder, int kSlices>
cudaError_t launch(const LatentParams& p, int tile_lines, cudaStream_t stream) {
  cudaLaunchConfig_t config = {};
  const unsigned units = p.units < 65535 ? static_cast<unsigned>(p.units) : 65535u;
  config.gridDim = dim3(static_cast<unsigned>(p.tiles * tile_lines), units,
                        (static_cast<unsigned>(p.units) + units - 1) / units);
  config.blockDim = dim3(kCombineThreads, kSlices);
  config.stream = stream;
  cudaLaunchAttribute early = early_launch();
  config.attrs = &early;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, latent_combine_kernel<kOrder, kSlices>, p, tile_lines);
}

// All parts of a chunk are under way at once up to 64.
template <PartOrder kOrder>
cudaError_t launch(const LatentParams& p, int tile_lines, std::int64_t most, cudaStream_t stream) {
  if (most <= kCombineAhead) return launch<kOrder, 1>(p, tile_lines, stream);
  if (most <= 2 * kCombineAhead) return launch<kOrder, 2>(p, tile_lines, stream);
  if (most <= 4 * kCombineAhead) return launch<kOrder, 4>(p, tile_lines, stream);
  return launch<kOrder, 8>(p, tile_lines, stream);
}

}  // namespace

cudaError_t launch_latent_combine(const LatentParams& p, PartOrder order, int tile_lines,
                                  std::int64_t most, cudaStream_t stream) {
  if (p.units == 0) return cudaSuccess;
  switch (order) {
    case PartOrder::wide:
      return launch<PartOrder::wide>(p, tile_lines, most, stream);
    case PartOrder::turned:
      return launch<PartOrder::turned>(p, tile_lines, most, stream);
    case PartOrder::rows:
      break;
  }
  return launch<PartOrder::rows>(p, tile_lines, most, stream);
}

}  // namespace lathe::cuda
