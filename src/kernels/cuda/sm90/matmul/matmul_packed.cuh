// Packed weights of 4 bits (pack/packed_weights.h) with bf16 tokens: u4 and NVFP4.
//
// A weight is rounded to bf16 once, from its exact value, as the A operand of wgmma. NVFP4's
// weights without the factor of the whole tensor are exact in bf16; that factor multiplies the sum
// over K.
//
// Memory delivers a stage of 128 x 128 weights in some 500 clocks. In that time a scheduler's two
// warps convert 64 elements per lane each, so every instruction of a pair of elements counts. u4
// needs 2.25 of them, with zeros 3.25, with f16 scales 4.25; NVFP4 needs 3.75. A word of 8 elements
// has the pairs of two steps of 16 elements of K.
#pragma once

#include "kernels/cuda/common/bf16_pairs.cuh"
#include "kernels/cuda/common/wgmma_wide.cuh"
#include "kernels/cuda/sm90/matmul/few/keep.cuh"
#include "kernels/cuda/sm90/matmul/matmul_work.cuh"

namespace lathe::cuda {

/// Both halves: half `i` of v.
__device__ inline std::uint32_t both_halves(std::uint32_t v, int i) {
  return i == 0 ? low_half_twice(v) : high_half_twice(v);
}

/// A row's packed scales and zeros of a chunk: the aligned words that contain them.
struct PackedRow {
  std::uint32_t scales[2], zeros;
};
/// Where a thread's row has them in every stage. Whole words are loaded for any size of groups, and
/// byte permutations select from them, because branches would cost more.
struct PackedPlace {
  std::uint32_t scales, zeros;  // bytes from the start of the stage's
  // Of u4: permutations that give two scales, and two zeros as integers of 16 bits: of columns 0
  // and 32, and of columns 64 and 96 of the chunk.
  std::uint32_t scale_choice[2], zero_choice[2];

  __device__ PackedPlace(std::uint32_t row, std::int32_t scale_bytes) {
    const auto bytes = static_cast<std::uint32_t>(scale_bytes);  // 2, 4 or 8, or NVFP4's 8
    scales = row * bytes & ~7u;
    zeros = row * (bytes / 2) & ~3u;
    const std::uint32_t first = row * bytes & 7;
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      // Bytes of the groups of two neighbouring 32 columns.
      const std::uint32_t a = first + (bytes * static_cast<std::uint32_t>(2 * i) / 4 & ~1u);
      const std::uint32_t b = first + (bytes * static_cast<std::uint32_t>(2 * i + 1) / 4 & ~1u);
      scale_choice[i] = a | (a + 1) << 4 | b << 8 | (b + 1) << 12;
      zero_choice[i] = a / 2 | 0x4040 | b / 2 << 8;
    }
  }
};

/// u4: w = (code - zero) scale, with scales of bf16, or of f16 (kHalves).
template <bool kHalves>
struct U4Row {
  static constexpr bool kHasZeros = true;
  static constexpr int kScaleBytes = 8;  // of a row's chunk, at most
  // The conversion gives w 2^-7, and the sum over K is multiplied by 2^7.
  static __device__ float factor(const MatmulWeight&, std::int64_t) { return 0x1p7f; }
  // Of columns 0 and 32, and of columns 64 and 96 of the chunk. In bf16: -zero 2^-7; the scale, for
  // kHalves as the sum of its first 8 bits and the rest.
  std::uint32_t zeros[2], scales[2], rest[2];

  __device__ U4Row(const PackedRow& row, const PackedPlace& place, bool has_zeros) {
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t two = permute_bytes(row.scales[0], row.scales[1], place.scale_choice[i]);
      if constexpr (kHalves) {
        float low, high;
        widen_f16x2(two, low, high);
        scales[i] = permute_bytes(float_to_bits(low), float_to_bits(high), 0x7632);
        low -= bits_to_float(float_to_bits(low) & 0xffff0000u);
        high -= bits_to_float(float_to_bits(high) & 0xffff0000u);
        rest[i] = permute_bytes(float_to_bits(low), float_to_bits(high), 0x7632);
      } else {
        scales[i] = two;
      }
      // A small integer as the bits of a bf16 is that number times 2^-133.
      zeros[i] = has_zeros ? multiply_bf16x2(permute_bytes(row.zeros, 0, place.zero_choice[i]),
                                             0xfe80fe80u)
                           : 0xbd80bd80u;
    }
  }
  /// The four pairs of a word of 32-column unit `unit`.
  __device__ void convert(std::uint32_t word, int unit, std::uint32_t (&out)[4]) const {
    const std::uint32_t zero = both_halves(zeros[unit / 2], unit % 2);
    const std::uint32_t scale = both_halves(scales[unit / 2], unit % 2);
    const std::uint32_t next = word >> 8;
    out[0] = fma_bf16x2(word & 0x000f000fu, 0x7e807e80u, zero);  // 2^126
    out[1] = fma_bf16x2(word & 0x00f000f0u, 0x7c807c80u, zero);  // 2^122
    out[2] = fma_bf16x2(next & 0x000f000fu, 0x7e807e80u, zero);
    out[3] = fma_bf16x2(next & 0x00f000f0u, 0x7c807c80u, zero);
    LATHE_UNROLL
    for (std::uint32_t& v : out) {
      if constexpr (kHalves) {
        // The product with the rest is exact, so the sum is rounded once.
        v = fma_bf16x2(v, scale, multiply_bf16x2(v, both_halves(rest[unit / 2], unit % 2)));
      } else {
        v = multiply_bf16x2(v, scale);
      }
    }
  }
};

