// Compressed entries of window_compressed layers, and index keys of several tokens: what is
// computed, and the operator's arguments.
#pragma once

#include <cstdint>
#include <span>

#include "attn/compressor.h"
#include "base/rows_view.h"
#include "layout/pages/state_pool.h"
#include "layout/rope/rope.h"
#include "step/left_states.h"
#include "step/step.h"

namespace lathe {

/// A group is `ratio` consecutive tokens: position p is in group g = p / ratio. Per channel, a
/// token has a value kv and a logit z = gate + position_bias[p % ratio]. The entry of a group is
/// the mean of its tokens' values, weighted by e^z, per channel.
///
/// With two halves of channels, a token's first half counts for the entry of group g + 1 and its
/// second half for the entry of group g. So an entry also covers the group before its own; group 0
/// has none.
///
/// The mean is a fold over the tokens in order of position, in f32. It starts at
/// (m, s, a) = (-inf, 0, 0), and each token updates it:
///   m' = max(m, z), s' = s e^(m - m') + e^(z - m'), a' = a e^(m - m') + kv e^(z - m')
/// The entry is a / s. Its bits do not depend on how the tokens are cut into steps.
///
/// The entry is then normed (unless `norm` is empty), rotated (its last table->dim() elements, with
/// the position of the group's first token), multiplied by the Hadamard matrix of order dim /
/// sqrt(dim) if `hadamard`, and written to the row's compressed_out_slots in the pool's layout.
struct Compress {
  const StepView* step = nullptr;        // the step of a layer group with a state
  RowsView kv;                           // [T, halves * dim] f32
  RowsView gate;                         // [T, halves * dim] f32
  std::span<const float> position_bias;  // [ratio, halves * dim]
  std::span<const float> norm;           // [dim], or empty
  float norm_eps = 0;
  const RopeTable* table = nullptr;  // holds every position of the step
  std::int32_t ratio = 0;
  std::int32_t halves = 1;
  std::int32_t dim = 0;
  bool hadamard = false;  // dim is a power of two
  // The layer's states, starting at this compressor's part of a bank. A state is [halves] of
  // [3, dim] f32: m, s and a of the next token's group, then (with two halves) of the group after
  // it.
  StateView state;
};

}  // namespace lathe
