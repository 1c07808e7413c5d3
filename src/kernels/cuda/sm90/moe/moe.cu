// Launches the mixture-of-experts kernels: routing, placing rows by expert, weighted sum.
#include "kernels/cuda/sm90/moe/moe.cuh"

#include "kernels/cuda/common/launch.h"

namespace lathe::cuda {

cudaError_t launch_route(const RouteParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  return launch_kernel(p.group_by_best ? route_kernel<true> : route_kernel<false>,
                       {.grid = static_cast<unsigned>(p.rows), .block = 32, .early = true}, stream,
                       p);
}

cudaError_t launch_place(const PlaceParams& p, cudaStream_t stream) {
  const int shared_bytes = kPlaceThreads / 32 * p.experts * static_cast<int>(sizeof(std::int32_t));
  constexpr int kMostShared = kPlaceThreads / 32 * kMostExperts * 4;
  const LaunchShape shape{.grid = static_cast<unsigned>(place_blocks(p.choices)),
                          .block = kPlaceThreads,
                          .shared_bytes = shared_bytes,
                          .early = true};
  if (place_blocks(p.choices) > 1) {
    auto status = allow_shared<count_kernel>(kMostShared);
    if (status == cudaSuccess) status = launch_kernel(count_kernel, shape, stream, p);
    if (status != cudaSuccess) return status;
  }
  if (auto status = allow_shared<place_kernel>(kMostShared); status != cudaSuccess) return status;
  return launch_kernel(place_kernel, shape, stream, p);
}

cudaError_t launch_combine_experts(const CombineExperts& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(p.rows),
                  blocks_for(p.cols, kCombineThreads * kCombineColumns));
  return launch_kernel(
      p.begin == nullptr ? combine_experts_kernel<false> : combine_experts_kernel<true>,
      {.grid = grid, .block = kCombineThreads, .early = true}, stream, p);
}

}  // namespace lathe::cuda