/// u4 without zeros: w = (code - 8) scale, with scales of bf16. A nibble in the low bits of a bf16
/// is a subnormal number, so one fma gives w, rounded once: code scale is exact inside it, and 8
/// scale is a bf16. A pair costs 2.25 instructions.
///
/// The fma gives w 2^-40, so that neither factor overflows; the sum over K is multiplied by 2^40.
/// Scales of 2^-80 to 2^33 give the bits of U4Row.
struct U4SymmetricRow {
  static constexpr bool kHasZeros = false;
  static constexpr int kScaleBytes = 8;
  static __device__ float factor(const MatmulWeight&, std::int64_t) { return 0x1p40f; }
  // Of columns 0 and 32, and of columns 64 and 96 of the chunk: the scale for nibbles in bits 0 to
  // 3, times 2^93; for those in bits 4 to 7, times 2^89; and times -2^-37.
  std::uint32_t low[2], high[2], eight[2];

  __device__ U4SymmetricRow(const PackedRow& row, const PackedPlace& place, bool) {
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t two = permute_bytes(row.scales[0], row.scales[1], place.scale_choice[i]);
      low[i] = multiply_bf16x2(two, 0x6e006e00u);    // 2^93
      high[i] = multiply_bf16x2(two, 0x6c006c00u);   // 2^89
      eight[i] = multiply_bf16x2(two, 0xad00ad00u);  // -2^-37
    }
  }
  /// The four pairs of a word of 32-column unit `unit`.
  __device__ void convert(std::uint32_t word, int unit, std::uint32_t (&out)[4]) const {
    const std::uint32_t by_low = both_halves(low[unit / 2], unit % 2);
    const std::uint32_t by_high = both_halves(high[unit / 2], unit % 2);
    const std::uint32_t minus = both_halves(eight[unit / 2], unit % 2);
    const std::uint32_t next = word >> 8;
    out[0] = fma_bf16x2(word & 0x000f000fu, by_low, minus);
    out[1] = fma_bf16x2(word & 0x00f000f0u, by_high, minus);
    out[2] = fma_bf16x2(next & 0x000f000fu, by_low, minus);
    out[3] = fma_bf16x2(next & 0x00f000f0u, by_high, minus);
  }
};

/// The fourth pair of e2m1 codes in a word, as bf16 times 2^-126.
__device__ inline std::uint32_t last_pair(std::uint32_t word) {
  return (word << 1 & 0x80008000u) | (word >> 3 & 0x01800180u) | (word >> 7 & 0x00400040u);
}

/// NVFP4 without the tensor's factor, times 2^-8: scales are e4m3, one per step of K.
struct Nvfp4Row {
  static constexpr bool kHasZeros = false;
  static constexpr int kScaleBytes = 8;
  static __device__ float factor(const MatmulWeight& w, std::int64_t index) {
    return w.factor[index] * 0x1p8f;
  }
  std::uint32_t even[2], odd[2];  // scales of steps 4 i and 4 i + 2, and of 4 i + 1 and 4 i + 3

  __device__ Nvfp4Row(const PackedRow& row, const PackedPlace&, bool) {
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t v = row.scales[i];
      even[i] = from_e4m3((v << 8 & 0x80008000u) | (v << 4 & 0x07f007f0u));
      odd[i] = from_e4m3((v & 0x80008000u) | (v >> 4 & 0x07f007f0u));
    }
  }
  /// Two e4m3 with the exponent's bits where bf16 has its low ones, times 2^118.
  static __device__ std::uint32_t from_e4m3(std::uint32_t small) {
    return multiply_bf16x2(multiply_bf16x2(small, 0x7b807b80u), 0x7a807a80u);  // 2^120, 2^118
  }
  __device__ void convert(std::uint32_t word, int unit, std::uint32_t (&out)[4]) const {
    const std::uint32_t first = both_halves(even[unit / 2], unit % 2);
    const std::uint32_t second = both_halves(odd[unit / 2], unit % 2);
    out[0] = multiply_bf16x2(word & 0x81c081c0u, first);
    out[1] = multiply_bf16x2(word << 3 & 0x81c081c0u, first);
    out[2] = multiply_bf16x2(word << 6 & 0x81c081c0u, second);
    out[3] = multiply_bf16x2(last_pair(word), second);
  }
};

