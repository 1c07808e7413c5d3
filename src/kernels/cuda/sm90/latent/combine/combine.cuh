// Split-KV combine: joins the partials of work tiles that several items share, and writes rows
// without keys.
#pragma once

#include "kernels/cuda/common/hopper.cuh"
#include "kernels/cuda/sm90/latent/combine/partials.cuh"
#include "kernels/cuda/sm90/latent/math/row_max.cuh"
#include "kernels/cuda/sm90/latent/schedule/work_tile.cuh"

namespace lathe::cuda {

inline constexpr int kCombineThreads = 128;  // x; a chunk each

/// A run of 128 chunks, counted over all M blocks of a work tile.
struct CombineRun {
  LatentSplitTile of;
  int run = 0;
};

/// A run, by kSlices x 128 threads. out = sum of 2^(lse_i - lse) out_i in the order of i within a
/// slice and then of slices, so the bits do not depend on timing. find(): the run, which is looked
/// up twice, as registers are short.
template <PartialLayout kOrder, int kSlices, class Find>
__device__ inline void combine_run(const LatentParams& p, int block_m, int slice,
                                   const Find& find) {
  constexpr float kNone = -__builtin_huge_valf();
  __shared__ float4 slice_acc[kSlices][kCombineThreads];
  __shared__ float2 slice_row_sum[kSlices][kCombineThreads];  // row sum, and log2 of its scale
  const int x = static_cast<int>(threadIdx.x);
  LatentSplitTile u;
  std::int32_t tile = 0, run = 0, m_row = 0;
  PartialChunk chunk;
  const auto look_up = [&] {
    const CombineRun found = find();
    u = found.of;
    tile = found.run / block_m;
    run = found.run - tile * block_m;
    chunk = partial_chunk<kOrder>(run, x, block_m);
    m_row = tile * block_m + chunk.m_row;
  };
  look_up();
  float row_max = kNone, row_sum = 0;
  float4 acc = {0, 0, 0, 0};
  // Pointers that go on: indices would take more registers.
  const std::int64_t first = std::int64_t{u.first} + slice;
  const std::int32_t step = p.m_blocks * block_m * kSlices;
  const float* lse_at = p.partial_lse + first * (p.m_blocks * block_m) + m_row;
  const auto* from = partial_chunks<kOrder>(p, block_m, first, tile) + run * kCombineThreads + x;
  LATHE_ROLLED
  for (int left = m_row < u.m_rows ? u.items - slice : 0; left > 0;
       left -= kCombineAhead * kSlices) {
    float lse[kCombineAhead];
    StoredChunk<kOrder> v[kCombineAhead];
    LATHE_UNROLL
    for (int j = 0; j < kCombineAhead; ++j) {
      lse[j] = kNone;
      v[j] = {};
      if (j * kSlices < left) {
        lse[j] = *lse_at;
        v[j] = *from;
      }
      lse_at += step;
      from += std::int64_t{step} * kCombineThreads;
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
  look_up();
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

/// After a list by plan_work(). Grid: (run of the largest work tile, work tile) x (128, slices).
template <PartialLayout kOrder, int kSlices>
static __global__ void __launch_bounds__(kCombineThreads* kSlices, 8 / kSlices)
    latent_combine_kernel(const __grid_constant__ LatentParams p, int block_m) {
  const auto work_tile = static_cast<std::int32_t>(blockIdx.y + gridDim.y * blockIdx.z);
  // The work list and the lengths are older than the previous kernel, so they are read while it
  // runs.
  LatentSplitTile tile{.items = 1};
  if (work_tile < p.work_tiles) {
    const LatentWorkTile u = find_work_tile(p, work_tile);
    const auto first = static_cast<std::int32_t>(p.work_tile_items[work_tile]);
    const auto end = static_cast<std::int32_t>(p.work_tile_items[work_tile + 1]);
    tile = {u.row, u.m_rows, first, end - first};
  }
  wait_for_previous();
  if (tile.items == 1 || another_launch_runs(p)) return;
  combine_run<kOrder, kSlices>(p, block_m, static_cast<int>(threadIdx.y), [&] {
    return CombineRun{tile, static_cast<int>(blockIdx.x)};
  });
}

/// After a list that the device shared: visits its split tiles, and no other. Blocks of
/// (128, slices) take every gridDim.x-th run of deep work tiles together, then a run of the others
/// by each slice.
template <PartialLayout kOrder, int kSlices>
static __global__ void __launch_bounds__(kCombineThreads* kSlices, 8 / kSlices)
    latent_combine_split_kernel(const __grid_constant__ LatentParams p, int block_m) {
  const int runs = p.m_blocks * block_m, groups = runs / kSlices;
  auto job = static_cast<std::int32_t>(blockIdx.x);
  wait_for_previous();
  // Registers are short: all that follows from its number is looked up again.
  const auto again = [&] { asm volatile("" : "+r"(job) : : "memory"); };
  LATHE_ROLLED
  for (; job < p.split_count->deep * runs; job += static_cast<std::int32_t>(gridDim.x)) {
    combine_run<kOrder, kSlices>(p, block_m, static_cast<int>(threadIdx.y), [&] {
      again();
      const std::int32_t tile = job / runs;
      return CombineRun{p.split_tiles[tile], job - tile * runs};
    });
    sync_block();  // what slices share is free again
  }
  LATHE_ROLLED
  for (;; job += static_cast<std::int32_t>(gridDim.x)) {
    const LatentSplitCount count = *p.split_count;
    if (job >= count.deep * runs + count.others * groups) break;
    combine_run<kOrder, 1>(p, block_m, 0, [&] {
      again();
      const std::int32_t deep = p.split_count->deep, other = job - deep * runs;
      const std::int32_t tile = other / groups;
      return CombineRun{p.split_tiles[deep + tile],
                        (other - tile * groups) * kSlices + static_cast<int>(threadIdx.y)};
    });
  }
}

}  // namespace lathe::cuda
