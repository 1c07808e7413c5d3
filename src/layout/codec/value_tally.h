// ValueTally: counts the values of one layer that saturate or become zero when they are stored at
// the pool's scales, and how large they are.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>

#include "base/rows_view.h"
#include "layout/codec/codec.h"
#include "layout/layout.h"
#include "layout/pages/index_units.h"

namespace lathe {

/// Counts of values, and magnitudes before they were scaled. In a layout whose parts are not e4m3
/// at a tensor scale nothing saturates or is flushed; the counts say what would be.
struct ValueCounts {
  std::int64_t stored = 0;
  std::int64_t saturated = 0;  // rounding alone would have sent them beyond +-448
  std::int64_t flushed = 0;    // not zero, stored as zero
  float largest_key = 0;       // finite magnitudes; a GPU leaves these 0
  float largest_value = 0;     // of the `value` part; 0 in layouts without one

  void add(const ValueCounts& other);
};

/// Costs a pass over the rows. Any number of threads may add at once.
class ValueTally {
 public:
  /// Counts the rows whose slot is not a hole. rows: [N, layout.row_elems()] bf16 or f32, as they
  /// are encoded; slots: [N].
  void add(const RowsView& rows, std::span<const Slot> slots, const CacheLayout& layout,
           const TensorScales& scales);
  void add(const ValueCounts& counts);
  ValueCounts counts() const;

 private:
  mutable std::mutex guard_;
  ValueCounts counts_;
};

}  // namespace lathe
