// Launches the mixture-of-experts kernels: routing, placing rows by expert, weighted sum.
#include "kernels/cuda/sm90/moe/moe.cuh"

#include <algorithm>

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/norm_after_launch.cuh"
#include "kernels/cuda/sm90/moe/dispatch.cuh"

namespace lathe::cuda {
namespace {

template <int kEach>
cudaError_t launch_dispatch_of(const DispatchParams& p, cudaStream_t stream) {
  constexpr auto kernel = dispatch_kernel<kEach>;
  constexpr int kOfRow = kEach == 0 ? 0 : sizeof(RouteMemory < kEach == 0 ? 1 : kEach >);
  const cudaError_t status =
      allow_shared<kernel>(kDispatchSharedBytes + static_cast<int>(kDispatchRoutes) * kOfRow);
  if (status != cudaSuccess) return status;
  // A warp for each part of a row, and no more blocks than an H100 has SMs.
  const std::int64_t parts = blocks_for(p.words, kGatherPart);
  const std::int64_t coded = p.codes.codes == nullptr ? 0 : blocks_for(p.codes.cols, 128);
  const std::int64_t warps =
      std::max(p.place.choices * parts, p.place.choices / p.place.top_k * coded);
  const unsigned blocks = blocks_for(warps, kDispatchThreads / 32);
  return launch_kernel(kernel,
                       {.grid = std::clamp(blocks, 1u, 132u),
                        .block = kDispatchThreads,
                        .shared_bytes = dispatch_shared_bytes(p.place.choices, p.place.experts) +
                                        static_cast<int>(p.route.rows) * kOfRow,
                        .early = true},
                       stream, p);
}

}  // namespace

cudaError_t launch_route(const RouteParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  return launch_kernel(p.experts <= 128   ? route_kernel<4>
                       : p.experts <= 256 ? route_kernel<8>
                       : p.experts <= 512 ? route_kernel<16>
                                          : route_kernel<32>,
                       {.grid = static_cast<unsigned>(p.rows), .block = 32, .early = true}, stream,
                       p);
}

cudaError_t launch_dispatch(const DispatchParams& p, cudaStream_t stream) {
  if (p.place.choices == 0) return cudaSuccess;
  if (p.route.logits == nullptr) return launch_dispatch_of<0>(p, stream);
  if (p.route.experts <= 128) return launch_dispatch_of<4>(p, stream);
  if (p.route.experts <= 256) return launch_dispatch_of<8>(p, stream);
  if (p.route.experts <= 512) return launch_dispatch_of<16>(p, stream);
  return launch_dispatch_of<32>(p, stream);
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

cudaError_t launch_weigh_rows(const WeighRowsParams& p, cudaStream_t stream) {
  if (p.choices == 0) return cudaSuccess;
  WeighRowsParams q = p;
  const bool words = p.rows.dtype == DType::bf16 && p.cols % 8 == 0 && p.rows.stride % 8 == 0 &&
                     reinterpret_cast<std::uintptr_t>(p.rows.data) % 16 == 0;
  q.words = words ? p.cols / 8 : 0;
  return launch_kernel(
      weigh_rows_kernel,
      {.grid = static_cast<unsigned>(p.choices), .block = kWeighThreads, .early = true}, stream, q);
}

cudaError_t launch_combine_experts(const CombineExperts& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  if (p.norm.h.data != nullptr) {
    if (p.rows <= kNormClusterRows) {
      return launch_norm_after<kNormBlocks>(p.begin == nullptr
                                                ? combine_norm_kernel<false, kNormBlocks>
                                                : combine_norm_kernel<true, kNormBlocks>,
                                            p.rows, stream, p);
    }
    return launch_norm_after<1>(
        p.begin == nullptr ? combine_norm_kernel<false, 1> : combine_norm_kernel<true, 1>, p.rows,
        stream, p);
  }
  const dim3 grid(static_cast<unsigned>(p.rows),
                  blocks_for(p.cols, kCombineThreads * kCombineColumns));
  return launch_kernel(
      p.begin == nullptr ? combine_experts_kernel<false> : combine_experts_kernel<true>,
      {.grid = grid, .block = kCombineThreads, .early = true}, stream, p);
}

}  // namespace lathe::cuda
