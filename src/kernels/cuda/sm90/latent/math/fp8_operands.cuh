// fp8 rows in shared memory, and f16 register operands made from them.
//
// A tile is 64 rows, kPitch bytes apart. kPitch is an odd multiple of 16, so 16 bytes of each of 8
// rows use all banks without a swizzle. Shared memory holds no wider copy: consumers convert each
// key twice, for S^T = K Q^T and, transposed, for O^T = V^T P^T.
//
// e4m3 is exact in f16: one instruction converts two elements, and one multiplies both by their
// scales. Scales are converted to f16, so they must be from 2^-15 to 2^7: a larger one overflows,
// and below, small values lose bits as denormals. Nothing checks them, as they are on the device.
// Multiplying by a power of two is exact; by another scale (raw_f32) it has two roundings of 2^-11.
// Queries are f16 where keys are fp8; RoPE stays bf16.
//
// A word of four e4m3 holds dimensions 4 c to 4 c + 3 of a row's 16. In an operand they become
// columns 2 c, + 1 and 8 + 2 c, + 1, so queries are stored in that order (arrange_queries()). A
// transposed word holds two dimensions of two keys: row g of an operand's 16 dimensions is
// dimension 2 g, row g + 8 is 2 g + 1.
#pragma once

#include "kernels/cuda/common/hopper.cuh"
#include "kernels/cuda/common/wgmma_rows.cuh"
#include "kernels/cuda/sm90/attention/nonfinite.cuh"
#include "kernels/cuda/sm90/latent/load/load_tile.cuh"
#include "kernels/cuda/sm90/latent/load/row_format.cuh"

namespace lathe::cuda {

template <class Format>
struct LatentRows {
  static constexpr int kTileBytes = kLatentTile * Format::kPitch;
  // f16, [kScales][64 keys].
  static constexpr int kScaleBytes = Format::kScales * kLatentTile * 2;
  static_assert(Format::kPitch % 32 == 16 && Format::kPitch >= Format::kRowBytes);
  // Tiles of 64 dimensions that share a scale; 1 if none do.
  static constexpr int kSame = Format::kScaleTiles > 1 ? Format::kScaleTiles : 1;
};

// f16 P is from 2^-24 to 2^16. These are log2 of the largest P, and of P at a new row max. They are
// far apart, so that row maxes rarely rise however widely scores spread, and P of a thousandth of
// the largest is still normal.
inline constexpr float kMaxLog2P = 14, kStartLog2P = -4;
// Row max of an M row that has seen no key. Finite, so that a masked score minus it is -inf.
inline constexpr float kNoRowMax = -1e30f;

/// Issues d += a b. `a` has 32 columns in bf16 or f16: dimensions for scores, keys for values.
template <bool kBf16, int kCount>
__device__ __forceinline__ void multiply_chunk(float (&d)[kCount], const std::uint32_t (&a)[2][4],
                                               std::uint64_t b, bool add) {
  wgmma_fence();
  if constexpr (kBf16) {
    mma_m64_bf16_rows(d, a[0], b, add);
    mma_m64_bf16_rows(d, a[1], b + 2, true);  // b 32 bytes on
  } else {
    mma_m64_f16_rows(d, a[0], b, add);
    mma_m64_f16_rows(d, a[1], b + 2, true);
  }
  wgmma_commit();
}

/// Offset of a key's scale in a block's 128-byte table: the scales for a thread's words of 32 keys
/// are 16 consecutive bytes.
__device__ inline std::uint32_t scale_place(int key) {
  return static_cast<std::uint32_t>((key & 32) * 2 + (key & 6) * 8 + (key & 24) / 2 +
                                    (key & 1) * 2);
}
/// Writes the scales of a tile's 16 keys of warp `warp` (of four) to the table. A lane writes two
/// keys of one or two blocks.
template <class Format>
__device__ inline void make_scales(std::uint32_t rows, std::uint32_t table, int warp, int lane) {
  if constexpr (Format::kScales > 0) {
    LATHE_UNROLL
    for (int first = 0; first < Format::kScales; first += 4) {
      const int b = first + (lane & 3);
      if (b >= Format::kScales) return;
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int key = warp * 16 + lane / 4 + 8 * i;
        store_shared_u16(
            table + static_cast<std::uint32_t>(b * (kLatentTile * 2)) + scale_place(key),
            pack_f16(Format::scale(rows + static_cast<std::uint32_t>(key * Format::kPitch), b), 0));
      }
    }
  }
}

