// Expands latents to a head's keys or values with the CPU's dot product of bf16 pairs
// (AVX512_BF16), at twice the rate of f32. Only where that rounds nothing that f32 would not:
// latents and weights are bf16, or the weights are e4m3 codes with scales of blocks, which multiply
// sums.
//
// Order of sums. A number is the sum of its blocks of 128 elements of the latent, in ascending
// order, each multiplied by its scale in the same step (FMA). Within a block pairs are added in
// ascending order. So a key's numbers depend on no other key.
#pragma once

#include <cstdint>

#include "attn/attend.h"

namespace lathe {

/// Whether the call's keys are expanded so.
bool ragged_expands_by_pairs(const AttendArgs& args);

/// Memory that a worker needs for it, each aligned to 64 bytes.
struct RaggedPairs {
  std::uint32_t* latents;  // [nope / 2, 64] pairs of bf16 of each key of a tile
  std::uint16_t* weights;  // [qk_nope_head + v_head, nope] bf16 of a head; written for e4m3
};
std::int64_t ragged_pair_latents(const AttentionProblem& p);  // elements
std::int64_t ragged_pair_weights(const AttentionProblem& p);  // elements

/// Prepares the head's weights.
void ragged_widen_weights(const AttendArgs& args, std::int32_t head, const RaggedPairs& memory);

/// Prepares a tile's latents. columns: [>= nope, 64] f32, which bf16 holds.
void ragged_pair_columns(const AttentionProblem& p, const float* columns,
                         const RaggedPairs& memory);

/// to [rows, 64] = rows first .. first + rows of the head's weights times the tile's latents.
void ragged_expand(const AttendArgs& args, std::int32_t head, std::int64_t first, std::int64_t rows,
                   const RaggedPairs& memory, float* to);

}  // namespace lathe
