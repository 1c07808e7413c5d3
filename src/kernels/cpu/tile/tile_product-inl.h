// A register-blocked f32 GEMM and the transposition of rows, for kernels over tiles of keys.
// Included once per SIMD target (Highway), so it calls nothing from the standard library (see
// layout/codec/codec_fast-inl.h).
//
// Every sum goes over k in ascending order, one fused multiply-add at a time, whatever the
// blocking. So a row's bits do not depend on other rows.
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(LATHE_KERNELS_CPU_TILE_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LATHE_KERNELS_CPU_TILE_PRODUCT_INL_H_
#undef LATHE_KERNELS_CPU_TILE_PRODUCT_INL_H_
#else
#define LATHE_KERNELS_CPU_TILE_PRODUCT_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/common/unroll.h"
#include "kernels/cpu/tile/tile_softmax-inl.h"  // TileTag
#include "kernels/cpu/tile/tile_types.h"

HWY_BEFORE_NAMESPACE();
namespace lathe {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Rows of a register block. With four vectors per row it fills 24 of 32, or 8 of 16, registers.
#if HWY_TARGET <= HWY_AVX3 && defined(HWY_TARGET) && HWY_ARCH_X86
inline constexpr std::size_t kBlockRows = 6;
#else
inline constexpr std::size_t kBlockRows = 2;
#endif

// Formats of a GEMM's right operand: kDepth steps of k per element, in rows at a stride or (RowsOf)
// at the addresses of a list.
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
// A word has two bf16 of consecutive k, the lower k in the low half.
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

// Operands of c = a b or c += a b: a [rows, depth], b [depth / kDepth, columns], c [rows, columns].
// Strides are in elements.
template <class Operand>
struct Product {
  const float* a;
  std::size_t a_stride;
  typename Operand::Base b;
  std::size_t b_stride;
  float* c;
  std::size_t c_stride;
  std::size_t depth;  // a multiple of kDepth
  bool add;           // add to c; otherwise overwrite it
  LinesAhead* ahead;  // null: nothing to prefetch
};

// Lines to prefetch per step of k: decoding with four query heads has 256 steps for the 512 lines
// of a tile.
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

// Steps of k that all rows finish before the next ones, so that the block of b stays in the
// first-level cache.
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

// Transposes four rows of four words: to[j * stride .. + 4) = word j of each row.
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

// Rows per call of transpose_rows().
inline constexpr std::size_t kTransposed = 16;

// Transposes kTransposed rows of `words` words (a multiple of 4): to[j * stride + r] = word j of
// row r.
HWY_INLINE void transpose_rows(const std::uint8_t* const* rows, std::size_t words,
                               std::uint32_t* to, std::size_t stride, LinesAhead* ahead) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  // A vector has four words of each of rows i, 4 + i, 8 + i and 12 + i, so that after interleaving
  // within its blocks the rows are consecutive.
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

}  // namespace HWY_NAMESPACE
}  // namespace lathe
HWY_AFTER_NAMESPACE();

#endif  // LATHE_KERNELS_CPU_TILE_PRODUCT_INL_H_
