// Rotates rows of heads and converts their number format, for apply_rope() and
// rope_quantize_write(). Internal to src/layout; arguments are already checked.
#pragma once

#include <cstdint>
#include <span>

#include "base/rows_view.h"
#include "layout/rope/rope.h"

namespace lathe {

/// out[t] = in[t] with the rotary part of each head rotated. All widths are multiples of 16.
struct RotateJob {
  RowsView in;                          // [T, heads * width] bf16 or f32
  MutableRowsView out;                  // [T, heads * width] bf16, f32 or e4m3; may be `in`
  std::span<const LocalPos> positions;  // [T]; -1 gives zeros; in place: leaves the row unchanged
  const RopeTable* table = nullptr;     // null: nothing rotates
  std::int64_t heads = 1;
  std::int64_t first = 0;  // first element of the rotary part in a head
  RopeDirection direction = RopeDirection::forward;
  float inverse_scale = 1;  // e4m3 out: to_e4m3(x * inverse_scale)

  bool in_place() const { return in.data == out.data; }
  std::int64_t width() const { return in.cols / heads; }
  std::int64_t rotary() const { return table == nullptr ? 0 : table->dim(); }
};

// If `in` and `out` have the same format, elements outside the rotary part are copied bit for bit.
void rotate_reference(const RotateJob& job);
void rotate_fast(const RotateJob& job);

inline void rotate(const RotateJob& job, CodecPath path) {
  path == CodecPath::fast ? rotate_fast(job) : rotate_reference(job);
}

}  // namespace lathe
