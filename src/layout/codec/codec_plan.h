// What the codecs of all devices share: a layout as runs of a row, jobs with checked arguments, and
// the checks. Internal to codecs.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "layout/codec/codec.h"

namespace lathe {

#define LATHE_SCALE_SOURCES(X) X(plain) X(key_tensor) X(value_tensor) X(tile_f32) X(tile_ue8m0)
LATHE_ENUM(ScaleSource, LATHE_SCALE_SOURCES)

/// A part's place in a page: token i has `bytes` bytes at start + i * step.
struct PlacedPart {
  std::int64_t start = 0;
  std::int32_t step = 0;
  std::int32_t bytes = 0;
};

/// A run of row elements that are stored in one part and scaled in the same way.
struct ValueRun {
  DType dtype = DType::bf16;  // bf16 (plain), e4m3 or e2m1
  ScaleSource source = ScaleSource::plain;
  std::int32_t first = 0;  // first element in the row
  std::int32_t elems = 0;
  std::int32_t tile = 0;        // elements per scale; 0: no tiles
  std::int32_t first_tile = 0;  // the run's first scale in `scales`
  PlacedPart values;
  PlacedPart scales;  // only if there are tiles

  std::int32_t tiles() const { return tile == 0 ? 0 : elems / tile; }
};

struct RowPlan {
  RowPlan(const CacheLayout& layout, std::int32_t page_size);

  ScalePolicy policy;
  std::int32_t elems;      // of a row
  std::int32_t run_count;  // 1 or 2
  std::array<ValueRun, 2> runs{};
  PlacedPart pad;  // bytes = 0: no padding
};

inline float tensor_scale(ScaleSource source, const TensorScales& scales) {
  return source == ScaleSource::value_tensor ? scales.value : scales.key;
}

/// Encodes rows[i] into slots[i]; skips holes.
struct EncodeJob {
  RowsView rows;
  std::span<const Slot> slots;
  PoolView pool;
  TensorScales scales;
};

/// Decodes slots[i] to out[i]; slot first + i if `slots` is empty.
struct DecodeJob {
  ConstPoolView pool;
  std::span<const Slot> slots;
  Slot first;
  MutableRowsView out;
  TensorScales scales;

  Slot slot(std::int64_t i) const {
    return slots.empty() ? Slot(first.value + static_cast<std::int32_t>(i))
                         : slots[static_cast<std::size_t>(i)];
  }
};

struct RequantJob {
  ConstPoolView src;
  std::span<const Slot> src_slots;
  PoolView dst;
  std::span<const Slot> dst_slots;
  TensorScales src_scales;
  TensorScales dst_scales;
};

/// The scale of a tile with largest finite magnitude `amax` (the rules are in codec.h).
float tile_scale(float amax, DType dtype, ScalePolicy policy);

// Checks that several operations share. `field` is the name of the argument.
Result<void> check_rows(const char* field, const RowsView& rows, std::int64_t count,
                        std::int64_t cols, EnumSet<DType> dtypes = {DType::bf16, DType::f32});
inline RowsView read_only(const MutableRowsView& v) {
  return {v.data, v.dtype, v.rows, v.cols, v.row_stride};
}
Result<void> check_slots(const char* field, std::span<const Slot> slots, const ConstPoolView& pool);
Result<void> check_pool(const char* field, const ConstPoolView& pool);
Result<void> check_scale(const char* field, float scale);
Result<void> check_scales(const char* field, const TensorScales& scales);
/// All checks of requantize() except the values of slots.
Result<void> check_requantize(const ConstPoolView& src, std::size_t src_slots,
                              const ConstPoolView& dst, std::size_t dst_slots,
                              const TensorScales& src_scales, const TensorScales& dst_scales);

}  // namespace lathe
