// Slices of products in the dot instruction of bf16 pairs: tiles for few rows, panels for many.
#include "kernels/cpu/matmul/matmul_bf16.h"

#include "base/check.h"
#include "kernels/cpu/unroll.h"

// The instructions are for functions of this file alone, behind a check of the CPU: flags for the
// whole file would also compile inline functions of headers so, which the linker may then choose
// for all callers. Highway 1.0.3 has no name for the dot product.
#if defined(__x86_64__) && defined(__GNUC__)
#define LATHE_BF16_DOT 1
#if !defined(__clang__)
// The header's undefined vectors, inlined, are reported (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#endif

namespace lathe {

std::int64_t matmul_slice_bf16_scratch(std::int64_t rows, std::int64_t outs, std::int64_t depth) {
  const std::int64_t padded_outs = (outs + kPanelOuts - 1) / kPanelOuts * kPanelOuts;
  const std::int64_t padded = (depth + kMxStep - 1) / kMxStep * kMxStep;
  const std::int64_t block = padded < kDepthBlock ? padded : kDepthBlock;
  const std::int64_t few = rows <= kMostFewRows ? rows * padded / 2 : 0;
  const std::int64_t many = kPanelOuts * kDepthBlock / 2 + rows * block / 2 + rows * padded_outs;
  return few > many ? few : many;
}

#ifndef LATHE_BF16_DOT

bool cpu_has_bf16_dot() { return false; }
void matmul_slice_bf16(const MatmulSlice&, float*) { LATHE_CHECK(false, "not on this CPU"); }
double bf16_dot_loop(std::int64_t, float*) { return 0; }

#else

bool cpu_has_bf16_dot() {
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq");
}

#ifdef __clang__
#pragma clang attribute push(                                                            \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi")
#endif

namespace {

#define LATHE_INLINE inline __attribute__((always_inline))

constexpr std::int64_t kPairLanes = 32;        // elements of K that one instruction takes
constexpr std::int64_t kPrefetchBytes = 2048;  // of each run, ahead of where a tile reads
constexpr std::int64_t kTileRows = 3;          // by kPanelOuts outputs: 24 of 32 registers

LATHE_INLINE std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// A mask of the first n lanes, n from 0 on.
LATHE_INLINE __mmask16 first16(std::int64_t n) {
  return static_cast<__mmask16>(n >= 16 ? 0xffffu : (1u << (n < 0 ? 0 : n)) - 1);
}

// ---------------------------------------------------------------- weights as bf16

// GCC folds a load into every use, and the loads would be what a tile waits for: those of weights
// that do not begin at a line (a file rarely aligns them) read two lines each.
LATHE_INLINE void keep_in_register(__m512i& v) { asm("" : "+v"(v)); }

// What is stored element by element.
template <class Element>
struct PlainCodes {
  using T = Element;
  using At = const T*;
  static constexpr std::int64_t kLine =
      64 / static_cast<std::int64_t>(sizeof(T));  // of a cache line
  static LATHE_INLINE At at(const WeightView& w) { return reinterpret_cast<At>(w.data); }
  static LATHE_INLINE const void* address(At p) { return p; }
};

// load() makes kVectors vectors of bf16 of kStep weights at p, of which the first n exist; x has
// the same order inside a step.
struct Bf16Codes : PlainCodes<std::uint16_t> {
  static constexpr int kVectors = 1;
  static constexpr std::int64_t kStep = 32;
  LATHE_INLINE Bf16Codes() = default;
  LATHE_INLINE void load(const T* p, __m512i* to) const { to[0] = _mm512_loadu_si512(p); }
  LATHE_INLINE void load(const T* p, std::int64_t n, __m512i* to) const {
    to[0] = _mm512_maskz_loadu_epi16(static_cast<__mmask32>((std::uint64_t{1} << n) - 1), p);
  }
  static LATHE_INLINE void order(__m512i*) {}
};

// A code without its sign chooses the two bytes of its bf16 from two tables. Bytes interleave
// inside each 128 bits, so the vectors hold the even and the odd groups of eight codes.
struct E4m3Codes : PlainCodes<std::uint8_t> {
  static constexpr int kVectors = 2;
  static constexpr std::int64_t kStep = 64;
  __m512i high[2], low[2];
  LATHE_INLINE E4m3Codes() {
    alignas(64) std::uint8_t bytes[2][128];
    for (int code = 0; code < 128; ++code) {
      const int exponent = code >> 3, mantissa = code & 7;
      // Subnormal: mantissa x 2^-9, normalised.
      const int top = mantissa >= 4 ? 2 : mantissa >= 2 ? 1 : 0;
      int bits = (exponent + 120) << 7 | mantissa << 4;
      if (exponent == 0) {
        bits = mantissa == 0 ? 0 : (118 + top) << 7 | ((mantissa << (7 - top)) & 0x7f);
      }
      bytes[0][code] = static_cast<std::uint8_t>(bits >> 8);
      bytes[1][code] = static_cast<std::uint8_t>(bits & 0xff);
    }
    for (int i = 0; i < 2; ++i) {
      high[i] = _mm512_load_si512(bytes[0] + 64 * i);
      low[i] = _mm512_load_si512(bytes[1] + 64 * i);
    }
  }
  LATHE_INLINE void widen(__m512i codes, __m512i* to) const {
    keep_in_register(codes);
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
    const __m512i h = _mm512_permutex2var_epi8(high[0], codes, high[1]);
    const __m512i l = _mm512_permutex2var_epi8(low[0], codes, low[1]);
    const __m512i signed_h = _mm512_ternarylogic_epi32(h, codes, sign, 0xf8);  // h | codes & sign
    to[0] = _mm512_unpacklo_epi8(l, signed_h);
    to[1] = _mm512_unpackhi_epi8(l, signed_h);
  }
  LATHE_INLINE void load(const T* p, __m512i* to) const { widen(_mm512_loadu_si512(p), to); }
  LATHE_INLINE void load(const T* p, std::int64_t n, __m512i* to) const {
    widen(_mm512_maskz_loadu_epi8((std::uint64_t{1} << n) - 1, p), to);
  }
  static LATHE_INLINE void order(__m512i* x) {
    const __m512i a = x[0], b = x[1];
    x[0] = _mm512_shuffle_i32x4(a, b, _MM_SHUFFLE(2, 0, 2, 0));
    x[1] = _mm512_shuffle_i32x4(a, b, _MM_SHUFFLE(3, 1, 3, 1));
  }
};

// Four codes fill a word of 16 bits: vector j is the j-th nibble of every word, found in a table,
// with the scale's exponent added. Its lane i is element 4 i + j of the step, so eight lanes have
// one scale.
struct E2m1Codes {
  using At = MxAt;
  static constexpr std::int64_t kLine = 128;
  static constexpr int kVectors = 4;
  static constexpr std::int64_t kStep = 128;
  static_assert(kStep <= kMxStep);
  __m512i values, spread;
  LATHE_INLINE E2m1Codes() {
    // bf16 of 0, 0.5, 1, 1.5, 2, 3, 4, 6. The bit above a nibble, which also chooses, must not
    // matter.
    static constexpr std::uint16_t kSizes[8] = {0,      0x3f00, 0x3f80, 0x3fc0,
                                                0x4000, 0x4040, 0x4080, 0x40c0};
    alignas(64) std::uint16_t table[32];
    for (int i = 0; i < 32; ++i) {
      table[i] = static_cast<std::uint16_t>(kSizes[i % 8] | (i % 16 < 8 ? 0 : 0x8000));
    }
    values = _mm512_load_si512(table);
    // Byte i / 8 of four to the high byte of word i, zero (a set sign bit) to the low one.
    alignas(64) std::uint16_t bytes[32];
    for (int i = 0; i < 32; ++i) bytes[i] = static_cast<std::uint16_t>((i / 8) << 8 | 0x80);
    spread = _mm512_load_si512(bytes);
  }
  static LATHE_INLINE At at(const WeightView& w) { return mx_at(w); }
  static LATHE_INLINE const void* address(At p) { return p.codes; }

