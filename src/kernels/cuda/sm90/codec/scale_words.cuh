// Stores the exponent bytes of mla_fp4's tiles as words.
//
// A tile is two lanes' chunks, so a row's scales would be 36 byte stores to two sectors. Lanes
// combine the bytes of neighbouring tiles instead, and each store is a word. (Loading words in this
// way is slower: all codes would wait for the shuffles.)
#pragma once

#include "kernels/cuda/sm90/codec/batch.cuh"

namespace lathe::cuda {

// In each of four rounds u a row's lanes hold 2^(shift - 1) neighbouring tiles, two lanes per tile.
// Byte u of lane pair j's word is the scale of round u's tile j. After the transposition the word
// has four neighbouring tiles: it is word j / 4 of round j % 4.
__device__ __forceinline__ std::uint32_t transpose_scales(std::uint32_t word) {
  const std::uint32_t pair = lane_of_warp() / 2;
  const std::uint32_t next = shuffle_xor(word, 2);
  word = permute_bytes(word, next, (pair & 1) == 0 ? 0x6240 : 0x3715);
  const std::uint32_t far = shuffle_xor(word, 4);
  return permute_bytes(word, far, (pair & 2) == 0 ? 0x5410 : 0x3276);
}

// Offset of a lane's transposed word from its tile of round 0. Each lane pair stores a different
// word.
__device__ __forceinline__ std::int32_t swapped_scales_at(const LaneMap& lanes) {
  const std::uint32_t tiles = 1u << (lanes.shift - kFp4TileShift);  // tiles of a round
  const std::uint32_t pair = lane_of_warp() / 2 & (tiles - 1);
  return static_cast<std::int32_t>((pair & 3) * tiles + (pair & ~3u)) -
         static_cast<std::int32_t>(pair);
}

// Two rounds with four lanes per row, two tiles a round: combines the words of the two lane pairs.
__device__ __forceinline__ std::uint32_t pair_scales(std::uint32_t word) {
  const std::uint32_t other = shuffle_xor(word, 2);
  return permute_bytes(word, other, (lane_of_warp() & 2) == 0 ? 0x5140 : 0x1504);
}

}  // namespace lathe::cuda
