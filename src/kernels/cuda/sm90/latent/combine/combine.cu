// Launches the split-KV combine with as many partial loads in flight as there are splits.
#include "kernels/cuda/sm90/latent/combine/combine.cuh"

#include <algorithm>

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/latent/latent_kernels.h"

namespace lathe::cuda {
namespace {

// About as many blocks as are resident. More would cost more to start than a loop does.
constexpr unsigned kBlocks = 132 * 8;

template <PartialLayout kOrder>
cudaError_t launch(const LatentParams& p, int block_m, std::int64_t most, cudaStream_t stream) {
  const auto runs = static_cast<unsigned>(p.m_blocks * block_m);
  if (p.split_tiles != nullptr) {
    const unsigned entries =
        std::min(std::max(kBlocks / runs, 1u), static_cast<unsigned>(p.split_last));
    return launch_kernel(latent_combine_split_kernel<kOrder>,
                         {.grid = dim3(runs, entries), .block = kCombineThreads, .early = true},
                         stream, p, block_m);
  }
  const int parts = combine_parts(most);
  const unsigned work_tiles = p.work_tiles < 65535 ? static_cast<unsigned>(p.work_tiles) : 65535u;
  return launch_kernel(latent_combine_kernel<kOrder>,
                       {.grid = dim3(runs * static_cast<unsigned>(parts), work_tiles,
                                     blocks_for(p.work_tiles, work_tiles)),
                        .block = kCombineThreads,
                        .early = true},
                       stream, p, block_m, parts);
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