  LATHE_INLINE void widen(__m512i words, std::uint32_t scales, __m512i* to) const {
    const __m512i scale = _mm512_srli_epi16(
        _mm512_shuffle_epi8(_mm512_set1_epi32(static_cast<int>(scales)), spread), 1);
    // Blocks whose scale counts as 0, and zeros, take no exponent.
    const __mmask32 live = _mm512_test_epi16_mask(scale, scale);
    const __m512i exponent = _mm512_sub_epi16(scale, _mm512_set1_epi16(127 << 7));
    const __m512i size = _mm512_set1_epi16(7);
    LATHE_UNROLL for (int j = 0; j < kVectors; ++j) {
      const __m512i code = _mm512_srli_epi16(words, static_cast<unsigned>(4 * j));
      const __mmask32 number = _mm512_mask_test_epi16_mask(live, code, size);
      to[j] = _mm512_maskz_add_epi16(number, _mm512_permutexvar_epi16(code, values), exponent);
    }
  }
  LATHE_INLINE void load(At p, __m512i* to) const {
    std::uint32_t scales;
    __builtin_memcpy(&scales, p.scales, sizeof(scales));
    widen(_mm512_loadu_si512(p.codes), scales, to);
  }
  LATHE_INLINE void load(At p, std::int64_t n, __m512i* to) const {
    std::uint32_t scales = 0;
    __builtin_memcpy(&scales, p.scales, static_cast<std::size_t>(n / kMxBlock));
    widen(
        _mm512_maskz_loadu_epi16(static_cast<__mmask32>((std::uint64_t{1} << n / 4) - 1), p.codes),
        scales, to);
  }
  static LATHE_INLINE void order(__m512i* x) {
    alignas(64) static constexpr std::uint16_t kFours[32] = {0,  4,  8,  12, 16, 20, 24, 28,
                                                             32, 36, 40, 44, 48, 52, 56, 60};
    __m512i to[kVectors];
    LATHE_UNROLL for (int j = 0; j < kVectors; ++j) {
      const __m512i from =
          _mm512_add_epi16(_mm512_load_si512(kFours), _mm512_set1_epi16(static_cast<short>(j)));
      to[j] = _mm512_inserti64x4(
          _mm512_permutex2var_epi16(x[0], from, x[1]),
          _mm512_castsi512_si256(_mm512_permutex2var_epi16(x[2], from, x[3])), 1);
    }
    LATHE_UNROLL for (int j = 0; j < kVectors; ++j) x[j] = to[j];
  }
};

LATHE_INLINE __m512 dot(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

// The sums over the lanes of four vectors.
LATHE_INLINE __m128 sums4(const __m512* x) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
  const __m512d ab2 = _mm512_castps_pd(ab), cd2 = _mm512_castps_pd(cd);
  const __m512 s = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab2, cd2)),
                                 _mm512_castpd_ps(_mm512_unpackhi_pd(ab2, cd2)));
  const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
  const __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  return q;
}