/// K as left operand: 16 keys per warp, 32 dimensions at a time.
template <class Format>
struct KeyOperand {
  std::uint32_t at, row;
  float next[2];            // scales of rows g and g + 8 in the next block
  std::uint32_t scales[2];  // of the current block, twice in each word

  __device__ KeyOperand(std::uint32_t rows, int warp, int lane)
      : at(rows + static_cast<std::uint32_t>((warp * 16 + (lane & 15)) * Format::kPitch +
                                             (lane >> 4) * 16)),
        row(rows + static_cast<std::uint32_t>((warp * 16 + lane / 4) * Format::kPitch)) {}

  /// Loads the next block's scales.
  __device__ void fetch(int block) {
    if constexpr (Format::kScales > 0) {
      next[0] = Format::scale(row, block);
      next[1] = Format::scale(row + 8 * Format::kPitch, block);
    }
  }
  /// Makes the next block's scales the current ones.
  __device__ void choose() {
    if constexpr (Format::kScales > 0) {
      scales[0] = pack_f16(next[0], next[0]);
      scales[1] = pack_f16(next[1], next[1]);
    }
  }
  /// Loads words of dimensions 32 chunk to 32 chunk + 31.
  __device__ void load(int chunk, std::uint32_t (&v)[4]) const {
    load_matrices(at + static_cast<std::uint32_t>(chunk * 32), v);
  }
  /// Makes two f16 operands of 16 dimensions.
  __device__ void make(const std::uint32_t (&v)[4], std::uint32_t (&a)[2][4]) const {
    LATHE_UNROLL
    for (int k = 0; k < 2; ++k) {
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        widen_e4m3_f16(v[2 * k + i], a[k][i], a[k][i + 2]);
        if constexpr (Format::kScales > 0) {
          a[k][i] = mul_f16x2(a[k][i], scales[i]);
          a[k][i + 2] = mul_f16x2(a[k][i + 2], scales[i]);
        }
      }
    }
  }
  /// Makes two bf16 operands from the bf16 part of the row.
  __device__ void make_wide(int chunk, std::uint32_t (&a)[2][4]) const {
    const auto from = at + static_cast<std::uint32_t>(Format::kWideAt + chunk * 64);
    load_matrices(from, a[0]);
    load_matrices(from + 32, a[1]);
  }
};

inline constexpr int kValueTiles = 8;

/// V^T as left operand: 16 of each 64 dimensions per warp, 32 keys at a time.
template <class Format>
struct ValueOperand {
  std::uint32_t rows, table;
  int warp, lane;

  /// Whether a tile of values is bf16. Then rows of its 16 dimensions are in order.
  __device__ static constexpr bool is_bf16(int tile) {
    return Format::kFp8 < kValueTiles && tile >= Format::kFp8;
  }

  /// Loads fp8 words ahead of their use.
  __device__ void load(int tile, int half, std::uint32_t (&v)[4]) const {
    if (is_bf16(tile)) return;
    load_matrices_trans(rows + static_cast<std::uint32_t>((half * 32 + lane) * Format::kPitch +
                                                          tile * 64 + warp * 16),
                        v);
  }
  /// Loads the scales of 32 keys for `tile` and the tiles that share them.
  __device__ void choose(int tile, int half, std::uint32_t (&scales)[4]) const {
    if constexpr (Format::kScales > 0) {
      if (is_bf16(tile)) return;
      const uint4 v = load_shared_u128(
          table + static_cast<std::uint32_t>(tile / Format::kScaleTiles * (kLatentTile * 2) +
                                             half * 64 + (lane & 3) * 16));
      scales[0] = v.x, scales[1] = v.y, scales[2] = v.z, scales[3] = v.w;
    }
  }
  /// Makes two f16 operands of 16 keys.
  __device__ void make(int tile, int half, const std::uint32_t (&v)[4],
                       const std::uint32_t (&scales)[4], std::uint32_t (&a)[2][4]) const {
    if (is_bf16(tile)) {
      LATHE_UNROLL
      for (int k = 0; k < 2; ++k) {
        const int key = half * 32 + k * 16 + (lane & 7) + (lane >> 4) * 8;
        std::uint32_t b[4];
        load_matrices_trans(
            rows + static_cast<std::uint32_t>(key * Format::kPitch + Format::kWideAt +
                                              (tile - Format::kFp8) * 128 + warp * 32 +
                                              (lane >> 3 & 1) * 16),
            b);
        LATHE_UNROLL
        for (int i = 0; i < 4; ++i) {
          a[k][i] = pack_f16(bits_to_float(b[i] << 16), bits_to_float(b[i] & 0xffff0000u));
        }
      }
      return;
    }
    LATHE_UNROLL
    for (int i = 0; i < 4; ++i) {
      // From two dimensions of a key to two keys of a dimension.
      std::uint32_t(&to)[4] = a[i / 2];
      widen_e4m3_f16(permute_bytes(v[i], 0, 0x3120), to[i % 2 * 2], to[i % 2 * 2 + 1]);
      if constexpr (Format::kScales > 0) {
        to[i % 2 * 2] = mul_f16x2(to[i % 2 * 2], scales[i]);
        to[i % 2 * 2 + 1] = mul_f16x2(to[i % 2 * 2 + 1], scales[i]);
      }
    }
  }
};

