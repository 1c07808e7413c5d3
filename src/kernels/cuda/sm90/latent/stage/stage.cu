// Launches the kernels that stage fp8 pages: mark, number and decode listed pages, rewrite the
// lists.
#include "kernels/cuda/sm90/latent/stage/stage.cuh"

#include <algorithm>

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/latent/load/row_format_512.cuh"

namespace lathe::cuda {
namespace {

template <class... Args>
cudaError_t launch_stage(void (*kernel)(Args...), dim3 grid, int threads, std::int32_t shared,
                         bool early, cudaStream_t stream, const Args&... args) {
  return launch_kernel(kernel,
                       {.grid = grid,
                        .block = static_cast<unsigned>(threads),
                        .shared_bytes = shared,
                        .early = early},
                       stream, args...);
}

template <class Format>
cudaError_t launch(const LatentParams& p, const LatentStageArrays& stages, cudaStream_t stream) {
  const auto sources = static_cast<unsigned>(stages.sources);
  const std::int32_t pages = (std::max(stages.of[0].pages, stages.of[1].pages) + 3) / 4 * 4;
  // As many blocks as an SM can hold.
  const auto blocks = [&](int each) {
    return dim3(static_cast<unsigned>(each * p.workers * p.m_blocks), sources);
  };
  cudaError_t status = allow_shared<latent_mark_kernel>(kMostStagedPages);
  if (status != cudaSuccess) return status;
  status =
      launch_stage(latent_mark_kernel, blocks(3), kStageThreads, pages, false, stream, p, stages);
  if (status != cudaSuccess) return status;
  status = launch_stage(latent_place_kernel, dim3(sources), kPlaceThreads, 0, true, stream, stages);
  if (status != cudaSuccess) return status;
  status = allow_shared<latent_decode_kernel<Format>>(2 * kMostStagedPages);
  if (status != cudaSuccess) return status;
  return launch_stage(latent_decode_kernel<Format>, blocks(2), kStageThreads, 2 * pages, true,
                      stream, p, stages);
}

}  // namespace

cudaError_t launch_stage_mla_fp8(const LatentParams& p, const LatentStageArrays& stages,
                                 cudaStream_t stream) {
  return launch<Fp8Format>(p, stages, stream);
}
cudaError_t launch_stage_mla_fp8_block(const LatentParams& p, const LatentStageArrays& stages,
                                       cudaStream_t stream) {
  return launch<Fp8BlockFormat>(p, stages, stream);
}
cudaError_t launch_stage_mla_fp8_block_512(const LatentParams& p, const LatentStageArrays& stages,
                                           cudaStream_t stream) {
  return launch<Fp8BlockFormat512>(p, stages, stream);
}
cudaError_t launch_stage_v4_fp8(const LatentParams& p, const LatentStageArrays& stages,
                                cudaStream_t stream) {
  return launch<V4Fp8Format>(p, stages, stream);
}

}  // namespace lathe::cuda