// ---------------------------------------------------------------- rows of x as bf16

LATHE_INLINE const float* x_row(const Product& p, std::int64_t r) {
  return reinterpret_cast<const float*>(p.x.row(r));
}

// The factors of the blocks of 128 outputs that `out` lies in, from k on; or null.
LATHE_INLINE const float* scales_of(const WeightView& w, std::int64_t out, std::int64_t k) {
  if (w.scales == nullptr) return nullptr;
  const std::int64_t across = (w.cols + kWeightBlock - 1) / kWeightBlock;
  return w.scales + out / kWeightBlock * across + k / kWeightBlock;
}

struct Groups {
  std::int64_t rows, groups;
  LATHE_INLINE Groups(std::int64_t n, std::int64_t most) : rows(n), groups((n + most - 1) / most) {}
  LATHE_INLINE std::int64_t first(std::int64_t g) const { return rows * g / groups; }
};

// Rows' elements k .. k + depth as bf16, interleaved vector by vector inside a group, with zeros
// after the end up to a whole step.
template <class W>
void pack_rows(const MatmulSlice& s, const Groups& groups, std::int64_t k, std::int64_t depth,
               const float* scales, std::uint16_t* to) {
  const std::int64_t padded = (depth + W::kStep - 1) / W::kStep * W::kStep;
  const std::int64_t ahead = 2 * s.product->x.row_stride;
  for (std::int64_t g = 0; g < groups.groups; ++g) {
    const std::int64_t first = groups.first(g);
    const std::int64_t rows = groups.first(g + 1) - first;
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* from = x_row(*s.product, s.row + first + r) + k;
      std::uint16_t* at = to + first * padded + r * kPairLanes;
      for (std::int64_t i = 0; i < padded; i += W::kStep) {
        const __m512 scale = _mm512_set1_ps(scales == nullptr ? 1.0f : scales[i / kWeightBlock]);
        __m512i x[W::kVectors];
        LATHE_UNROLL for (int v = 0; v < W::kVectors; ++v) {
          const std::int64_t j = i + v * kPairLanes;
          __builtin_prefetch(from + j + ahead, 0, 3);
          __builtin_prefetch(from + j + 16 + ahead, 0, 3);
          __m512 a, b;
          if (j + kPairLanes <= depth) {
            a = _mm512_loadu_ps(from + j);
            b = _mm512_loadu_ps(from + j + 16);
          } else {
            a = _mm512_maskz_loadu_ps(first16(depth - j), from + j);
            b = _mm512_maskz_loadu_ps(first16(depth - j - 16), from + j + 16);
          }
          if (scales != nullptr) {
            a = _mm512_mul_ps(a, scale);
            b = _mm512_mul_ps(b, scale);
          }
          x[v] = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a));
        }
        W::order(x);
        LATHE_UNROLL for (int v = 0; v < W::kVectors; ++v) {
          _mm512_storeu_si512(at + (i + v * kPairLanes) * rows, x[v]);
        }
      }
    }
  }
}

