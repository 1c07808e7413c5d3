// Launches the split-KV combine, with as many partials in flight as the number of splits asks for.
#include "kernels/cuda/sm90/latent/combine/combine.cuh"

#include <algorithm>

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/latent/latent_kernels.h"

namespace lathe::cuda {
namespace {

// That a GPU runs at once, of 128 threads a slice; more of them take longer to start than to go on.
constexpr std::int64_t kThreads = 132 * 1024;

template <PartialLayout kOrder, int kSlices>
cudaError_t launch(const LatentParams& p, int block_m, cudaStream_t stream) {
  const unsigned work_tiles = p.work_tiles < 65535 ? static_cast<unsigned>(p.work_tiles) : 65535u;
  return launch_kernel(latent_combine_kernel<kOrder, kSlices>,
                       {.grid = dim3(static_cast<unsigned>(p.m_blocks * block_m), work_tiles,
                                     blocks_for(p.work_tiles, work_tiles)),
                        .block = dim3(kCombineThreads, kSlices),
                        .early = true},
                       stream, p, block_m);
}

template <PartialLayout kOrder, int kSlices>
cudaError_t launch_split(const LatentParams& p, int block_m, cudaStream_t stream) {
  const std::int64_t runs = std::int64_t{p.m_blocks} * block_m * p.work_tiles;
  const std::int64_t most = kThreads / (kCombineThreads * kSlices);
  return launch_kernel(latent_combine_split_kernel<kOrder, kSlices>,
                       {.grid = static_cast<unsigned>(std::min(runs, most)),
                        .block = dim3(kCombineThreads, kSlices),
                        .early = true},
                       stream, p, block_m);
}

// Up to 64 partials of a chunk are in flight at once.
template <PartialLayout kOrder>
cudaError_t launch(const LatentParams& p, int block_m, std::int64_t most, cudaStream_t stream) {
  if (p.split_tiles != nullptr) {
    return most <= 4 * kCombineAhead ? launch_split<kOrder, 4>(p, block_m, stream)
                                     : launch_split<kOrder, 8>(p, block_m, stream);
  }
  if (most <= kCombineAhead) return launch<kOrder, 1>(p, block_m, stream);
  if (most <= 2 * kCombineAhead) return launch<kOrder, 2>(p, block_m, stream);
  if (most <= 4 * kCombineAhead) return launch<kOrder, 4>(p, block_m, stream);
  return launch<kOrder, 8>(p, block_m, stream);
}

}  // namespace

cudaError_t launch_latent_combine(const LatentParams& p, PartialLayout order, int block_m,
                                  std::int64_t most, cudaStream_t stream) {
  if (p.work_tiles == 0) return cudaSuccess;
  switch (order) {
    case PartialLayout::m64:
      return launch<PartialLayout::m64>(p, block_m, most, stream);
    case PartialLayout::swapped:
      return launch<PartialLayout::swapped>(p, block_m, most, stream);
    case PartialLayout::rows:
      break;
  }
  return launch<PartialLayout::rows>(p, block_m, most, stream);
}

}  // namespace lathe::cuda
