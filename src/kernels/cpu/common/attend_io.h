// Converts query rows to f32, and attention results from f32 to the caller's dtypes.
#pragma once

#include <cstdint>

#include "attn/attend.h"

namespace lathe {

inline constexpr std::int64_t kIoPad = 16;

/// Elements first .. first + count - 1 of row r of a view of f32, bf16 or e4m3, times `scale`.
void load_row(const RowsView& view, std::int64_t r, std::int64_t first, std::int64_t count,
              float scale, float* to);

/// A finished softmax of one row and head, from states in powers of two (tile_softmax-inl.h).
struct Finished {
  double lse;    // natural log; -inf without a key
  float factor;  // of the accumulated values; 0 without a key
  bool empty;    // no key
};

/// sink: the head's raw logit, or null. value_scale multiplies the output.
Finished finish_softmax(float max, float sum, const float* sink, float value_scale);

/// values [count] * factor into elements first .. of row r of a view of f64, f32 or bf16; zeros
/// where the state is empty. Up to a multiple of kIoPad of them are read.
void store_output(const MutableRowsView& view, std::int64_t r, std::int64_t first,
                  std::int64_t count, const float* values, const Finished& state);

/// One element of args.lse, by its convention; nothing where there is none.
void store_lse(const AttendArgs& args, std::int64_t r, std::int64_t head, const Finished& state);

}  // namespace lathe
