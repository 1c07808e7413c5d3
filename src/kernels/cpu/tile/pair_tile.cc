// Products of tiles by dot products of bf16 pairs: a block of rows and columns in registers.
#include "kernels/cpu/tile/pair_tile.h"

#include "base/check.h"
#include "kernels/cpu/bf16_dot.h"
#include "kernels/cpu/matmul/matmul_slice.h"
#include "kernels/cpu/unroll.h"

#ifndef LATHE_BF16_DOT

namespace lathe {

void pair_product(const PairProduct&, std::int64_t, std::int64_t) {
  LATHE_CHECK(false, "not on this CPU");
}
void round_to_pairs(const float*, std::int64_t, std::uint16_t*) {
  LATHE_CHECK(false, "not on this CPU");
}
void join_rows(const float*, const float*, std::int64_t, std::uint32_t*) {
  LATHE_CHECK(false, "not on this CPU");
}
void round_weight_row(const WeightView&, std::int64_t, std::uint16_t*) {
  LATHE_CHECK(false, "not on this CPU");
}

}  // namespace lathe

#else

LATHE_BF16_DOT_BEGIN
#include "kernels/cpu/matmul/bf16_codes-inl.h"

namespace lathe {
namespace {

constexpr std::int64_t kBlockRows = 6;  // by four vectors: 24 of 32 registers
constexpr std::int64_t kLanes = 16;
// Pairs that rows take together, so that their part of b (24 KiB) stays in the first-level cache.
constexpr std::int64_t kMostPairs = 96;

template <int kRows, int kVectors>
__attribute__((noinline)) void block(const PairProduct& p) {
  __m512 sum[kRows][kVectors];
  LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
    LATHE_UNROLL for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = p.add ? _mm512_loadu_ps(p.c + r * p.c_stride + v * kLanes) : _mm512_setzero_ps();
    }
  }
  const std::uint16_t* a = p.a;
  const std::uint32_t* b = p.b;
  const std::int64_t a_stride = p.a_stride;
  const std::int64_t b_stride = p.b_stride;
  for (std::int64_t n = p.pairs; n > 0; --n) {
    __m512i in[kVectors];
    LATHE_UNROLL for (int v = 0; v < kVectors; ++v) {
      in[v] = _mm512_loadu_si512(b + v * kLanes);
      keep_in_register(in[v]);
    }
    LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
      std::uint32_t word;
      __builtin_memcpy(&word, a + r * a_stride, sizeof(word));
      __m512i x = _mm512_set1_epi32(static_cast<int>(word));
      keep_in_register(x);
      LATHE_UNROLL for (int v = 0; v < kVectors; ++v) sum[r][v] = dot(sum[r][v], in[v], x);
    }
    a += 2;
    b += b_stride;
  }
  LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
    LATHE_UNROLL for (int v = 0; v < kVectors; ++v) {
      _mm512_storeu_ps(p.c + r * p.c_stride + v * kLanes, sum[r][v]);
    }
  }
}

template <int kVectors>
void columns_of(PairProduct p, std::int64_t rows) {
  std::int64_t blocks = (rows + kBlockRows - 1) / kBlockRows;
  for (std::int64_t row = 0; row < rows; --blocks) {
    const std::int64_t count = (rows - row + blocks - 1) / blocks;  // 8 rows as 4 + 4, not 6 + 2
    switch (count) {
      case 1:
        block<1, kVectors>(p);
        break;
      case 2:
        block<2, kVectors>(p);
        break;
      case 3:
        block<3, kVectors>(p);
        break;
      case 4:
        block<4, kVectors>(p);
        break;
      case 5:
        block<5, kVectors>(p);
        break;
      default:
        block<6, kVectors>(p);
        break;
    }
    row += count;
    p.a += count * p.a_stride;
    p.c += count * p.c_stride;
  }
}