// Sums of outputs out .. out + outs to their place.
LATHE_INLINE void finish(const Product& p, std::int64_t row, std::int64_t out, std::int64_t outs,
                         const float* sums) {
  float* to = reinterpret_cast<float*>(p.out.row(row)) + out;
  if (outs == kPanelOuts) {
    __m256 y = _mm256_loadu_ps(sums);
    if (p.bias != nullptr) y = _mm256_add_ps(y, _mm256_loadu_ps(p.bias + out));
    if (p.add) y = _mm256_add_ps(_mm256_loadu_ps(to), y);
    _mm256_storeu_ps(to, y);
    return;
  }
  const __mmask8 mask = static_cast<__mmask8>((1u << outs) - 1);
  __m256 y = _mm256_maskz_loadu_ps(mask, sums);
  if (p.bias != nullptr) y = _mm256_add_ps(y, _mm256_maskz_loadu_ps(mask, p.bias + out));
  if (p.add) y = _mm256_add_ps(_mm256_maskz_loadu_ps(mask, to), y);
  _mm256_mask_storeu_ps(to, mask, y);
}

// ---------------------------------------------------------------- few rows

// A group of rows of x times tiles of weight rows. A tile takes one row of each of several
// consecutive runs of rows: memory is read fastest in a few long runs.
struct DirectRuns {
  const MatmulSlice& slice;
  const std::uint16_t* packed;  // [K blocks][groups][steps, rows, 32]
  std::int64_t first;           // row of the slice where the group begins
  std::int64_t out;             // weight row where the first run begins
  std::int64_t runs;            // up to kOuts; where fewer, the sums of the others are not read
  std::int64_t run;             // weight rows of each
  std::int64_t begin, end;      // of the weight rows of every run: the tiles to multiply
  std::int64_t k, k_end;        // of K, whole blocks; less than all of it only for a single tile
  float* carried;               // [rows, kOuts] sums of the blocks so far, where not all of K
  std::int64_t prefetch_begin, prefetch_end;  // runs that this group prefetches, its share
};

