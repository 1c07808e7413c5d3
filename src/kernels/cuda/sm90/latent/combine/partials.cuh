// Parts: what the items of a cut unit leave for the combination.
//
// A part is an item's tile of lines, [tile_lines, 512], in chunks of four values of a line. Chunks lie
// in the order in which the kernel's threads hold them, 128 threads side by side, so that a warp writes
// and reads them in one piece: rows would cost it eight pieces, and tags are what bounds it.
//
// Values are f32, but f16 where kernels multiply turned: the values that they add are f16 or e4m3, so means of them are
// in f16's range, weights have its precision at most, and what a block stores takes as long as its tiles of keys.
// Scales of all values are left to the combination there.
#pragma once

#include <type_traits>

#include "kernels/cuda/common/hopper.cuh"
#include "kernels/cuda/sm90/latent/latent_params.h"

namespace lathe::cuda {

/// Values `dim`, `dim` + 1, `dim` + `gap` and `dim` + `gap` + 1 of a line.
struct PartChunk {
  int line, dim, gap;
};

/// Chunk `run` * 128 + `thread` of a part of `lines` lines; 64 where the order is `wide`.
template <PartOrder kOrder>
__device__ inline PartChunk part_chunk(int run, int thread, int lines) {
  const int warp = thread / 32, lane = thread % 32;
  if constexpr (kOrder == PartOrder::wide) {
    return {warp * 16 + lane / 4 + 8 * (run & 1), run / 2 * 16 + 2 * (lane & 3), 8};
  } else if constexpr (kOrder == PartOrder::turned) {
    const int runs = lines / 4;  // of 128 dimensions
    return {8 * (run % runs / 2) + 2 * (lane & 3) + (run & 1),
            run / runs * 128 + warp * 16 + lane / 4 * 2, 64};
  }
  return {run, thread * 4, 2};
}

template <PartOrder kOrder>
using StoredChunk = std::conditional_t<kOrder == PartOrder::turned, uint2, float4>;

__device__ inline uint2 f16_chunk(float a, float b, float c, float d) {
  return {pack_f16(a, b), pack_f16(c, d)};
}
__device__ inline float4 chunk_values(const float4& v) { return v; }
__device__ inline float4 chunk_values(const uint2& v) {
  const float2 a = unpack_f16(v.x), b = unpack_f16(v.y);
  return {a.x, a.y, b.x, b.y};
}

/// The chunks of an item's tile of lines.
template <PartOrder kOrder>
__device__ inline StoredChunk<kOrder>* part_chunks(const LatentParams& p, int tile_lines,
                                                   std::int64_t item, std::int32_t tile) {
  return reinterpret_cast<StoredChunk<kOrder>*>(p.part_out) +
         (item * p.tiles + tile) * (tile_lines * 128);
}

}  // namespace lathe::cuda
