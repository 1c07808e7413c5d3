// Stores the exponent bytes of mla_fp4's tiles as words.
//
// A tile is two lanes' chunks, so a row's scales would be 36 stores of a byte to two sectors. Lanes
// put the bytes of neighbouring tiles together instead, and each store is a word. (Loading them so
// is slower: all codes wait for the shuffles.)
#pragma once

#include "kernels/cuda/sm90/codec/batch.cuh"

namespace lathe::cuda {

// In round u of four a row's lanes hold 2^(shift - 1) neighbouring tiles, two lanes each: byte u of
// lane pair j's word is the scale of round u's tile j. Transposed, it is word j / 4 of round j % 4:
// the bytes of four neighbouring tiles.
__device__ __forceinline__ std::uint32_t transpose_scales(std::uint32_t word) {
  const std::uint32_t pair = lane_of_warp() / 2;
  const std::uint32_t next = shuffle_xor(word, 2);
  word = permute_bytes(word, next, (pair & 1) == 0 ? 0x6240 : 0x3715);
  const std::uint32_t far = shuffle_xor(word, 4);
  return permute_bytes(word, far, (pair & 2) == 0 ? 0x5410 : 0x3276);
}

// Where a lane's word lies, from its tile of round 0 on; transposed, which is a word that no other
// lane pair has.
__device__ __forceinline__ std::int32_t swapped_scales_at(const Cut& cut) {
  const std::uint32_t tiles = 1u << (cut.shift - kFp4TileShift);  // of a round
  const std::uint32_t pair = lane_of_warp() / 2 & (tiles - 1);
  return static_cast<std::int32_t>((pair & 3) * tiles + (pair & ~3u)) -
         static_cast<std::int32_t>(pair);
}

// Four lanes hold two tiles in each of two rounds: their word, from that of a lane pair.
__device__ __forceinline__ std::uint32_t pair_scales(std::uint32_t word) {
  const std::uint32_t other = shuffle_xor(word, 2);
  return permute_bytes(word, other, (lane_of_warp() & 2) == 0 ? 0x5140 : 0x1504);
}

}  // namespace lathe::cuda
