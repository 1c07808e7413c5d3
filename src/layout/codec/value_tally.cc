#include "layout/codec/value_tally.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/float_formats.h"

namespace lathe {
namespace {

// Values above 464, half way from 448 to 480 (which e4m3 does not have), saturate. Values up to
// half of the smallest e4m3 round to 0 (ties to even).
constexpr float kSaturates = 464;
constexpr float kFlushes = 0x1p-10f;

// The largest finite magnitude in a row.
float look(std::span<const float> x, float scale, ValueCounts& counts) {
  const float inverse = 1.0f / scale;
  std::int32_t saturated = 0;
  std::int32_t flushed = 0;
  float largest = 0;
  for (const float v : x) {
    const float a = std::fabs(v);
    const float scaled = a * inverse;
    saturated += scaled > kSaturates ? 1 : 0;
    flushed += (a > 0 ? 1 : 0) & (scaled <= kFlushes ? 1 : 0);
    const float finite = a <= std::numeric_limits<float>::max() ? a : 0;
    largest = std::max(largest, finite);
  }
  counts.stored += std::ssize(x);
  counts.saturated += saturated;
  counts.flushed += flushed;
  return largest;
}

}  // namespace

void ValueCounts::add(const ValueCounts& other) {
  stored += other.stored;
  saturated += other.saturated;
  flushed += other.flushed;
  largest_key = std::max(largest_key, other.largest_key);
  largest_value = std::max(largest_value, other.largest_value);
}

void ValueTally::add(const RowsView& rows, std::span<const Slot> slots, const CacheLayout& layout,
                     const TensorScales& scales) {
  const Part* values = layout.find(PartRole::value);
  const auto cols = static_cast<std::size_t>(rows.cols);
  const std::size_t keys = cols - static_cast<std::size_t>(values == nullptr ? 0 : values->elems);
  std::vector<float> row(cols);
  ValueCounts sum;
  for (std::size_t r = 0; r < slots.size(); ++r) {
    if (slots[r].is_hole()) continue;
    const std::byte* from = rows.row(static_cast<std::int64_t>(r));
    if (rows.dtype == DType::f32) {
      std::memcpy(row.data(), from, cols * sizeof(float));
    } else {
      for (std::size_t i = 0; i < cols; ++i) {
        bf16 x;
        std::memcpy(&x, from + i * sizeof x, sizeof x);
        row[i] = to_f32(x);
      }
    }
    const std::span all(row);
    sum.largest_key = std::max(sum.largest_key, look(all.first(keys), scales.key, sum));
    sum.largest_value = std::max(sum.largest_value, look(all.subspan(keys), scales.value, sum));
  }
  add(sum);
}

void ValueTally::add(const ValueCounts& counts) {
  const std::lock_guard lock(guard_);
  counts_.add(counts);
}

ValueCounts ValueTally::counts() const {
  const std::lock_guard lock(guard_);
  return counts_;
}

}  // namespace lathe
