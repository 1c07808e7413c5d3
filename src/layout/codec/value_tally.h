// ValueTally: counts the values of a layer that saturate or become zero in the cache with the given
// scales, and finds the largest magnitudes.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>

#include "base/rows_view.h"
#include "layout/codec/codec.h"
#include "layout/layout.h"
#include "layout/pages/index_units.h"

namespace lathe {

/// Counts of values, and magnitudes before scaling. In a layout without e4m3 parts at a tensor
/// scale nothing saturates or becomes zero; then the counts say what would at these scales.
struct ValueCounts {
  std::int64_t stored = 0;
  std::int64_t saturated = 0;  // rounding alone would have sent them beyond +-448
  std::int64_t flushed = 0;    // not zero, but stored as zero
  float largest_key = 0;       // largest finite magnitude; 0 on a GPU
  float largest_value = 0;     // of the `value` part; 0 if the layout has none

  void add(const ValueCounts& other);
};

/// Thread-safe. Counting costs a pass over the rows.
class ValueTally {
 public:
  /// Counts the rows that have a slot (not a hole). rows: [N, layout.row_elems()] bf16 or f32, as
  /// passed to encode_rows(); slots: [N].
  void add(const RowsView& rows, std::span<const Slot> slots, const CacheLayout& layout,
           const TensorScales& scales);
  void add(const ValueCounts& counts);
  ValueCounts counts() const;

 private:
  mutable std::mutex guard_;
  ValueCounts counts_;
};

}  // namespace lathe
