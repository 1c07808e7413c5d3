// The micro-kernels that attention over tiles of keys is made of: a register-blocked product, the
// transposition of a tile of keys, 2^x, one online-softmax step and the fold of two partial states.
// Included once per SIMD target (Highway).
//
// Every number has one order of accumulation, which no blocking changes: products run over k in
// ascending order, one fused multiply-add at a time, so a row's bits do not depend on the rows
// beside it. Nothing from the standard library is called here (see layout/codec_fast-inl.h).
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(LATHE_KERNELS_CPU_TILE_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LATHE_KERNELS_CPU_TILE_MATH_INL_H_
#undef LATHE_KERNELS_CPU_TILE_MATH_INL_H_
#else
#define LATHE_KERNELS_CPU_TILE_MATH_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/tile_types.h"

// Loops over registers have to vanish, or the arrays of vectors would live in memory.
#ifndef LATHE_UNROLL
#ifdef __clang__
#define LATHE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define LATHE_UNROLL _Pragma("GCC unroll 8")
#endif
#endif

HWY_BEFORE_NAMESPACE();
namespace lathe {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using TileTag = hn::CappedTag<float, 16>;
using TileVec = hn::Vec<TileTag>;

// Rows of a register block: with four vectors a row it fills 24 of 32, or 8 of 16 registers.
#if HWY_TARGET <= HWY_AVX3 && defined(HWY_TARGET) && HWY_ARCH_X86
inline constexpr std::size_t kBlockRows = 6;
#else
inline constexpr std::size_t kBlockRows = 2;
#endif

// How the right operand of a product lies: kDepth steps of k per element, rows of elements at a
// stride, or (RowsOf) wherever a list of pointers says.
template <class Element>
struct Strided {
  using T = Element;
  using Base = const Element*;
  static HWY_INLINE const T* row(Base b, std::size_t stride, std::size_t i) {
    return b + i * stride;
  }
  static constexpr std::size_t stride(std::size_t columns) { return columns; }
};
struct FloatOperand : Strided<float> {
  static constexpr int kDepth = 1;
  static HWY_INLINE void load(const T* p, TileVec* b) { b[0] = hn::LoadU(TileTag(), p); }
};
struct Bf16Operand : Strided<std::uint16_t> {
  static constexpr int kDepth = 1;
  static HWY_INLINE void load(const T* p, TileVec* b) {
    const TileTag d;
    const hn::RebindToUnsigned<TileTag> du;
    const hn::Rebind<std::uint16_t, TileTag> d16;
    b[0] = hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, p))));
  }
};
// Two bf16 of consecutive k in a word, the lower k in the low half.
struct Bf16PairOperand : Strided<std::uint32_t> {
  static constexpr int kDepth = 2;
  static HWY_INLINE void load(const T* p, TileVec* b) {
    const TileTag d;
    const hn::RebindToUnsigned<TileTag> du;
    const auto u = hn::LoadU(du, p);
    b[0] = hn::BitCast(d, hn::ShiftLeft<16>(u));
    b[1] = hn::BitCast(d, hn::And(u, hn::Set(du, 0xffff0000u)));
  }
};

template <class Operand>
struct RowsOf {
  using T = typename Operand::T;
  using Base = const T* const*;
  static constexpr int kDepth = Operand::kDepth;
  static HWY_INLINE const T* row(Base b, std::size_t, std::size_t i) { return b[i]; }
  static constexpr std::size_t stride(std::size_t) { return 1; }
  static HWY_INLINE void load(const T* p, TileVec* b) { Operand::load(p, b); }
};

// Operands of c (+)= a b: a [rows, depth], b [depth / kDepth, columns], c [rows, columns]; strides
// in elements.
template <class Operand>
struct Product {
  const float* a;
  std::size_t a_stride;
  typename Operand::Base b;
  std::size_t b_stride;
  float* c;
  std::size_t c_stride;
  std::size_t depth;  // a multiple of kDepth
  bool add;           // to what c holds; else c is overwritten
  LinesAhead* ahead;  // null: nothing to ask for
};

