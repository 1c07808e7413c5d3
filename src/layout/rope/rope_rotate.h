// Rotates rows of heads while converting them between number formats: what apply_rope and
// rope_quantize_write are made of. Internal to src/layout; arguments have been checked.
#pragma once

#include <cstdint>
#include <span>

#include "base/rows_view.h"
#include "layout/rope/rope.h"

namespace lathe {

/// out[t] = in[t] with each head's rotary part rotated. All widths are multiples of 16.
struct RotateJob {
  RowsView in;                          // [T, heads * width] bf16 or f32
  MutableRowsView out;                  // [T, heads * width] bf16, f32 or e4m3; may be `in` itself
  std::span<const LocalPos> positions;  // [T]; -1 gives zeros, or leaves the row if out is in
  const RopeTable* table = nullptr;     // null: nothing rotates
  std::int64_t heads = 1;
  std::int64_t first = 0;  // of the rotary part in a head
  RopeDirection direction = RopeDirection::forward;
  float inverse_scale = 1;  // e4m3 out: to_e4m3(x * inverse_scale)

  bool in_place() const { return in.data == out.data; }
  std::int64_t width() const { return in.cols / heads; }
  std::int64_t rotary() const { return table == nullptr ? 0 : table->dim(); }
};

// Elements outside the rotary part are copied bit for bit where both formats are equal.
void rotate_reference(const RotateJob& job);
void rotate_fast(const RotateJob& job);

inline void rotate(const RotateJob& job, CodecPath path) {
  path == CodecPath::fast ? rotate_fast(job) : rotate_reference(job);
}

}  // namespace lathe
