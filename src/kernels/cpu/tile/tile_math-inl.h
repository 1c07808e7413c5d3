// Scores and weighted values of query rows over a tile of keys. Included once per SIMD target
// (Highway). tile_product-inl.h defines the order of accumulation.
#include <cstddef>
#include <cstdint>

#if defined(LATHE_KERNELS_CPU_TILE_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LATHE_KERNELS_CPU_TILE_MATH_INL_H_
#undef LATHE_KERNELS_CPU_TILE_MATH_INL_H_
#else
#define LATHE_KERNELS_CPU_TILE_MATH_INL_H_
#endif

#include "kernels/cpu/tile/tile_product-inl.h"
#include "kernels/cpu/tile/tile_softmax-inl.h"
#include "kernels/cpu/tile/tile_types.h"

HWY_BEFORE_NAMESPACE();
namespace lathe {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// ---------------------------------------------------------------- a tile of keys

// A tile: keys [depth / kDepth, kTile] in KeyOperand's form, values [kTile, columns].
template <class KeyOperand, class ValueOperand>
struct KeyTile {
  typename KeyOperand::Base keys;
  std::size_t depth;
  typename ValueOperand::Base values;
  std::size_t columns;  // a multiple of 16
  const float* valid;   // [kTile], 0 for a missing key; null: none is missing
};

// Query rows and their running results. q is scaled for a softmax in powers of two (log2 e).
struct QueryRows {
  const float* q;  // [count, depth]
  float* scores;   // [count, kTile]; scratch
  float* acc;      // [count, columns]
  SoftState* states;
  const RowRange* ranges;
  std::size_t count;
  bool alike;         // all ranges are equal
  LinesAhead* ahead;  // null: nothing to prefetch
};

// acc[row] += p[row][begin .. end) values[begin .. end)
template <class K, class V>
HWY_INLINE void weigh_range(const KeyTile<K, V>& tile, const QueryRows& rows, std::size_t row,
                            std::size_t count, std::int32_t begin, std::int32_t end) {
  if (begin >= end) return;
  const auto first = static_cast<std::size_t>(begin);
  const std::size_t stride = V::stride(tile.columns);
  product(Product<V>{rows.scores + row * kTile + first, kTile, tile.values + first * stride, stride,
                     rows.acc + row * tile.columns, tile.columns,
                     static_cast<std::size_t>(end - begin), true, rows.ahead},
          count, tile.columns);
}

// Values outside a row's range are never read: 0 * NaN would be NaN. So rows are multiplied
// together for the keys that they share, and one by one for the rest, in ascending order.
template <class K, class V>
HWY_INLINE void weigh_values(const KeyTile<K, V>& tile, const QueryRows& rows) {
  if (rows.alike) {
    return weigh_range(tile, rows, 0, rows.count, rows.ranges[0].begin, rows.ranges[0].end);
  }
  for (std::size_t row = 0; row < rows.count; row += kBlockRows) {
    const std::size_t left = rows.count - row;
    const std::size_t count = left < kBlockRows ? left : kBlockRows;
    std::int32_t begin = 0;
    std::int32_t end = kTile;
    for (std::size_t r = row; r < row + count; ++r) {
      const RowRange& own = rows.ranges[r];
      begin = own.begin > begin ? own.begin : begin;
      end = own.end < end ? own.end : end;
    }
    const bool shared = begin < end;
    for (std::size_t r = row; r < row + count; ++r) {
      const RowRange& own = rows.ranges[r];
      weigh_range(tile, rows, r, 1, own.begin, shared ? begin : own.end);
    }
    if (!shared) continue;
    weigh_range(tile, rows, row, count, begin, end);
    for (std::size_t r = row; r < row + count; ++r) {
      weigh_range(tile, rows, r, 1, end, rows.ranges[r].end);
    }
  }
}

template <class K, class V>
HWY_INLINE void attend_tile(const KeyTile<K, V>& tile, const QueryRows& rows) {
  product(Product<K>{rows.q, tile.depth, tile.keys, kTile, rows.scores, kTile, tile.depth, false,
                     rows.ahead},
          rows.count, kTile);
  for (std::size_t r = 0; r < rows.count; ++r) {
    const RowRange& range = rows.ranges[r];
    if (range.begin >= range.end) continue;
    const float factor =
        softmax_step(rows.scores + r * kTile, static_cast<std::size_t>(range.begin),
                     static_cast<std::size_t>(range.end), tile.valid, rows.states[r]);
    if (factor != 1.0f) scale_row(rows.acc + r * tile.columns, tile.columns, factor);
  }
  weigh_values(tile, rows);
}

}  // namespace HWY_NAMESPACE
}  // namespace lathe
HWY_AFTER_NAMESPACE();

#endif  // LATHE_KERNELS_CPU_TILE_MATH_INL_H_