// A decode step of four query heads takes 256 of these steps for a tile of 512 lines.
inline constexpr std::size_t kLinesAStep = 2;

template <class Operand, std::size_t kRows, std::size_t kVectors>
HWY_NOINLINE void product_block(const Product<Operand>& p, std::size_t row, std::size_t column) {
  const TileTag d;
  constexpr std::size_t kDepth = Operand::kDepth;
  const std::size_t lanes = hn::Lanes(d);
  const float* HWY_RESTRICT a = p.a + row * p.a_stride;
  const typename Operand::Base b = p.b;
  float* HWY_RESTRICT c = p.c + row * p.c_stride + column;
  TileVec sum[kRows][kVectors];
  LATHE_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
    LATHE_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
      sum[r][v] = p.add ? hn::LoadU(d, c + r * p.c_stride + v * lanes) : hn::Zero(d);
    }
  }
  const std::size_t a_stride = p.a_stride;
  const std::size_t b_stride = p.b_stride;
  LinesAhead* const ahead = p.ahead;
  for (std::size_t k = 0; k < p.depth; k += kDepth) {
    if (ahead != nullptr) {
      LATHE_UNROLL for (std::size_t i = 0; i < kLinesAStep; ++i) ahead->step();
    }
    const auto* HWY_RESTRICT from = Operand::row(b, b_stride, k / kDepth) + column;
    TileVec in[kVectors][kDepth];
    LATHE_UNROLL for (std::size_t v = 0; v < kVectors; ++v) Operand::load(from + v * lanes, in[v]);
    LATHE_UNROLL for (std::size_t i = 0; i < kDepth; ++i) {
      LATHE_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
        const auto x = hn::Set(d, a[r * a_stride + k + i]);
        LATHE_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
          sum[r][v] = hn::MulAdd(x, in[v][i], sum[r][v]);
        }
      }
    }
  }
  LATHE_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
    LATHE_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
      hn::StoreU(sum[r][v], d, c + r * p.c_stride + v * lanes);
    }
  }
}

template <class Operand, std::size_t kVectors>
HWY_INLINE void product_columns(const Product<Operand>& p, std::size_t rows, std::size_t column) {
  std::size_t blocks = (rows + kBlockRows - 1) / kBlockRows;
  for (std::size_t row = 0; row < rows; --blocks) {
    const std::size_t count = (rows - row + blocks - 1) / blocks;  // 8 rows as 4 + 4, not 6 + 2
    switch (count) {
      case 1:
        product_block<Operand, 1, kVectors>(p, row, column);
        break;
      case 2:
        product_block<Operand, 2, kVectors>(p, row, column);
        break;
      case 3:
        product_block < Operand, kBlockRows<3 ? 1 : 3, kVectors>(p, row, column);
        break;
      case 4:
        product_block < Operand, kBlockRows<4 ? 1 : 4, kVectors>(p, row, column);
        break;
      case 5:
        product_block < Operand, kBlockRows<5 ? 1 : 5, kVectors>(p, row, column);
        break;
      default:
        product_block<Operand, kBlockRows, kVectors>(p, row, column);
        break;
    }
    row += count;
  }
}

// Steps of k that rows take together, so that their part of b stays in the first-level cache.
inline constexpr std::size_t kDepthBlock = 128;

// columns: a multiple of 16.
template <class Operand>
HWY_INLINE void product(const Product<Operand>& p, std::size_t rows, std::size_t columns) {
  const std::size_t lanes = hn::Lanes(TileTag());
  for (std::size_t k = 0; k < p.depth; k += kDepthBlock) {
    Product<Operand> part = p;
    part.a += k;
    part.b += k / Operand::kDepth * p.b_stride;
    part.depth = p.depth - k < kDepthBlock ? p.depth - k : kDepthBlock;
    part.add = p.add || k > 0;
    std::size_t column = 0;
    for (; column + 4 * lanes <= columns; column += 4 * lanes) {
      product_columns<Operand, 4>(part, rows, column);
    }
    for (; column + 2 * lanes <= columns; column += 2 * lanes) {
      product_columns<Operand, 2>(part, rows, column);
    }
    for (; column < columns; column += lanes) product_columns<Operand, 1>(part, rows, column);
  }
}

