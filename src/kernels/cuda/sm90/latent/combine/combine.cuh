// Puts the parts of units that several items share together, and writes rows that have no key.
#pragma once

#include "kernels/cuda/common/hopper.cuh"
#include "kernels/cuda/sm90/latent/combine/partials.cuh"
#include "kernels/cuda/sm90/latent/math/row_max.cuh"
#include "kernels/cuda/sm90/latent/schedule/work_tile.cuh"

namespace lathe::cuda {

inline constexpr int kCombineThreads = 128;  // x; a chunk each
inline constexpr int kCombineAhead = 8;      // parts that a thread has under way

/// Block (run of 128 chunks of the largest unit, unit) x (128, slices): out = sum of 2^(lse_i - lse) out_i
/// in the order of i within a slice and then of slices, so the bits do not depend on timing.
template <PartOrder kOrder, int kSlices>
static __global__ void __launch_bounds__(kCombineThreads* kSlices, 8 / kSlices)
    latent_combine_kernel(const __grid_constant__ LatentParams p, int tile_lines) {
  constexpr float kNone = -__builtin_huge_valf();
  __shared__ float4 slice_sum[kSlices][kCombineThreads];
  __shared__ float2 slice_weight[kSlices][kCombineThreads];  // sum of weights, log2 of their unit
  const auto unit = static_cast<std::int32_t>(blockIdx.y + gridDim.y * blockIdx.z);
  const int slice = static_cast<int>(threadIdx.y), x = static_cast<int>(threadIdx.x);
  const auto tile = static_cast<std::int32_t>(blockIdx.x) / tile_lines;
  const int run = static_cast<int>(blockIdx.x) - tile * tile_lines;
  const PartChunk chunk = part_chunk<kOrder>(run, x, tile_lines);
  const std::int32_t line = tile * tile_lines + chunk.line;
  // The list and the lengths are older than the kernel before, so they are read while it runs.
  std::int64_t begin = 0, end = 1;
  LatentUnitPlace u;
  if (unit < p.units) {
    begin = p.unit_items[unit];
    end = p.unit_items[unit + 1];
    u = unit_place(p, unit);
  }
  wait_for_previous();
  if (end - begin == 1 || left_to_another(p)) return;
  float most = kNone, weight = 0;
  float4 sum = {0, 0, 0, 0};
  for (std::int64_t i = begin + slice; i < end && line < u.lines; i += kCombineAhead * kSlices) {
    float lse[kCombineAhead];
    StoredChunk<kOrder> v[kCombineAhead];
    LATHE_UNROLL
    for (int j = 0; j < kCombineAhead; ++j) {
      const std::int64_t item = i + j * kSlices;
      lse[j] = kNone;
      v[j] = {};
      if (item >= end) continue;
      lse[j] = p.part_lse[item * p.tiles * tile_lines + line];
      v[j] = part_chunks<kOrder>(p, tile_lines, item, tile)[run * kCombineThreads + x];
    }
    const float before = most;
    LATHE_UNROLL
    for (int j = 0; j < kCombineAhead; ++j) most = fmaxf(most, lse[j]);
    const float zero = most == kNone ? 0.f : most;
    const float factor = exp2_fast(before - zero);
    weight *= factor;
    sum = {sum.x * factor, sum.y * factor, sum.z * factor, sum.w * factor};
    LATHE_UNROLL
    for (int j = 0; j < kCombineAhead; ++j) {
      const float w = exp2_fast(lse[j] - zero);
      weight += w;
      if (w == 0) continue;  // values may be anything
      const float4 of = chunk_values(v[j]);
      sum = {fmaf(w, of.x, sum.x), fmaf(w, of.y, sum.y), fmaf(w, of.z, sum.z),
             fmaf(w, of.w, sum.w)};
    }
  }
  if constexpr (kSlices > 1) {
    slice_sum[slice][x] = sum;
    slice_weight[slice][x] = {weight, most};
    sync_block();
    if (slice != 0) return;
    LATHE_UNROLL
    for (int i = 1; i < kSlices; ++i) most = fmaxf(most, slice_weight[i][x].y);
    const float zero = most == kNone ? 0.f : most;
    weight = 0;
    sum = {0, 0, 0, 0};
    LATHE_UNROLL
    for (int i = 0; i < kSlices; ++i) {
      const float2 of = slice_weight[i][x];
      const float4 v = slice_sum[i][x];
      const float w = exp2_fast(of.y - zero);
      weight += w * of.x;
      sum = {fmaf(w, v.x, sum.x), fmaf(w, v.y, sum.y), fmaf(w, v.z, sum.z), fmaf(w, v.w, sum.w)};
    }
  }
  if (line >= u.lines) return;
  const auto r = static_cast<std::int32_t>(p.by_heads(static_cast<std::uint32_t>(line)));
  const std::int32_t head = line - r * p.heads;
  const float lse2 = weight > 0 ? most + log2_fast(weight) : kNone;
  constexpr bool kScaled = kOrder != PartOrder::turned;
  float factor = weight > 0 ? (kScaled ? 1.f : p.value_scale) / weight : 0.f;
  if (p.sink != nullptr) factor *= sink_factor(p.sink[head], lse2);
  std::uint16_t* out = p.out + (u.row + r) * p.out_stride + std::int64_t{head} * 512 + chunk.dim;
  *reinterpret_cast<std::uint32_t*>(out) = pack_bf16(sum.x * factor, sum.y * factor);
  *reinterpret_cast<std::uint32_t*>(out + chunk.gap) = pack_bf16(sum.z * factor, sum.w * factor);
  if (chunk.dim == 0 && p.lse != nullptr) {
    p.lse[(u.row + r) * p.lse_stride + head] = lse2 * 0.6931471805599453f;
  }
}

}  // namespace lathe::cuda
