// Converts query rows to f32, and attention results from f32 to the caller's dtypes, with SIMD.
#pragma once

#include <cstdint>

#include "attn/attend.h"

namespace lathe {

inline constexpr std::int64_t kIoPad = 16;

/// to = elements first .. first + count - 1 of row r of a view of f32, bf16 or e4m3, times `scale`.
void load_row(const RowsView& view, std::int64_t r, std::int64_t first, std::int64_t count,
              float scale, float* to);

/// The finished softmax of one row and head. Running states use powers of two (tile_softmax-inl.h).
struct Finished {
  double lse;    // natural log; -inf if there is no key
  float factor;  // multiplies the accumulated values; 0 if there is no key
  bool empty;    // there is no key
};

/// sink: the head's raw logit, or null. value_scale multiplies the output.
Finished finish_softmax(float max, float sum, const float* sink, float value_scale);

/// Writes values [count] * factor to elements first .. of row r of a view of f64, f32 or bf16;
/// zeros if the state is empty. Reads `values` up to a multiple of kIoPad.
void store_output(const MutableRowsView& view, std::int64_t r, std::int64_t first,
                  std::int64_t count, const float* values, const Finished& state);

/// Writes one element of args.lse, in its convention, if the caller wants it.
void store_lse(const AttendArgs& args, std::int64_t r, std::int64_t head, const Finished& state);

}  // namespace lathe