// ---------------------------------------------------------------- transposition

// Four rows of four words to columns: to[j * stride .. + 4) = word j of each row.
#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void transpose_4x4(const void* r0, const void* r1, const void* r2, const void* r3,
                              std::uint32_t* to, std::size_t stride) {
  const void* const rows[4] = {r0, r1, r2, r3};
  for (std::size_t r = 0; r < 4; ++r) {
    std::uint32_t words[4];
    std::memcpy(words, rows[r], 16);
    for (std::size_t j = 0; j < 4; ++j) to[j * stride + r] = words[j];
  }
}
#else
HWY_INLINE void transpose_4x4(const void* r0, const void* r1, const void* r2, const void* r3,
                              std::uint32_t* to, std::size_t stride) {
  const hn::FixedTag<std::uint32_t, 4> d;
  const hn::FixedTag<std::uint64_t, 2> d2;
  const auto load = [&](const void* p) HWY_ATTR {
    return hn::BitCast(
        d, hn::LoadU(hn::FixedTag<std::uint8_t, 16>(), static_cast<const std::uint8_t*>(p)));
  };
  const auto a = load(r0), b = load(r1), c = load(r2), e = load(r3);
  const auto ab0 = hn::BitCast(d2, hn::InterleaveLower(d, a, b));
  const auto ab1 = hn::BitCast(d2, hn::InterleaveUpper(d, a, b));
  const auto ce0 = hn::BitCast(d2, hn::InterleaveLower(d, c, e));
  const auto ce1 = hn::BitCast(d2, hn::InterleaveUpper(d, c, e));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d2, ab0, ce0)), d, to);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d2, ab0, ce0)), d, to + stride);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d2, ab1, ce1)), d, to + 2 * stride);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d2, ab1, ce1)), d, to + 3 * stride);
}
#endif

// Rows that transpose_rows takes at a time.
inline constexpr std::size_t kTransposed = 16;

// kTransposed rows of `words` words (a multiple of 4) to columns: to[j * stride + r] = word j of
// row r.
HWY_INLINE void transpose_rows(const std::uint8_t* const* rows, std::size_t words,
                               std::uint32_t* to, std::size_t stride, LinesAhead* ahead) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  // A vector holds four words of rows i, 4 + i, 8 + i and 12 + i, so that the steps inside its
  // blocks end with consecutive rows.
  const hn::FixedTag<std::uint32_t, 4> d4;
  const hn::FixedTag<std::uint32_t, 8> d8;
  const hn::FixedTag<std::uint32_t, 16> d;
  const hn::FixedTag<std::uint64_t, 8> d2;
  for (std::size_t k = 0; k < words; k += 4) {
    if (ahead != nullptr) {
      LATHE_UNROLL for (std::size_t i = 0; i < kLinesAStep; ++i) ahead->step();
    }
    const auto load = [&](std::size_t i) HWY_ATTR {
      const auto block = [&](std::size_t r) HWY_ATTR {
        return hn::LoadU(d4, reinterpret_cast<const std::uint32_t*>(rows[r] + 4 * k));
      };
      return hn::Combine(d, hn::Combine(d8, block(12 + i), block(8 + i)),
                         hn::Combine(d8, block(4 + i), block(i)));
    };
    const auto r0 = load(0), r1 = load(1), r2 = load(2), r3 = load(3);
    const auto a0 = hn::BitCast(d2, hn::InterleaveLower(d, r0, r1));
    const auto a1 = hn::BitCast(d2, hn::InterleaveUpper(d, r0, r1));
    const auto b0 = hn::BitCast(d2, hn::InterleaveLower(d, r2, r3));
    const auto b1 = hn::BitCast(d2, hn::InterleaveUpper(d, r2, r3));
    std::uint32_t* at = to + k * stride;
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d2, a0, b0)), d, at);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d2, a0, b0)), d, at + stride);
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d2, a1, b1)), d, at + 2 * stride);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d2, a1, b1)), d, at + 3 * stride);
  }
