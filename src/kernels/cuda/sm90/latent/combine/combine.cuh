// Split-KV combine: joins the partials of work tiles that several items share, and writes rows
// without keys.
#pragma once

#include "kernels/cuda/common/hopper.cuh"
#include "kernels/cuda/sm90/latent/combine/partials.cuh"
#include "kernels/cuda/sm90/latent/math/row_max.cuh"
#include "kernels/cuda/sm90/latent/schedule/work_tile.cuh"

namespace lathe::cuda {

inline constexpr int kCombineThreads = 128;  // x; a chunk each
inline constexpr int kCombineAhead = 8;      // partials that a thread has in flight

/// Grid: (run of 128 chunks of the largest work tile, work tile) x (128, slices). out = sum of
/// 2^(lse_i - lse) out_i in the order of i within a slice and then of slices, so the bits do not
/// depend on timing.
template <PartialLayout kOrder, int kSlices>
static __global__ void __launch_bounds__(kCombineThreads* kSlices, 8 / kSlices)
    latent_combine_kernel(const __grid_constant__ LatentParams p, int block_m) {
  constexpr float kNone = -__builtin_huge_valf();
  __shared__ float4 slice_acc[kSlices][kCombineThreads];
  __shared__ float2 slice_row_sum[kSlices][kCombineThreads];  // row sum, and log2 of its scale
  const auto work_tile = static_cast<std::int32_t>(blockIdx.y + gridDim.y * blockIdx.z);
  const int slice = static_cast<int>(threadIdx.y), x = static_cast<int>(threadIdx.x);
  const auto tile = static_cast<std::int32_t>(blockIdx.x) / block_m;
  const int run = static_cast<int>(blockIdx.x) - tile * block_m;
  const PartialChunk chunk = partial_chunk<kOrder>(run, x, block_m);
  const std::int32_t m_row = tile * block_m + chunk.m_row;
  // The work list and the lengths are older than the previous kernel, so they are read while it
  // runs.
  std::int64_t begin = 0, end = 1;
  LatentWorkTile u;
  if (work_tile < p.work_tiles) {
    begin = p.work_tile_items[work_tile];
    end = p.work_tile_items[work_tile + 1];
    u = find_work_tile(p, work_tile);
  }
  wait_for_previous();
  if (end - begin == 1 || another_launch_runs(p)) return;
  float row_max = kNone, row_sum = 0;
  float4 acc = {0, 0, 0, 0};
  for (std::int64_t i = begin + slice; i < end && m_row < u.m_rows; i += kCombineAhead * kSlices) {
    float lse[kCombineAhead];
    StoredChunk<kOrder> v[kCombineAhead];
    LATHE_UNROLL
    for (int j = 0; j < kCombineAhead; ++j) {
      const std::int64_t item = i + j * kSlices;
      lse[j] = kNone;
      v[j] = {};
      if (item >= end) continue;
      lse[j] = p.partial_lse[item * p.m_blocks * block_m + m_row];
      v[j] = partial_chunks<kOrder>(p, block_m, item, tile)[run * kCombineThreads + x];
    }
    const float before = row_max;
    LATHE_UNROLL
    for (int j = 0; j < kCombineAhead; ++j) row_max = fmaxf(row_max, lse[j]);
    const float zero = row_max == kNone ? 0.f : row_max;
    const float factor = exp2_fast(before - zero);
    row_sum *= factor;
    acc = {acc.x * factor, acc.y * factor, acc.z * factor, acc.w * factor};
    LATHE_UNROLL
    for (int j = 0; j < kCombineAhead; ++j) {
      const float w = exp2_fast(lse[j] - zero);
      row_sum += w;
      if (w == 0) continue;  // partials of such items may hold anything
      const float4 of = chunk_values(v[j]);
      acc = {fmaf(w, of.x, acc.x), fmaf(w, of.y, acc.y), fmaf(w, of.z, acc.z),
             fmaf(w, of.w, acc.w)};
    }
  }
  if constexpr (kSlices > 1) {
    slice_acc[slice][x] = acc;
    slice_row_sum[slice][x] = {row_sum, row_max};
    sync_block();
    if (slice != 0) return;
    LATHE_UNROLL
    for (int i = 1; i < kSlices; ++i) row_max = fmaxf(row_max, slice_row_sum[i][x].y);
    const float zero = row_max == kNone ? 0.f : row_max;
    row_sum = 0;
    acc = {0, 0, 0, 0};
    LATHE_UNROLL
    for (int i = 0; i < kSlices; ++i) {
      const float2 of = slice_row_sum[i][x];
      const float4 v = slice_acc[i][x];
      const float w = exp2_fast(of.y - zero);
      row_sum += w * of.x;
      acc = {fmaf(w, v.x, acc.x), fmaf(w, v.y, acc.y), fmaf(w, v.z, acc.z), fmaf(w, v.w, acc.w)};
    }
  }
  if (m_row >= u.m_rows) return;
  const auto r = static_cast<std::int32_t>(p.by_heads(static_cast<std::uint32_t>(m_row)));
  const std::int32_t head = m_row - r * p.heads;
  const float lse2 = row_sum > 0 ? row_max + log2_fast(row_sum) : kNone;
  constexpr bool kScaled = kOrder != PartialLayout::swapped;
  float factor = row_sum > 0 ? (kScaled ? 1.f : p.value_scale) / row_sum : 0.f;
  if (p.sink != nullptr) factor *= sink_factor(p.sink[head], lse2);
  std::uint16_t* out = p.out + (u.row + r) * p.out_stride + std::int64_t{head} * 512 + chunk.dim;
  *reinterpret_cast<std::uint32_t*>(out) = pack_bf16(acc.x * factor, acc.y * factor);
  *reinterpret_cast<std::uint32_t*>(out + chunk.gap) = pack_bf16(acc.z * factor, acc.w * factor);
  if (chunk.dim == 0 && p.lse != nullptr) {
    p.lse[(u.row + r) * p.lse_stride + head] = lse2 * 0.6931471805599453f;
  }
}

}  // namespace lathe::cuda