/// MXFP4 times 2^-40: a scale is a bf16 exponent, one per 32 columns. One multiplication gives the
/// weight, because the factor keeps scales up to 2^41 within bf16's exponents; the sum over K is
/// multiplied by 2^40. Weights are exact with scales from 2^-91 on; smaller ones, as the code 0,
/// give 0 or are rounded.
struct Mxfp4Row {
  static constexpr bool kHasZeros = false;
  static constexpr int kScaleBytes = 4;
  static __device__ float factor(const MatmulWeight&, std::int64_t) { return 0x1p40f; }
  std::uint32_t even, odd;  // of units 0 and 2, and of units 1 and 3: times 2^86

  __device__ Mxfp4Row(const PackedRow& row, const PackedPlace& place, bool) {
    // Two rows have their four codes in one place.
    const std::uint32_t four =
        ((place.scale_choice[0] & 4) != 0 ? row.scales[1] : row.scales[0]) + 0x56565656u;
    even = four << 7 & 0x7f807f80u;
    odd = four >> 1 & 0x7f807f80u;
  }
  __device__ void convert(std::uint32_t word, int unit, std::uint32_t (&out)[4]) const {
    const std::uint32_t scale = both_halves(unit % 2 == 0 ? even : odd, unit / 2);
    out[0] = multiply_bf16x2(word & 0x81c081c0u, scale);
    out[1] = multiply_bf16x2(word << 3 & 0x81c081c0u, scale);
    out[2] = multiply_bf16x2(word << 6 & 0x81c081c0u, scale);
    out[3] = multiply_bf16x2(last_pair(word), scale);
  }
};

template <class RowType>
struct MatmulPacked {
  using Row = RowType;
  static constexpr int kChunk = 128;
  static constexpr int kWeightRowBytes = 64;
  static constexpr int kWeightStep = 64;
  static constexpr int kTokenBoxes = 2;
  static constexpr bool kTwoLevels = false;
  static constexpr bool kTokenScales = false;
  static constexpr bool kTokensOnM = false;
  static constexpr bool kTails = false;
  static constexpr int kPackedRow = kMatmulPackedScale + (Row::kHasZeros ? kMatmulPackedZero : 0);
  static constexpr int kDepth = 1;
  static constexpr bool kFactor = true;
  /// What the sum over K is multiplied by. index: of the weight in a stack.
  static __device__ float factor(const MatmulWeight& w, std::int64_t index) {
    return Row::factor(w, index);
  }