#else
  (void)ahead;
  for (std::size_t r = 0; r < kTransposed; r += 4) {
    for (std::size_t k = 0; k < words; k += 4) {
      transpose_4x4(rows[r] + 4 * k, rows[r + 1] + 4 * k, rows[r + 2] + 4 * k, rows[r + 3] + 4 * k,
                    to + k * stride + r, stride);
    }
  }
#endif
}

// ---------------------------------------------------------------- softmax

// 2^x for x <= 0, within 2 ulp; 0 below -126 (no subnormals), exactly 1 at 0; NaN stays NaN.
HWY_INLINE TileVec exp2_below(TileVec x) {
  const TileTag d;
  const hn::RebindToSigned<TileTag> di;
  const auto whole = hn::Round(x);
  const auto f = hn::Sub(x, whole);
  // The Taylor series of 2^f to degree 7; on |f| <= 1/2 the rest is below 6e-9.
  auto y = hn::Set(d, 1.5252733804059841e-05f);
  y = hn::MulAdd(y, f, hn::Set(d, 1.5403530393381608e-04f));
  y = hn::MulAdd(y, f, hn::Set(d, 1.3333558146428443e-03f));
  y = hn::MulAdd(y, f, hn::Set(d, 9.6181291076284772e-03f));
  y = hn::MulAdd(y, f, hn::Set(d, 5.5504108664821580e-02f));
  y = hn::MulAdd(y, f, hn::Set(d, 2.4022650695910072e-01f));
  y = hn::MulAdd(y, f, hn::Set(d, 6.9314718055994531e-01f));
  y = hn::MulAdd(y, f, hn::Set(d, 1.0f));
  const auto exponent = hn::Add(hn::ConvertTo(di, whole), hn::Set(di, 127));
  y = hn::Mul(y, hn::BitCast(d, hn::ShiftLeft<23>(exponent)));
  return hn::IfThenElse(hn::Lt(x, hn::Set(d, -126.0f)), hn::Zero(d), y);
}

HWY_INLINE float exp2_below(float x) { return hn::GetLane(exp2_below(hn::Set(TileTag(), x))); }

HWY_INLINE float minus_infinity() { return -__builtin_inff(); }
// Differences of infinities would be NaN; against 0 an empty state stays empty.
HWY_INLINE float finite_base(float max) { return max == minus_infinity() ? 0.0f : max; }

// One row of scores [kTile], of which begin .. end-1 count, and of those the ones whose `valid`
// is not 0 (valid may be null: all). Replaces scores by 2^(s - new max), 0 where none counts, and
// returns the factor for what was accumulated so far.
HWY_INLINE float softmax_step(float* s, std::size_t begin, std::size_t end, const float* valid,
                              SoftState& state) {
  const TileTag d;
  const std::size_t lanes = hn::Lanes(d);
  const auto none = hn::Set(d, minus_infinity());
  auto most = none;
  if (begin == 0 && end == kTile && valid == nullptr) {
    for (std::size_t i = 0; i < kTile; i += lanes) most = hn::Max(most, hn::LoadU(d, s + i));
  } else {
    const auto from = hn::Set(d, static_cast<float>(begin));
    const auto to = hn::Set(d, static_cast<float>(end));
    for (std::size_t i = 0; i < kTile; i += lanes) {
      const auto at = hn::Iota(d, static_cast<float>(i));
      auto in = hn::And(hn::Ge(at, from), hn::Lt(at, to));
      if (valid != nullptr) in = hn::And(in, hn::Ne(hn::LoadU(d, valid + i), hn::Zero(d)));
      const auto x = hn::IfThenElse(in, hn::LoadU(d, s + i), none);
      hn::StoreU(x, d, s + i);
      most = hn::Max(most, x);
    }
  }
  const float tile_max = hn::GetLane(hn::MaxOfLanes(d, most));
  const float max = tile_max > state.max ? tile_max : state.max;
  const float base = finite_base(max);
  const auto shift = hn::Set(d, base);
  auto sum = hn::Zero(d);
  for (std::size_t i = 0; i < kTile; i += lanes) {
    const auto p = exp2_below(hn::Sub(hn::LoadU(d, s + i), shift));
    hn::StoreU(p, d, s + i);
    sum = hn::Add(sum, p);
  }
  const float factor = max == state.max ? 1.0f : exp2_below(state.max - base);
  state.sum = state.sum * factor + hn::GetLane(hn::SumOfLanes(d, sum));
  state.max = max;
  return factor;
}

