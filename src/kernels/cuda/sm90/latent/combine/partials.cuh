// Partials: what the items of a split work tile write for the combine.
//
// A partial is an item's M block, [block_m, 512], in chunks of four values of an M row. Chunks are
// in the order of the kernel's threads, 128 threads side by side, so that a warp's store or load is
// contiguous. In row order it would be eight pieces, and cache tags are the limit.
//
// Values are f32. Where A and B are swapped they are f16: values there come from f16 or e4m3, so
// their means fit f16, P has no more precision, and stores would cost as much as loading keys.
// Value scales are then applied by the combine.
#pragma once

#include <type_traits>

#include "kernels/cuda/common/hopper.cuh"
#include "kernels/cuda/sm90/latent/latent_params.h"

namespace lathe::cuda {

/// Slices into which the combine splits a work tile of `items` items.
__host__ __device__ inline int combine_parts(std::int64_t items) {
  return items <= kCombineAhead       ? 1
         : items <= 2 * kCombineAhead ? 2
         : items <= 4 * kCombineAhead ? 4
                                      : 8;
}

/// Values `dim`, `dim` + 1, `dim` + `gap` and `dim` + `gap` + 1 of an M row.
struct PartialChunk {
  int m_row, dim, gap;
};

/// Chunk `run` * 128 + `thread` of a partial of `m_rows` M rows (64 in the m64 layout).
template <PartialLayout kOrder>
__device__ inline PartialChunk partial_chunk(int run, int thread, int m_rows) {
  const int warp = thread / 32, lane = thread % 32;
  if constexpr (kOrder == PartialLayout::m64) {
    return {warp * 16 + lane / 4 + 8 * (run & 1), run / 2 * 16 + 2 * (lane & 3), 8};
  } else if constexpr (kOrder == PartialLayout::swapped) {
    const int runs = m_rows / 4;  // of 128 dimensions
    return {8 * (run % runs / 2) + 2 * (lane & 3) + (run & 1),
            run / runs * 128 + warp * 16 + lane / 4 * 2, 64};
  }
  return {run, thread * 4, 2};
}

template <PartialLayout kOrder>
using StoredChunk = std::conditional_t<kOrder == PartialLayout::swapped, uint2, float4>;

__device__ inline uint2 f16_chunk(float a, float b, float c, float d) {
  return {pack_f16(a, b), pack_f16(c, d)};
}
__device__ inline float4 chunk_values(const float4& v) { return v; }
__device__ inline float4 chunk_values(const uint2& v) {
  const float2 a = unpack_f16(v.x), b = unpack_f16(v.y);
  return {a.x, a.y, b.x, b.y};
}

/// The chunks of an item's M block.
template <PartialLayout kOrder>
__device__ inline StoredChunk<kOrder>* partial_chunks(const LatentParams& p, int block_m,
                                                      std::int64_t item, std::int32_t tile) {
  return reinterpret_cast<StoredChunk<kOrder>*>(p.partial_out) +
         (item * p.m_blocks + tile) * (block_m * 128);
}

}  // namespace lathe::cuda