  /// A thread's part of a stage: codes of its two rows, and their scales.
  struct Loaded {
    std::uint32_t words[2][4];
    PackedRow rows[2];
  };
  /// words_at: of the thread's first row in the stage's weights.
  template <class Consumer>
  static __device__ __forceinline__ void load(const Consumer& c, std::uint32_t words_at,
                                              const PackedPlace (&places)[2], Loaded& out) {
    const std::uint32_t at = c.weights() + words_at;
    LATHE_UNROLL
    for (int unit = 0; unit < 4; ++unit) {
      const std::uint32_t from = at + static_cast<std::uint32_t>((unit ^ (c.lane / 8 & 3)) * 16);
      out.words[0][unit] = load_shared_u32(from);
      out.words[1][unit] = load_shared_u32(from + 512);
    }
    load_scales(c, 0, places, out);
  }
  /// chunk: of 128 columns, in the stage.
  template <class Consumer>
  static __device__ __forceinline__ void load_scales(const Consumer& c, int chunk,
                                                     const PackedPlace (&places)[2], Loaded& out) {
    const std::uint32_t scales = c.s.packed_scales(c.stage.index, chunk);
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const std::uint64_t both = load_shared_u64(scales + places[i].scales);
      out.rows[i].scales[0] = static_cast<std::uint32_t>(both);
      out.rows[i].scales[1] = static_cast<std::uint32_t>(both >> 32);
    }
    if (Row::kHasZeros && c.p.zero_bytes > 0) {
      const std::uint32_t zeros = c.s.packed_zeros(c.stage.index, chunk);
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) out.rows[i].zeros = load_shared_u32(zeros + places[i].zeros);
    }
  }

  /// acc = the sum over a part of K.
  template <class Consumer>
  static __device__ __forceinline__ void sum_part(Consumer& c, const MatmulWork&,
                                                  const MatmulPart& part) {
    PackedPlace places[2] = {{c.packed_row(0), c.p.scale_bytes},
                             {c.packed_row(1), c.p.scale_bytes}};
    keep_choices(places);
    if constexpr (Consumer::kValues <= 32) {
      sum_few(c, part, places);
    } else {
      sum_many(c, part, places);
    }
  }
  static __device__ void keep_choices(PackedPlace (&places)[2]) {
    LATHE_UNROLL
    for (int i = 0; i < 4; ++i) {
      keep(places[i / 2].scale_choice[i % 2]);
      if (Row::kHasZeros) keep(places[i / 2].zero_choice[i % 2]);
    }
  }
  template <class Consumer>
  static __device__ std::uint32_t words_at(const Consumer& c) {
    return static_cast<std::uint32_t>((c.warp * 16 + c.lane / 4) * 64 + (c.lane & 3) * 4);
  }
  /// Multiplies the 32 columns of a unit.
  template <class Consumer>
  static __device__ __forceinline__ void multiply(Consumer& c, const Row& low, const Row& high,
                                                  const Loaded& chunk, int unit,
                                                  std::uint64_t tokens, bool add) {
    std::uint32_t of_low[4], of_high[4];
    low.convert(chunk.words[0][unit], unit, of_low);
    high.convert(chunk.words[1][unit], unit, of_high);
    wgmma_fence();
    LATHE_UNROLL
    for (int step = 0; step < 2; ++step) {
      const std::uint32_t a[4] = {of_low[2 * step], of_high[2 * step], of_low[2 * step + 1],
                                  of_high[2 * step + 1]};
      mma_m64_bf16_rows(c.acc, a, c.token_step(tokens, 2 * unit + step), add || unit + step > 0);
    }
  }

  /// Up to 64 tokens: the next chunk is loaded to registers while a chunk's last wgmmas run.
  template <class Consumer>
  static __device__ __forceinline__ void sum_few(Consumer& c, const MatmulPart& part,
                                                 const PackedPlace (&places)[2]) {
    const bool has_zeros = c.p.zero_bytes > 0;
    Loaded chunk_data = {};
    c.wait_full();
    load(c, words_at(c), places, chunk_data);
    LATHE_ROLLED
    for (std::int32_t chunk = part.begin; chunk < part.end; ++chunk) {
      const std::uint64_t tokens = c.token_step(0);
      const Row low(chunk_data.rows[0], places[0], has_zeros);
      const Row high(chunk_data.rows[1], places[1], has_zeros);
      LATHE_UNROLL
      for (int unit = 0; unit < 4; ++unit) {
        multiply(c, low, high, chunk_data, unit, tokens, chunk > part.begin);
      }
      wgmma_commit();
      const int used = c.stage.index;
      c.stage.next();
      if (chunk + 1 < part.end) {
        c.wait_full();
        load(c, words_at(c), places, chunk_data);
      }
      wgmma_wait<0>();
      wgmma_pin(c.acc);
      c.release(c.s.empty(used));
    }
  }

  /// More than 64 tokens: the wgmmas of a unit run while the next unit is converted, also from one
  /// chunk to the next, so a stage is released when those of the next chunk's first unit run.
  template <class Consumer>
  static __device__ __forceinline__ void sum_many(Consumer& c, const MatmulPart& part,
                                                  const PackedPlace (&places)[2]) {
    const bool has_zeros = c.p.zero_bytes > 0;
    // wgmmas that add to zeros stay in flight across chunks; those that replace sums do not.
    LATHE_UNROLL
    for (float& v : c.acc) v = 0;
    int used = 0;
    LATHE_ROLLED
    for (std::int32_t chunk = part.begin; chunk < part.end; ++chunk) {
      Loaded chunk_data = {};
      c.wait_full();
      load(c, words_at(c), places, chunk_data);
      const std::uint64_t tokens = c.token_step(0);
      const Row low(chunk_data.rows[0], places[0], has_zeros);
      const Row high(chunk_data.rows[1], places[1], has_zeros);
      LATHE_UNROLL
      for (int unit = 0; unit < 4; ++unit) {
        multiply(c, low, high, chunk_data, unit, tokens, true);
        wgmma_commit();
        wgmma_wait<1>();  // frees the registers of the unit before
        if (unit == 0 && chunk > part.begin) c.release(c.s.empty(used));
      }
      used = c.stage.index;
      c.stage.next();
    }
    wgmma_wait<0>();
    wgmma_pin(c.acc);
    c.release(c.s.empty(used));
  }
};

using MatmulU4Weights = MatmulPacked<U4SymmetricRow>;
using MatmulU4ZeroWeights = MatmulPacked<U4Row<false>>;
using MatmulU4HalfWeights = MatmulPacked<U4Row<true>>;
using MatmulNvfp4Weights = MatmulPacked<Nvfp4Row>;
using MatmulMxfp4Weights = MatmulPacked<Mxfp4Row>;

}  // namespace lathe::cuda