// values *= factor
HWY_INLINE void scale_row(float* values, std::size_t n, float factor) {
  const TileTag d;
  const auto f = hn::Set(d, factor);
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
    hn::StoreU(hn::Mul(hn::LoadU(d, values + i), f), d, values + i);
  }
}

// Adds the state (part, values_part) to (state, values). An empty part changes no bit.
HWY_INLINE void fold_state(SoftState& state, float* values, SoftState part,
                           const float* values_part, std::size_t n) {
  const TileTag d;
  const float max = part.max > state.max ? part.max : state.max;
  const float base = finite_base(max);
  const float a = max == state.max ? 1.0f : exp2_below(state.max - base);
  const float b = max == part.max ? 1.0f : exp2_below(part.max - base);
  const auto fa = hn::Set(d, a);
  const auto fb = hn::Set(d, b);
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
    const auto x = hn::Mul(hn::LoadU(d, values + i), fa);
    hn::StoreU(hn::MulAdd(hn::LoadU(d, values_part + i), fb, x), d, values + i);
  }
  state.sum = state.sum * a + part.sum * b;
  state.max = max;
}

// ---------------------------------------------------------------- a tile of keys

// What query rows meet: keys [depth / kDepth, kTile] in KeyOperand's form, values [kTile, columns].
template <class KeyOperand, class ValueOperand>
struct KeyTile {
  typename KeyOperand::Base keys;
  std::size_t depth;
  typename ValueOperand::Base values;
  std::size_t columns;  // a multiple of 16
  const float* valid;   // [kTile], 0 where there is no key; null: all are keys
};

// Query rows on their way: q is scaled to powers of two (log2 e included).
struct QueryRows {
  const float* q;  // [count, depth]
  float* scores;   // [count, kTile]; scratch
  float* sums;     // [count, columns]
  SoftState* states;
  const RowRange* ranges;
  std::size_t count;
  bool alike;         // all ranges are equal
  LinesAhead* ahead;  // null: nothing to ask for
};

// sums[row] += p[row][begin .. end) values[begin .. end)
template <class K, class V>
HWY_INLINE void weigh_range(const KeyTile<K, V>& tile, const QueryRows& rows, std::size_t row,
                            std::size_t count, std::int32_t begin, std::int32_t end) {
  if (begin >= end) return;
  const auto first = static_cast<std::size_t>(begin);
  const std::size_t stride = V::stride(tile.columns);
  product(Product<V>{rows.scores + row * kTile + first, kTile, tile.values + first * stride, stride,
                     rows.sums + row * tile.columns, tile.columns,
                     static_cast<std::size_t>(end - begin), true, rows.ahead},
          count, tile.columns);
}

// Values outside a row's range are not touched, so that what they hold cannot matter (0 * NaN):
// rows go together over the keys that they share and alone over the rest, in ascending order.
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
    if (factor != 1.0f) scale_row(rows.sums + r * tile.columns, tile.columns, factor);
  }
  weigh_values(tile, rows);
}

}  // namespace HWY_NAMESPACE
}  // namespace lathe
HWY_AFTER_NAMESPACE();

#endif  // LATHE_KERNELS_CPU_TILE_MATH_INL_H_
