// Parameters of a launch of the grouped GEMM for few tokens: plain values.
#pragma once

#include "kernels/cuda/sm90/matmul/matmul_params.h"

namespace lathe::cuda {

inline constexpr int kFewTokens = 8;              // most tokens of a tile
inline constexpr int kFewRows = 16;               // weight rows that a warp multiplies at a time
inline constexpr std::int32_t kFewColumns = 128;  // of a chunk
inline constexpr int kFewDepth = 2;               // chunks of a stage
inline constexpr int kFewShared = 232448;         // bytes of an SM's only block

// Stages of a warp: those in flight and the one that it multiplies.
inline constexpr int kFewStages = 3;
// Warps of a block that multiply: for long tokens fewer, and for weights with zeros or scales of
// f16, which need more registers.
inline constexpr int kFewWarps = 19, kFewLongWarps = 16, kFewZeroWarps = 15;

/// Bytes of a warp's stage: codes in rows of 128 bytes, then the scales of each chunk, and the
/// zeros of each. scale_bytes: of both, a row.
constexpr int few_stage_bytes(int scale_bytes) { return kFewRows * kFewDepth * (64 + scale_bytes); }
/// Shared memory: bytes before the tokens. Barriers and the list of groups, then the warps' stages.
constexpr int few_tokens_at(int scale_bytes, int warps) {
  constexpr int kRingsAt = (32 + (kMatmulGroups + 1) * 4 + 127) / 128 * 128;
  return kRingsAt + warps * kFewStages * few_stage_bytes(scale_bytes);
}
/// Tiles of tokens that fit, at most 2. x_row: FewParams'.
constexpr int few_slots(int scale_bytes, int warps, std::int64_t x_row) {
  const std::int64_t fit = (kFewShared - few_tokens_at(scale_bytes, warps)) / (kFewTokens * x_row);
  return fit > 2 ? 2 : static_cast<int>(fit);
}
/// Warps of a block; 0 if tokens do not fit.
constexpr int few_warps(int scale_bytes, std::int64_t x_row) {
  if (scale_bytes > kMatmulPackedScale) {
    return few_slots(scale_bytes, kFewZeroWarps, x_row) > 0 ? kFewZeroWarps : 0;
  }
  if (few_slots(scale_bytes, kFewWarps, x_row) > 0) return kFewWarps;
  return few_slots(scale_bytes, kFewLongWarps, x_row) > 0 ? kFewLongWarps : 0;
}

struct FewParams {
  // As for the other grouped kernels, in tiles of kFewRows weight rows and kFewTokens tokens.
  MatmulParams matmul;
  const std::uint8_t* codes;  // packed rows of the first group; if gated, of the first weight
  std::int64_t row_bytes;     // of codes
  std::int64_t group_bytes;   // of codes, from one group to the next
  // Bytes from a row of a unit to the row that is 4 or 8 later in wgmma's order (matmul_row()).
  std::int64_t four_rows, eight_rows;
  std::int64_t scale_step;  // bytes of a chunk's scales
  const std::uint16_t* x;   // [m, k] bf16
  std::int64_t x_stride;    // elements
  std::int32_t x_row;       // shared memory: bytes from one token to the next
  std::int32_t x_slots;     // tiles of tokens in shared memory: 1 or 2
  std::int32_t warps;       // as few_warps() says
};

}  // namespace lathe::cuda
