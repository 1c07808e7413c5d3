// Parts: what the items of a cut unit leave for the combination.
//
// A part is an item's tile of lines, [tile_lines, 512] f32, in chunks of four values of a line. Chunks lie
// in the order in which the kernel's threads hold them, 128 threads side by side, so that a warp writes
// and reads 512 bytes in one piece: rows would cost it eight pieces, and tags are what bounds it.
#pragma once

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

/// The chunks of an item's tile of lines.
__device__ inline float4* part_chunks(const LatentParams& p, int tile_lines, std::int64_t item,
                                      std::int32_t tile) {
  return reinterpret_cast<float4*>(p.part_out) + (item * p.tiles + tile) * (tile_lines * 128);
}

}  // namespace lathe::cuda