void product(const PairProduct& p, std::int64_t rows, std::int64_t columns) {
  const std::int64_t parts = (p.pairs + kMostPairs - 1) / kMostPairs;
  for (std::int64_t i = 0; i < parts; ++i) {
    const std::int64_t first = p.pairs * i / parts;
    PairProduct part = p;
    part.a += 2 * first;
    part.b += first * p.b_stride;
    part.pairs = p.pairs * (i + 1) / parts - first;
    part.add = p.add || i > 0;
    std::int64_t column = 0;
    const auto next = [&](std::int64_t n) {
      part.b += n;
      part.c += n;
      column += n;
    };
    for (; column + 4 * kLanes <= columns; next(4 * kLanes)) columns_of<4>(part, rows);
    for (; column + 2 * kLanes <= columns; next(2 * kLanes)) columns_of<2>(part, rows);
    for (; column < columns; next(kLanes)) columns_of<1>(part, rows);
  }
}

void round_all(const float* from, std::int64_t n, std::uint16_t* to) {
  std::int64_t i = 0;
  for (; i + kPairLanes <= n; i += kPairLanes) {
    const __m512 a = _mm512_loadu_ps(from + i), b = _mm512_loadu_ps(from + i + kLanes);
    _mm512_storeu_si512(to + i, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a)));
  }
  if (i == n) return;
  const __m512 a = _mm512_maskz_loadu_ps(first16(n - i), from + i);
  const __m512 b = _mm512_maskz_loadu_ps(first16(n - i - kLanes), from + i + kLanes);
  _mm512_mask_storeu_epi16(to + i, static_cast<__mmask32>((std::uint64_t{1} << (n - i)) - 1),
                           reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a)));
}

void join(const float* low, const float* high, std::int64_t n, std::uint32_t* to) {
  alignas(64) std::uint16_t order[32];
  for (int i = 0; i < 32; ++i) order[i] = static_cast<std::uint16_t>(i / 2 + i % 2 * 16);
  const __m512i by_turns = _mm512_load_si512(order);
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const __m512 a = _mm512_loadu_ps(low + i), b = _mm512_loadu_ps(high + i);
    const auto both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a));
    _mm512_storeu_si512(to + i, _mm512_permutexvar_epi16(by_turns, both));
  }
}

void round_row_of(const WeightView& w, std::int64_t row, std::uint16_t* to) {
  const E4m3Codes codes;
  const E4m3Codes::At from = E4m3Codes::at(w) + row * w.cols;
  const std::int64_t across = (w.cols + kWeightBlock - 1) / kWeightBlock;
  const float* scales = w.scales == nullptr ? nullptr : w.scales + row / kWeightBlock * across;
  const __m512i low = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
  const __m512i high = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
  for (std::int64_t k = 0; k < w.cols; k += E4m3Codes::kStep) {
    const std::int64_t n = least(E4m3Codes::kStep, w.cols - k);
    __m512i turned[2];
    if (n == E4m3Codes::kStep) {
      codes.load(from + k, turned);
    } else {
      codes.load(from + k, n, turned);
    }
    const __m512 scale = _mm512_set1_ps(scales == nullptr ? 1.0f : scales[k / kWeightBlock]);
    const __m512i halves[2] = {_mm512_permutex2var_epi64(turned[0], low, turned[1]),
                               _mm512_permutex2var_epi64(turned[0], high, turned[1])};
    LATHE_UNROLL for (int h = 0; h < 2; ++h) {
      const auto widened = [&](__m256i x) {
        const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16);
        return _mm512_mul_ps(_mm512_castsi512_ps(bits), scale);
      };
      const __m512 a = widened(_mm512_castsi512_si256(halves[h]));
      const __m512 b = widened(_mm512_extracti64x4_epi64(halves[h], 1));
      const std::int64_t left = n - h * kPairLanes;
      if (left <= 0) break;
      _mm512_mask_storeu_epi16(
          to + k + h * kPairLanes,
          static_cast<__mmask32>((std::uint64_t{1} << least(left, kPairLanes)) - 1),
          reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a)));
    }
  }
}

}  // namespace
}  // namespace lathe

LATHE_BF16_DOT_END

namespace lathe {

void pair_product(const PairProduct& p, std::int64_t rows, std::int64_t columns) {
  product(p, rows, columns);
}
void round_to_pairs(const float* from, std::int64_t n, std::uint16_t* to) {
  round_all(from, n, to);
}
void join_rows(const float* low, const float* high, std::int64_t n, std::uint32_t* to) {
  join(low, high, n, to);
}
void round_weight_row(const WeightView& w, std::int64_t row, std::uint16_t* to) {
  round_row_of(w, row, to);
}

}  // namespace lathe

#endif  // LATHE_BF16_DOT
