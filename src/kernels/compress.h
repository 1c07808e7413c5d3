// Compressed entries of window_compressed layers: the arguments that every device's operator takes.
#pragma once

#include <cstdint>
#include <span>

#include "attn/compressor.h"
#include "base/rows_view.h"
#include "layout/pages/state_pool.h"
#include "layout/rope/rope.h"
#include "step/step.h"

namespace lathe {

/// Every token gives each channel of an entry a value kv and a logit z = gate + position_bias, of
/// its place p % ratio in its group. An entry of group g = p / ratio is the mean of the values of
/// its tokens with weights e^z, per channel. With two halves of channels the first half goes to the
/// entry of group g + 1 and the second to that of group g, so that entries of neighbouring groups
/// overlap; group 0 has no tokens before it.
///
/// The mean is a fold over the tokens in order of position, in f32: of (m, s, a), at first
/// (-inf, 0, 0), a token makes
///   m' = max(m, z), s' = s e^(m - m') + e^(z - m'), a' = a e^(m - m') + kv e^(z - m')
/// and the entry is a / s. So it has the same bits however its tokens come.
///
/// An entry is then normed, rotated (the last table->dim() elements, as at its group's first
/// position), turned by the Hadamard matrix of order dim over sqrt(dim) where wanted, and written
/// to the row's compressed_out_slots by the pool's layout.
struct Compress {
  const StepView* step = nullptr;        // of a group with a state
  RowsView kv;                           // [T, halves * dim] f32
  RowsView gate;                         // [T, halves * dim] f32
  std::span<const float> position_bias;  // [ratio, halves * dim]
  std::span<const float> norm;           // [dim]
  float norm_eps = 0;
  const RopeTable* table = nullptr;  // holds every position of the step
  std::int32_t ratio = 0;
  std::int32_t halves = 1;
  std::int32_t dim = 0;
  bool hadamard = false;  // dim is a power of two
  // Of the layer, from this compressor's share of a bank on: [halves] of [3, dim] f32, m, s and a,
  // of the group of the next token and (second half) of the group after it.
  StateView state;
};

/// Of a request's last rows, how many leave a state each (StepView::state_before).
constexpr std::int64_t last_states(const StepView& step, const StateView& state) {
  return step.phase == Phase::verify ? state.banks : 1;
}

/// Whether the row at position p of a request, whose last row stands before `end`, leaves a state.
constexpr bool leaves_state(const StepView& step, const StateView& state, std::int64_t p,
                            std::int64_t end) {
  return p >= end - last_states(step, state) || (p + 1) % step.state_tokens == 0;
}

}  // namespace lathe
