#include "kernels/cuda/sm90/latent/latent_combine.cuh"

#include "kernels/cuda/sm90/latent/latent_kernels.h"

namespace lathe::cuda {
namespace {

template <int kSlices>
cudaError_t launch(const LatentParams& p, int tile_lines, cudaStream_t stream) {
  cudaLaunchConfig_t config = {};
  const unsigned units = p.units < 65535 ? static_cast<unsigned>(p.units) : 65535u;
  config.gridDim = dim3(static_cast<unsigned>(p.tiles * tile_lines), units,
                        (static_cast<unsigned>(p.units) + units - 1) / units);
  config.blockDim = dim3(kCombineThreads, kSlices);
  config.stream = stream;
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, latent_combine_kernel<kSlices>, p, tile_lines);
}

}  // namespace

cudaError_t launch_latent_combine(const LatentParams& p, int tile_lines, std::int64_t most,
                                  cudaStream_t stream) {
  if (p.units == 0) return cudaSuccess;
  if (most <= 4) return launch<1>(p, tile_lines, stream);
  if (most <= 16) return launch<2>(p, tile_lines, stream);
  return launch<8>(p, tile_lines, stream);
}

}  // namespace lathe::cuda
