// Widens e4m3 tiles in shared memory to bf16, exactly.
#pragma once

#include "kernels/cuda/common/hopper.cuh"
#include "kernels/cuda/sm90/attention/mask.cuh"
#include "kernels/cuda/sm90/attention/swizzle.cuh"
#include "kernels/cuda/sm90/gqa/load/gqa_widen_pairs.cuh"

namespace lathe::cuda {

/// Two e4m3 in the low 16 bits of `codes` to bf16; NaN stays NaN. Slower than widen_pair().
__device__ inline std::uint32_t widen_e4m3_bf16(std::uint32_t codes) {
  float low, high;
  convert_from_e4m3x2(codes, low, high);
  return pack_bf16(low, high);
}

/// Widens kBoxes boxes of e4m3 [64 keys, 64 or 128], swizzled over their rows, to tiles of bf16 [64
/// keys, 64], by 128 threads. Rows whose bit of `seen` is 0 become zeros.
template <class N, int kBoxes>
__device__ inline void widen_tile(std::uint32_t from, std::uint64_t seen, std::uint32_t to,
                                  int thread) {
  constexpr int kChunks = N::kBoxBytes / 16;  // of 16 codes in a row of a box
  constexpr int kRows = 128 / kChunks;        // at a time
  const int chunk = thread % kChunks;
  LATHE_UNROLL_BY(2)
  for (int i = 0; i < kBoxes * N::kTile / kRows; ++i) {
    const int box = i / (N::kTile / kRows);
    const int row = i % (N::kTile / kRows) * kRows + thread / kChunks;
    // A box of 64-byte rows is swizzled over 64 bytes: chunk c of row r is at c ^ (r / 2 % 4).
    const int place = kChunks == 8 ? chunk ^ (row & 7) : chunk ^ (row >> 1 & 3);
    uint4 codes = {0, 0, 0, 0};
    if (seen >> row & 1) {
      codes = load_shared_u128(from + static_cast<std::uint32_t>(box * N::kBoxTileBytes +
                                                                 row * N::kBoxBytes + place * 16));
    }
    const std::uint32_t tile =
        to + static_cast<std::uint32_t>((box * kChunks + chunk) / 4 * N::kDimTileBytes);
    const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
    const std::uint32_t nan =
        nan_bits(codes.x) | nan_bits(codes.y) | nan_bits(codes.z) | nan_bits(codes.w);
    std::uint32_t wide[8];
    LATHE_UNROLL
    for (int w = 0; w < 4; ++w) {
      wide[2 * w] = widen_pair<0, 1>(words[w]);
      wide[2 * w + 1] = widen_pair<2, 3>(words[w]);
    }
    if (seldom(has_nan(nan))) {
      LATHE_UNROLL
      for (int w = 0; w < 8; ++w) wide[w] = widen_e4m3_bf16(words[w / 2] >> w % 2 * 16);
    }
    const int out = chunk % 4 * 2;
    store_shared(swizzled(tile, row, out), wide[0], wide[1], wide[2], wide[3]);
    store_shared(swizzled(tile, row, out + 1), wide[4], wide[5], wide[6], wide[7]);
  }
}

}  // namespace lathe::cuda