template <class W, int kOuts, int kRows>
__attribute__((noinline)) void direct_runs(const W& codes, const DirectRuns& t) {
  const Product& p = *t.slice.product;
  const std::int64_t depth = p.w.cols;
  constexpr std::int64_t kPrefetch = kPrefetchBytes / 64 * W::kLine;
  const W c = codes;
  typename W::At w[kOuts];
  LATHE_UNROLL for (int i = 0; i < kOuts; ++i) {
    w[i] = W::at(p.w) + (t.out + least(i, t.runs - 1) * t.run + t.begin) * depth;
  }
  const bool prefetches_all = t.prefetch_end - t.prefetch_begin == kOuts;
  float* to[kRows];
  LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
    to[r] = reinterpret_cast<float*>(p.out.row(t.slice.row + t.first + r));
  }
  for (std::int64_t n = t.begin; n < t.end; ++n) {
    __m128 sums[kRows][kOuts / 4] = {};
    if (t.k > 0) __builtin_memcpy(sums, t.carried, sizeof(sums));
    for (std::int64_t block = t.k; block < t.k_end; block += kDepthBlock) {
      const std::int64_t end = least(block + kDepthBlock, depth);
      const std::int64_t padded = (end - block + W::kStep - 1) / W::kStep * W::kStep;
      const std::uint16_t* x = t.packed + block * t.slice.rows + t.first * padded;
      // What follows in the run; at its end, what follows all runs.
      const bool ends = n * depth + block + kPrefetch >= t.run * depth;
      const std::int64_t ahead = kPrefetch + (ends ? (t.runs - 1) * t.run * depth : 0);
      __m512 acc[kRows][kOuts];
      LATHE_UNROLL for (int i = 0; i < kOuts; ++i) {
        LATHE_UNROLL for (int r = 0; r < kRows; ++r) acc[r][i] = _mm512_setzero_ps();
      }
      std::int64_t k = block;
      for (; k + W::kStep <= end; k += W::kStep) {
        if (prefetches_all) {
          LATHE_UNROLL for (int i = 0; i < kOuts; ++i) {
            __builtin_prefetch(W::address(w[i] + (k + ahead)), 0, 3);
          }
        } else {
          typename W::At row = w[0] + t.prefetch_begin * t.run * depth;
          for (std::int64_t i = t.prefetch_begin; i < t.prefetch_end; ++i, row += t.run * depth) {
            __builtin_prefetch(W::address(row + (k + ahead)), 0, 3);
          }
        }
        LATHE_UNROLL for (int i = 0; i < kOuts; ++i) {
          __m512i wide[W::kVectors];
          c.load(w[i] + k, wide);
          LATHE_UNROLL for (int v = 0; v < W::kVectors; ++v) {
            if (kRows > 1) keep_in_register(wide[v]);
            LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
              acc[r][i] =
                  dot(acc[r][i], wide[v], _mm512_loadu_si512(x + (v * kRows + r) * kPairLanes));
            }
          }
        }
        x += kRows * W::kStep;
      }
      if (k < end) {
        LATHE_UNROLL for (int i = 0; i < kOuts; ++i) {
          __m512i wide[W::kVectors];
          c.load(w[i] + k, end - k, wide);
          LATHE_UNROLL for (int v = 0; v < W::kVectors; ++v) {
            if (kRows > 1) keep_in_register(wide[v]);
            LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
              acc[r][i] =
                  dot(acc[r][i], wide[v], _mm512_loadu_si512(x + (v * kRows + r) * kPairLanes));
            }
          }
        }
      }
      LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
        LATHE_UNROLL for (int i = 0; i < kOuts / 4; ++i) {
          sums[r][i] = _mm_add_ps(sums[r][i], sums4(acc[r] + 4 * i));
        }
      }
    }
    if (t.k_end < depth) {
      __builtin_memcpy(t.carried, sums, sizeof(sums));
      return;
    }
    LATHE_UNROLL for (int i = 0; i < kOuts; ++i) w[i] += depth;
    LATHE_UNROLL for (int i = 0; i < kOuts; ++i) {
      if (i >= t.runs) break;
      const std::int64_t out = t.out + i * t.run + n;
      LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
        float y = sums[r][i / 4][i % 4];
        if (p.bias != nullptr) y += p.bias[out];
        to[r][out] = p.add ? to[r][out] + y : y;
      }
    }
  }
}