/// Values of keys in fp8 rows, and their scales in a table (nonfinite.cuh). A lane does its share
/// of a key.
template <class Format>
struct Fp8ValueRows {
  std::uint32_t rows, table;

  static constexpr float kMostScale = 146;  // 448 times it is about the largest f16
  static constexpr int kCodes = (Format::kFp8 < kValueTiles ? Format::kFp8 : kValueTiles) * 4;
  static constexpr int kWide = (kValueTiles - kCodes / 4) * 8;  // 16 bytes each, as kCodes

  __device__ std::uint32_t row(int key) const {
    return rows + static_cast<std::uint32_t>(key * Format::kPitch);
  }
  __device__ bool wild(int key, int lane) const {
    const std::uint32_t at = row(key) + static_cast<std::uint32_t>(lane * 16);
    bool any = lane < kCodes && is_wild_e4m3(load_shared_u128(at));
    if (lane < kWide) any |= is_wild_bf16(load_shared_u128(at + Format::kWideAt));
    if constexpr (Format::kScales > 0) {
      if (lane < Format::kScales) {
        const float scale = Format::scale(row(key), lane);
        any |= !(scale >= -kMostScale && scale <= kMostScale);
      }
    }
    return any;
  }
  __device__ void clear(int key, int lane) const {
    const std::uint32_t at = row(key) + static_cast<std::uint32_t>(lane * 16);
    if (lane < kCodes) store_shared(at, 0, 0, 0, 0);
    if (lane < kWide) store_shared(at + Format::kWideAt, 0, 0, 0, 0);
    if (lane < Format::kScales) {
      store_shared_u16(
          table + static_cast<std::uint32_t>(lane * (kLatentTile * 2)) + scale_place(key), 0);
    }
  }
};

/// Converts queries to f16 in the keys' order, where keys are fp8; values beyond 65504 saturate. q:
/// [tiles of 64 dims][kMRows] swizzled rows of 128 bytes. kThreads threads convert 32 bytes of a
/// row each at a time, several rows at once to wait for their loads once.
template <class Format, int kMRows, int kThreads>
__device__ inline void arrange_queries(std::uint32_t q, int thread) {
  static_assert(kThreads % 32 == 0 && kMRows % 8 == 0);
  constexpr int kStep = kThreads / 4, kRows = Format::kFp8 * kMRows;
  constexpr int kAtOnce = kRows % (4 * kStep) == 0 ? 4 : kRows % (2 * kStep) == 0 ? 2 : 1;
  const auto both = [](std::uint32_t v) {
    return pack_f16(bits_to_float(v << 16), bits_to_float(v & 0xffff0000u));
  };
  int row = thread / 4;
  std::uint32_t at = swizzled(q, row, 2 * (thread % 4));
  LATHE_ROLLED
  for (; row < kRows; row += kAtOnce * kStep, at += kAtOnce * kStep * 128) {
    uint4 a[kAtOnce], b[kAtOnce];
    LATHE_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      const std::uint32_t from = at + static_cast<std::uint32_t>(i * kStep * 128);
      a[i] = load_shared_u128(from);
      b[i] = load_shared_u128(from ^ 16);
    }
    LATHE_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      const std::uint32_t to = at + static_cast<std::uint32_t>(i * kStep * 128);
      store_shared(to, both(a[i].x), both(a[i].z), both(b[i].x), both(b[i].z));
      store_shared(to ^ 16, both(a[i].y), both(a[i].w), both(b[i].y), both(b[i].w));
    }
  }
  fence_async_proxy();
}

}  // namespace lathe::cuda
