// Scans and reductions for the block that shares work (share_work.cuh, share_fixed.cuh).
//
// Functions with several calls are not inlined: the code runs once, and most of its time would be
// spent fetching instructions. They synchronize once: `turn` selects one of two arrays and must
// differ from the previous call's.
#pragma once

#include "kernels/cuda/common/dialect.cuh"

namespace lathe::cuda {

/// Prefix sums of two values per thread: over earlier threads (before), and over all.
struct SharePrefix {
  std::int32_t before, all, before2, all2;
};
[[gnu::noinline]] static __device__ SharePrefix share_prefix(int turn, std::int32_t value,
                                                             std::int32_t value2 = 0) {
  __shared__ uint2 warps[2][32];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int count = static_cast<int>(blockDim.x) / 32;
  std::int32_t sum = value, sum2 = value2;
  LATHE_UNROLL
  for (int d = 1; d < 32; d *= 2) {
    const std::int32_t before = shuffle_up(sum, d), before2 = shuffle_up(sum2, d);
    if (lane >= d) sum += before, sum2 += before2;
  }
  if (lane == 31) {
    warps[turn][warp] = {static_cast<std::uint32_t>(sum), static_cast<std::uint32_t>(sum2)};
  }
  sync_block();
  const uint2 of = lane < count ? warps[turn][lane] : uint2{};
  const auto total = [](std::uint32_t v) { return static_cast<std::int32_t>(warp_sum(v)); };
  const std::int32_t all = total(of.x), before = total(lane < warp ? of.x : 0);
  const std::int32_t all2 = total(of.y), before2 = total(lane < warp ? of.y : 0);
  return {before + sum - value, all, before2 + sum2 - value2, all2};
}

/// The largest of all threads' values.
[[gnu::noinline]] static __device__ std::uint32_t share_max(int turn, std::uint32_t value) {
  __shared__ std::uint32_t warps[2][32];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  value = warp_max(value);
  if (lane == 0) warps[turn][warp] = value;
  sync_block();
  return warp_max(lane < static_cast<int>(blockDim.x) / 32 ? warps[turn][lane] : 0);
}

/// Steps of work tiles: their sum, the most, the least of those with keys (least), and how many
/// have keys (some). Called once.
struct ShareTotals {
  std::int32_t steps, most, least, some;
};
__device__ inline ShareTotals share_totals(std::int32_t steps) {
  __shared__ uint4 warps[32];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const auto own = static_cast<std::uint32_t>(steps);
  const std::uint32_t less = own > 0 ? ~own : 0;
  const uint4 of = {warp_sum(own), warp_max(own), warp_max(less), warp_sum(own > 0)};
  if (lane == 0) warps[warp] = of;
  sync_block();
  const uint4 v = lane < static_cast<int>(blockDim.x) / 32 ? warps[lane] : uint4{};
  const auto i32 = [](std::uint32_t x) { return static_cast<std::int32_t>(x); };
  return {i32(warp_sum(v.x)), i32(warp_max(v.y)), i32(~warp_max(v.z)), i32(warp_sum(v.w))};
}

/// How many of n sizes are larger than `size`. sizes is padded with 0 to a multiple of 4.
__device__ inline std::int32_t share_larger(const std::uint32_t* sizes, int n, std::uint32_t size) {
  std::int32_t larger = 0;
  LATHE_UNROLL_BY(8)
  for (int u = 0; u < n; u += 4) {
    const uint4 of = *reinterpret_cast<const uint4*>(sizes + u);
    larger += (of.x > size) + (of.y > size) + (of.z > size) + (of.w > size);
  }
  return larger;
}
/// How many of n loads are less than `load`, or equal and before `me`. loads is padded with
/// INT32_MAX to a multiple of 4.
__device__ inline std::int32_t share_lighter(const std::int32_t* loads, int n, std::int32_t load,
                                             int me) {
  std::int32_t less = 0;
  LATHE_UNROLL_BY(8)
  for (int w = 0; w < n; w += 4) {
    const int4 of = *reinterpret_cast<const int4*>(loads + w);
    less += of.x < load || (of.x == load && w < me);
    less += of.y < load || (of.y == load && w + 1 < me);
    less += of.z < load || (of.z == load && w + 2 < me);
    less += of.w < load || (of.w == load && w + 3 < me);
  }
  return less;
}

__device__ inline std::int32_t divide_up(std::int32_t n, std::int32_t d) { return (n + d - 1) / d; }

/// Index of the last of n ascending values that is <= x. The first must be <= x.
__device__ inline int share_last_not_above(const std::int32_t* values, int n, std::int32_t x) {
  int low = 0, high = n;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (values[middle] <= x ? low : high) = middle;
  }
  return low;
}

}  // namespace lathe::cuda