template <class W, int kOuts>
LATHE_INLINE void direct_rows(const W& codes, const DirectRuns& t, std::int64_t rows) {
  constexpr int kMost = 24 / kOuts;
  switch (rows) {
    case 1:
      return direct_runs<W, kOuts, 1>(codes, t);
    case 2:
      return direct_runs<W, kOuts, 2>(codes, t);
    case 3:
      return direct_runs<W, kOuts, 3>(codes, t);
    case 4:
      return direct_runs < W, kOuts, kMost < 4 ? 1 : 4 > (codes, t);
    case 5:
      return direct_runs < W, kOuts, kMost < 5 ? 1 : 5 > (codes, t);
    default:
      return direct_runs < W, kOuts, kMost < 6 ? 1 : 6 > (codes, t);
  }
}

// Weights pass once from memory to registers, or to the first-level cache where the rows are
// several groups. K is the inner loop, because memory is read fastest in long runs.
template <class W, int kOuts>
void few_rows(const MatmulSlice& s, std::uint16_t* packed) {
  const Product& p = *s.product;
  const std::int64_t depth = p.w.cols;
  const Groups groups(s.rows, 24 / kOuts);
  const W codes;
  const auto multiply = [&](std::int64_t out, std::int64_t runs, std::int64_t run) {
    if (groups.groups == 1) {
      const DirectRuns t{s, packed, 0, out, runs, run, 0, run, 0, depth, nullptr, 0, kOuts};
      return direct_rows<W, kOuts>(codes, t, s.rows);
    }
    // Groups take turns at each block of a tile, so that it stays in the cache.
    for (std::int64_t i = 0; i < run; ++i) {
      float carried[kMostFewRows * kOuts];
      for (std::int64_t k = 0; k < depth; k += kDepthBlock) {
        for (std::int64_t g = 0; g < groups.groups; ++g) {
          const std::int64_t first = groups.first(g);
          const DirectRuns t{s,
                             packed,
                             first,
                             out,
                             runs,
                             run,
                             i,
                             i + 1,
                             k,
                             least(k + kDepthBlock, depth),
                             carried + first * kOuts,
                             kOuts * g / groups.groups,
                             kOuts * (g + 1) / groups.groups};
          direct_rows<W, kOuts>(codes, t, groups.first(g + 1) - first);
        }
      }
    }
  };
  const std::int64_t end = s.out + s.outs;
  // Parts of the slice whose weights have the same factors.
  for (std::int64_t out = s.out, next; out < end; out = next) {
    next = p.w.scales == nullptr ? end : least(end, (out / kWeightBlock + 1) * kWeightBlock);
    for (std::int64_t k = 0; k < depth; k += kDepthBlock) {
      pack_rows<W>(s, groups, k, least(kDepthBlock, depth - k), scales_of(p.w, out, k),
                   packed + k * s.rows);
    }
    const std::int64_t run = (next - out) / kOuts;
    const std::int64_t rest = (next - out) % kOuts;
    if (run > 0) multiply(out, kOuts, run);
    if (rest > 0) multiply(next - rest, rest, 1);
  }
}

// ---------------------------------------------------------------- many rows

// outs rows of weights [outs, depth] at `stride`, to [steps, kPanelOuts, 32] of bf16. Missing rows
// keep what the panel held: their sums are not read.
template <class W>
void make_panel(typename W::At weights, std::int64_t stride, std::int64_t outs, std::int64_t depth,
                std::uint16_t* panel) {
  const W codes;
  constexpr std::int64_t kRun = 256;  // of a row before the next: measured
  for (std::int64_t begin = 0; begin < depth; begin += kRun) {
    const std::int64_t end = least(begin + kRun, depth);
    for (std::int64_t i = 0; i < outs; ++i) {
      const typename W::At w = weights + i * stride;
      std::uint16_t* to = panel + i * kPairLanes;
      for (std::int64_t k = begin; k < end; k += W::kStep) {
        __m512i wide[W::kVectors];
        if (k + W::kStep <= end) {
          codes.load(w + k, wide);
        } else {
          codes.load(w + k, end - k, wide);
        }
        LATHE_UNROLL for (int v = 0; v < W::kVectors; ++v) {
          _mm512_storeu_si512(to + (k + v * kPairLanes) * kPanelOuts, wide[v]);
        }
      }
    }
  }
}

