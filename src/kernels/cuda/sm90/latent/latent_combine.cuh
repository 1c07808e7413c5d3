// Puts the parts of units that several items share together, and writes rows that have no key.
#pragma once

#include "kernels/cuda/common/hopper.cuh"
#include "kernels/cuda/sm90/latent/latent_reference.cuh"
#include "kernels/cuda/sm90/latent/latent_unit.cuh"

namespace lathe::cuda {

inline constexpr int kCombineThreads = 128;  // x; four values each

/// Block (line of the largest unit, unit) x (128, slices): out = sum of 2^(lse_i - lse) out_i in the
/// order of i within a slice and then of slices, so the bits do not depend on timing.
template <int kSlices>
static __global__ void __launch_bounds__(kCombineThreads* kSlices)
    latent_combine_kernel(const __grid_constant__ LatentParams p, int tile_lines) {
  constexpr float kNone = -__builtin_huge_valf();
  __shared__ float4 partial[kSlices][kCombineThreads];
  wait_for_previous();
  const auto line = static_cast<std::int32_t>(blockIdx.x);
  const auto unit = static_cast<std::int32_t>(blockIdx.y + gridDim.y * blockIdx.z);
  if (unit >= p.units) return;
  const std::int64_t begin = p.unit_items[unit], end = p.unit_items[unit + 1];
  if (end - begin == 1) return;
  const LatentUnitPlace u = unit_place(p, unit);
  if (line >= u.lines) return;
  const std::int64_t stride = std::int64_t{p.tiles} * tile_lines;
  float most = kNone;
  for (std::int64_t i = begin; i < end; ++i) most = fmaxf(most, p.part_lse[i * stride + line]);
  const float zero = most == kNone ? 0.f : most;
  const int slice = static_cast<int>(threadIdx.y), x = static_cast<int>(threadIdx.x);
  float4 sum = {0, 0, 0, 0};
  float weights = 0;
  for (std::int64_t i = begin; i < end; ++i) {
    const float w = exp2_fast(p.part_lse[i * stride + line] - zero);
    weights += w;
    if ((i - begin) % kSlices != slice || w == 0) continue;
    const float4 v = reinterpret_cast<const float4*>(p.part_out + (i * stride + line) * 512)[x];
    sum = {fmaf(w, v.x, sum.x), fmaf(w, v.y, sum.y), fmaf(w, v.z, sum.z), fmaf(w, v.w, sum.w)};
  }
  if constexpr (kSlices > 1) {
    partial[slice][x] = sum;
    sync_block();
    if (slice != 0) return;
    LATHE_UNROLL
    for (int i = 1; i < kSlices; ++i) {
      const float4 v = partial[i][x];
      sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
    }
  }
  const auto r = static_cast<std::int32_t>(p.by_heads(static_cast<std::uint32_t>(line)));
  const std::int32_t head = line - r * p.heads;
  const float lse2 = weights > 0 ? zero + log2_fast(weights) : kNone;
  float factor = weights > 0 ? 1.f / weights : 0.f;
  if (p.sink != nullptr) factor *= sink_factor(p.sink[head], lse2);
  uint2 packed;
  packed.x = pack_bf16(sum.x * factor, sum.y * factor);
  packed.y = pack_bf16(sum.z * factor, sum.w * factor);
  *reinterpret_cast<uint2*>(p.out + (u.row + r) * p.out_stride + std::int64_t{head} * 512 + 4 * x) =
      packed;
  if (x == 0 && p.lse != nullptr) {
    p.lse[(u.row + r) * p.lse_stride + head] = lse2 * 0.6931471805599453f;
  }
}

}  // namespace lathe::cuda
