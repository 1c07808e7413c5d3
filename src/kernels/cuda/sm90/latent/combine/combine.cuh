// Split-KV combine: merges the partials of split work tiles, and writes zeros to rows without keys.
//
// A thread computes one chunk (partials.cuh). Where an M row has many partials, two to eight lanes
// of a warp read one slice of them each. out = sum of 2^(lse_i - lse) out_i, in the order of i
// within a slice and then in the order of slices, so the bits do not depend on timing. Blocks have
// 128 threads and no shared memory: larger ones, and blocks that loop over several runs, took 1 to
// 4 us longer.
#pragma once

#include "kernels/cuda/common/hopper.cuh"
#include "kernels/cuda/sm90/attention/row_max.cuh"
#include "kernels/cuda/sm90/latent/combine/partials.cuh"
#include "kernels/cuda/sm90/latent/math/scales.cuh"
#include "kernels/cuda/sm90/latent/schedule/work_tile.cuh"

namespace lathe::cuda {

inline constexpr int kCombineThreads = 128;

/// A thread's part of a work tile: chunk `chunk`, counted over all M blocks, and slice `slice` of
/// its partials. parts: number of slices, a power of two.
struct CombineShare {
  int chunk, slice, parts;

  /// For a block that computes part `part` of run `run` of 128 chunks.
  __device__ CombineShare(int run, int part, int of) : parts(of) {
    const int x = static_cast<int>(threadIdx.x), lane = x % 32, lanes = 32 / of;
    chunk = run * kCombineThreads + part * (kCombineThreads / of) + x / 32 * lanes + lane % lanes;
    slice = lane / lanes;
  }
};

/// Computes a thread's chunk of work tile u. row(): the tile's first row of q; it is looked up
/// late, because registers are scarce.
template <PartialLayout kOrder, class Row>
__device__ inline void combine_chunk(const LatentParams& p, int block_m, const LatentSplitTile& u,
                                     const CombineShare& own, const Row& row) {
  const int chunk = own.chunk, slices = own.parts;
  constexpr float kNone = -__builtin_huge_valf();
  const std::int32_t tile = chunk / (block_m * 128), in_tile = chunk - tile * (block_m * 128);
  const PartialChunk place = partial_chunk<kOrder>(in_tile / 128, in_tile % 128, block_m);
  const std::int32_t m_row = tile * block_m + place.m_row;
  float row_max = kNone, row_sum = 0;
  float4 acc = {0, 0, 0, 0};
  // 32 bits suffice for chunks of partials, and registers are scarce.
  const int step = p.m_blocks * block_m * slices;
  int lse_at = (u.first + own.slice) * (p.m_blocks * block_m) + m_row;
  auto from = static_cast<std::uint32_t>(u.first + own.slice) *
                  static_cast<std::uint32_t>(p.m_blocks * block_m * 128) +
              static_cast<std::uint32_t>(chunk);
  const auto* chunks = reinterpret_cast<const StoredChunk<kOrder>*>(p.partial_out);
  LATHE_ROLLED
  for (int left = m_row < u.m_rows ? u.items - own.slice : 0; left > 0;
       left -= kCombineAhead * slices) {
    float lse[kCombineAhead];
    StoredChunk<kOrder> v[kCombineAhead];
    LATHE_UNROLL
    for (int j = 0; j < kCombineAhead; ++j) {
      lse[j] = kNone;
      v[j] = {};
      if (j * slices < left) {
        lse[j] = p.partial_lse[lse_at];
        v[j] = chunks[from];
      }
      lse_at += step;
      from += static_cast<std::uint32_t>(step) * 128;
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
      if (w == 0) continue;  // partials without keys hold arbitrary bytes
      const float4 of = chunk_values(v[j]);
      acc = {fmaf(w, of.x, acc.x), fmaf(w, of.y, acc.y), fmaf(w, of.z, acc.z),
             fmaf(w, of.w, acc.w)};
    }
  }
  if (slices > 1) {
    float most = row_max;
    LATHE_ROLLED
    for (int d = 32 / slices; d < 32; d *= 2) most = fmaxf(most, shuffle_xor(most, d));
    const float factor = most == kNone ? 0.f : exp2_fast(row_max - most);
    row_max = most;
    row_sum *= factor;
    acc = {acc.x * factor, acc.y * factor, acc.z * factor, acc.w * factor};
    LATHE_ROLLED
    for (int d = 32 / slices; d < 32; d *= 2) {
      row_sum += shuffle_xor(row_sum, d);
      acc = {acc.x + shuffle_xor(acc.x, d), acc.y + shuffle_xor(acc.y, d),
             acc.z + shuffle_xor(acc.z, d), acc.w + shuffle_xor(acc.w, d)};
    }
    if (own.slice != 0) return;
  }
  if (m_row >= u.m_rows) return;
  const std::int32_t first_row = row();
  const auto r = static_cast<std::int32_t>(p.by_heads(static_cast<std::uint32_t>(m_row)));
  const std::int32_t head = m_row - r * p.heads;
  const float lse2 = row_sum == 0 ? kNone : row_max + log2_fast(row_sum);
  constexpr bool kScaled = kOrder != PartialLayout::swapped;
  float factor = row_sum == 0 ? 0.f : (kScaled ? 1.f : value_scale(p)) / row_sum;
  if (p.sink != nullptr) factor *= sink_factor(p.sink[head], lse2);
  std::uint16_t* out =
      p.out + (first_row + r) * p.out_stride + std::int64_t{head} * 512 + place.dim;
  *reinterpret_cast<std::uint32_t*>(out) = pack_bf16(acc.x * factor, acc.y * factor);
  *reinterpret_cast<std::uint32_t*>(out + place.gap) = pack_bf16(acc.z * factor, acc.w * factor);
  if (place.dim == 0 && p.lse != nullptr) {
    p.lse[(first_row + r) * p.lse_stride + head] = stored_lse(p.lse_form, lse2);
  }
}

/// For a list made by plan_work(). Grid: (parts of 128 chunks of the largest work tile, work tile).
template <PartialLayout kOrder>
static __global__ void __launch_bounds__(kCombineThreads, 8)
    latent_combine_kernel(const __grid_constant__ LatentParams p, int block_m, int parts) {
  let_next_begin();  // which loads its weights meanwhile
  const auto work_tile = static_cast<std::int32_t>(blockIdx.y + gridDim.y * blockIdx.z);
  // Work list and lengths are older than the previous kernel, so they can be read while it runs.
  LatentSplitTile tile{.items = 1};
  if (work_tile < p.work_tiles) {
    const LatentWorkTile u = find_work_tile(p, work_tile);
    const auto first = static_cast<std::int32_t>(p.work_tile_items[work_tile]);
    const auto end = static_cast<std::int32_t>(p.work_tile_items[work_tile + 1]);
    tile = {u.row, u.m_rows, first, static_cast<std::int16_t>(end - first)};
  }
  wait_for_previous();
  if (tile.items == 1 || another_launch_runs(p)) return;
  const int x = static_cast<int>(blockIdx.x), run = x / parts;
  combine_chunk<kOrder>(p, block_m, tile, CombineShare(run, x - run * parts, parts),
                        [&] { return tile.row; });
}

/// For a list that the device shared: visits only its split tiles. Grid: (128 chunks of the largest
/// work tile, every gridDim.y-th entry).
template <PartialLayout kOrder>
static __global__ void __launch_bounds__(kCombineThreads, 8)
    latent_combine_split_kernel(const __grid_constant__ LatentParams p, int block_m) {
  let_next_begin();  // which loads its weights meanwhile
  auto at = static_cast<std::int32_t>(blockIdx.y);
  const auto entry = [&] { return p.split_tiles[at < p.split_last ? at : p.split_last]; };
  // The list is older than the previous kernel, so it can be read while that runs.
  LatentSplitTile next = entry();
  wait_for_previous();
  LATHE_ROLLED
  while (next.parts > 0) {
    const LatentSplitTile u = next;
    at += static_cast<std::int32_t>(gridDim.y);
    next = entry();
    combine_chunk<kOrder>(p, block_m, u,
                          CombineShare(static_cast<int>(blockIdx.x), u.part, u.parts), [&] {
                            asm volatile("" : "+r"(at) : : "memory");
                            return p.split_tiles[at - static_cast<std::int32_t>(gridDim.y)].row;
                          });
  }
}

}  // namespace lathe::cuda