template <int kRows>
__attribute__((noinline)) void panel_tile(const std::uint16_t* panel, const std::uint16_t* x,
                                          std::int64_t steps, float* sums) {
  __m512 acc[kRows][kPanelOuts];
  LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
    LATHE_UNROLL for (int i = 0; i < kPanelOuts; ++i) acc[r][i] = _mm512_setzero_ps();
  }
  for (std::int64_t s = 0; s < steps; ++s) {
    __m512i in[kRows];
    LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
      in[r] = _mm512_loadu_si512(x + r * kPairLanes);
      keep_in_register(in[r]);
    }
    LATHE_UNROLL for (int i = 0; i < kPanelOuts; ++i) {
      __m512i w = _mm512_loadu_si512(panel + i * kPairLanes);
      keep_in_register(w);
      LATHE_UNROLL for (int r = 0; r < kRows; ++r) acc[r][i] = dot(acc[r][i], w, in[r]);
    }
    panel += kPanelOuts * kPairLanes;
    x += kRows * kPairLanes;
  }
  LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
    LATHE_UNROLL for (int i = 0; i < kPanelOuts; i += 4) {
      float* to = sums + r * kPanelOuts + i;
      _mm_storeu_ps(to, _mm_add_ps(_mm_loadu_ps(to), sums4(acc[r] + i)));
    }
  }
}

LATHE_INLINE void panel_rows(const std::uint16_t* panel, const std::uint16_t* x, std::int64_t steps,
                             std::int64_t rows, float* sums) {
  if (rows == 3) return panel_tile<3>(panel, x, steps, sums);
  if (rows == 2) return panel_tile<2>(panel, x, steps, sums);
  panel_tile<1>(panel, x, steps, sums);
}

// Prefetches a share of the weights of the panel at (out, k), before group g of `groups`: panels
// come from memory in order, each while the one before it is multiplied.
template <class W>
LATHE_INLINE void prefetch_panel(const WeightView& w, std::int64_t out, std::int64_t k,
                                 std::int64_t g, std::int64_t groups) {
  constexpr std::int64_t kLine = W::kLine;
  const std::int64_t most = w.rows - out - 1;
  const std::int64_t lines = (least(kDepthBlock, w.cols - k) + kLine - 1) / kLine;
  const typename W::At from = W::at(w) + (out * w.cols + k);
  for (std::int64_t i = lines * g / groups; i < lines * (g + 1) / groups; ++i) {
    for (std::int64_t r = 0; r < kPanelOuts; ++r) {
      __builtin_prefetch(W::address(from + (least(r, most) * w.cols + i * kLine)), 0, 3);
    }
  }
}

template <class W>
void many_rows(const MatmulSlice& s, float* scratch) {
  const Product& p = *s.product;
  const Groups groups(s.rows, kTileRows);
  const typename W::At weights = W::at(p.w);
  const std::int64_t panels = (s.outs + kPanelOuts - 1) / kPanelOuts;
  const std::int64_t block = least(kDepthBlock, (p.w.cols + kMxStep - 1) / kMxStep * kMxStep);
  auto* panel = reinterpret_cast<std::uint16_t*>(scratch);   // [steps, kPanelOuts, 32]
  std::uint16_t* packed = panel + kPanelOuts * kDepthBlock;  // [groups][steps, rows, 32]
  float* sums = scratch + (kPanelOuts * kDepthBlock + s.rows * block) / 2;
  __builtin_memset(sums, 0, static_cast<std::size_t>(panels * kPanelOuts * s.rows) * sizeof(float));
  // sums: [panels, rows, kPanelOuts]
  for (std::int64_t k = 0; k < p.w.cols; k += kDepthBlock) {
    const std::int64_t depth = least(kDepthBlock, p.w.cols - k);
    const std::int64_t steps = (depth + W::kStep - 1) / W::kStep * W::kVectors;
    for (std::int64_t i = 0; i < panels; ++i) {
      const std::int64_t out = s.out + i * kPanelOuts;
      const std::int64_t outs = least(kPanelOuts, s.outs - i * kPanelOuts);
      if (i == 0 || (p.w.scales != nullptr && out % kWeightBlock == 0)) {
        pack_rows<W>(s, groups, k, depth, scales_of(p.w, out, k), packed);
      }
      make_panel<W>(weights + (out * p.w.cols + k), p.w.cols, outs, depth, panel);
      const bool last = i + 1 == panels;
      const std::int64_t next_k = last ? k + kDepthBlock : k;
      const std::int64_t next_out = last ? s.out : out + kPanelOuts;
      for (std::int64_t g = 0; g < groups.groups; ++g) {
        if (next_k < p.w.cols) prefetch_panel<W>(p.w, next_out, next_k, g, groups.groups);
        const std::int64_t first = groups.first(g);
        panel_rows(panel, packed + first * steps * kPairLanes, steps, groups.first(g + 1) - first,
                   sums + (i * s.rows + first) * kPanelOuts);
      }
    }
  }
  for (std::int64_t r = 0; r < s.rows; ++r) {
    const auto* later = reinterpret_cast<const float*>(p.out.row(s.row + least(r + 2, s.rows - 1)));
    for (std::int64_t i = 0; i < s.outs; i += 16) __builtin_prefetch(later + s.out + i, 1, 3);
    for (std::int64_t i = 0; i < panels; ++i) {
      finish(p, s.row + r, s.out + i * kPanelOuts, least(kPanelOuts, s.outs - i * kPanelOuts),
             sums + (i * s.rows + r) * kPanelOuts);
    }
  }
}

// Shapes by measurement: as widening e4m3 costs, tiles of fewer outputs and more rows serve it
// better, and from some rows on a panel.
template <class W>
void slice_of(const MatmulSlice& s, float* scratch) {
  constexpr bool kWidens = W::kVectors > 1;
  auto* packed = reinterpret_cast<std::uint16_t*>(scratch);
  if (s.rows > (kWidens ? kMostFewRows / 2 : kMostFewRows)) return many_rows<W>(s, scratch);
  if (kWidens || s.rows == 1) return few_rows<W, 4>(s, packed);
  few_rows<W, 8>(s, packed);
}

double dot_loop(std::int64_t rounds, float* sink) {
  constexpr int kChains = 20;  // more than the latency times the pipes
  __m512 x[kChains];
  for (int i = 0; i < kChains; ++i) x[i] = _mm512_set1_ps(sink[2 + i % 12] + static_cast<float>(i));
  const __m512i a = _mm512_set1_epi16(static_cast<short>(0x3f7f));  // just below 1
  __m512i b = _mm512_set1_epi16(static_cast<short>(0x3a00));
  keep_in_register(b);
  for (std::int64_t n = 0; n < rounds; ++n) {
#pragma GCC unroll 20
    for (int i = 0; i < kChains; ++i) x[i] = dot(x[i], a, b);
  }
  for (int i = 1; i < kChains; ++i) x[0] = _mm512_add_ps(x[0], x[i]);
  sink[2] = _mm512_reduce_add_ps(x[0]);
  return static_cast<double>(rounds) * kChains * 64;
}

}  // namespace

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

double bf16_dot_loop(std::int64_t rounds, float* sink) { return dot_loop(rounds, sink); }

void matmul_slice_bf16(const MatmulSlice& s, float* scratch) {
  if (s.product->w.dtype == DType::bf16) return slice_of<Bf16Codes>(s, scratch);
  if (s.product->w.dtype == DType::e2m1) return slice_of<E2m1Codes>(s, scratch);
  slice_of<E4m3Codes>(s, scratch);
}

#endif  // LATHE_BF16_DOT

}  // namespace lathe
