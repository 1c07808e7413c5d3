// Widens stored weights to vectors of bf16, and sums dot products. Include it once in a file,
// between LATHE_TARGET_BEGIN(LATHE_BF16_DOT) and LATHE_TARGET_END
// (kernels/cpu/common/dot_targets.h).

namespace lathe {
namespace {

#define LATHE_INLINE inline __attribute__((always_inline))

constexpr std::int64_t kPairLanes = 32;  // elements of K per instruction

LATHE_INLINE std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// A mask of the first n lanes, n >= 0.
LATHE_INLINE __mmask16 first16(std::int64_t n) {
  return static_cast<__mmask16>(n >= 16 ? 0xffffu : (1u << (n < 0 ? 0 : n)) - 1);
}

// ---------------------------------------------------------------- weights as bf16

// Without this GCC folds a load into every use, and a tile waits for the loads: weights are rarely
// aligned in a file, so each of them reads two cache lines.
LATHE_INLINE void keep_in_register(__m512i& v) { asm("" : "+v"(v)); }

// Formats that are stored element by element.
template <class Element>
struct PlainCodes {
  using T = Element;
  using At = const T*;
  static constexpr std::int64_t kLine =
      64 / static_cast<std::int64_t>(sizeof(T));  // of a cache line
  // Prefetch locality of streamed weights, as in __builtin_prefetch: 2 is the second-level cache,
  // which accepts more lines at once (except where streams_through_first_level()); 3 is the
  // first-level cache, for formats that need more time to widen a line than to read it.
  static constexpr int kLocality = 2;
  static LATHE_INLINE At at(const WeightView& w) { return reinterpret_cast<At>(w.data); }
  static LATHE_INLINE const void* address(At p) { return p; }
};

// load() makes kVectors vectors of bf16 from the kStep weights at p; only the first n of them
// exist. x is packed in the same order within a step.
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

// A code without its sign selects the two bytes of its bf16 value from two tables. Interleaving
// works within 128 bits, so one vector has the even groups of eight codes and the other the odd
// groups.
struct E4m3Codes : PlainCodes<std::uint8_t> {
  static constexpr int kVectors = 2;
  static constexpr std::int64_t kStep = 64;
  __m512i high[2], low[2];
  LATHE_INLINE E4m3Codes() {
    alignas(64) std::uint8_t bytes[2][128];
    for (int code = 0; code < 128; ++code) {
      const int exponent = code >> 3, mantissa = code & 7;
      // Subnormal, mantissa x 2^-9: normalise it.
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

// A 16-bit word has four codes. Vector j looks up the j-th nibble of every word in a table and adds
// the scale's exponent. Its lane i is element 4 i + j of the step, so eight lanes share a scale.
struct E2m1Codes {
  using At = MxAt;
  static constexpr std::int64_t kLine = 128;
  static constexpr int kLocality = 3;
  static constexpr int kVectors = 4;
  static constexpr std::int64_t kStep = 128;
  static_assert(kStep <= kMxStep);
  __m512i values, spread;
  LATHE_INLINE E2m1Codes() {
    // bf16 of 0, 0.5, 1, 1.5, 2, 3, 4, 6. The table is repeated, because the bit above the nibble
    // is part of the index too and must not matter.
    static constexpr std::uint16_t kSizes[8] = {0,      0x3f00, 0x3f80, 0x3fc0,
                                                0x4000, 0x4040, 0x4080, 0x40c0};
    alignas(64) std::uint16_t table[32];
    for (int i = 0; i < 32; ++i) {
      table[i] = static_cast<std::uint16_t>(kSizes[i % 8] | (i % 16 < 8 ? 0 : 0x8000));
    }
    values = _mm512_load_si512(table);
    // Shuffle: byte i / 8 (of four) to the high byte of word i; zero (index with a set sign bit) to
    // the low byte.
    alignas(64) std::uint16_t bytes[32];
    for (int i = 0; i < 32; ++i) bytes[i] = static_cast<std::uint16_t>((i / 8) << 8 | 0x80);
    spread = _mm512_load_si512(bytes);
  }
  static LATHE_INLINE At at(const WeightView& w) { return mx_at(w); }
  static LATHE_INLINE const void* address(At p) { return p.codes; }

  LATHE_INLINE void widen(__m512i words, std::uint32_t scales, __m512i* to) const {
    const __m512i scale = _mm512_srli_epi16(
        _mm512_shuffle_epi8(_mm512_set1_epi32(static_cast<int>(scales)), spread), 1);
    // Zeros, and blocks with a scale that counts as 0, get no exponent.
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

// A pointer to 4-bit codes with scales of groups; moves by whole groups. kSize: columns of a group,
// which then has no zeros; 0: any size, and zeros or none.
template <class Scale, int kSize = 0>
struct PieceAt {
  const std::uint8_t* codes;
  const Scale* scales;        // of any alignment
  const std::uint8_t* zeros;  // or null
  int shift;                  // log2 of a group's size
  LATHE_INLINE std::int64_t groups_of(std::int64_t k) const {
    return k >> (kSize > 0 ? __builtin_ctz(kSize) : shift);
  }
  LATHE_INLINE PieceAt operator+(std::int64_t k) const {
    const std::int64_t n = groups_of(k);
    return {codes + (k >> 1), scales + n, kSize > 0 || zeros == nullptr ? nullptr : zeros + n,
            shift};
  }
  LATHE_INLINE PieceAt& operator+=(std::int64_t k) { return *this = *this + k; }
};

// 4-bit codes with scales of groups. Vector b has 32 consecutive codes, 16 bytes: they are in all
// four 128-bit lanes, and lane q of these has the q-th nibble of every 16-bit word.
template <class Scale, int kSize = 0>
struct GroupedCodes {
  using At = PieceAt<Scale, kSize>;
  static constexpr std::int64_t kLine = 128;
  static constexpr int kLocality = 3;
  static constexpr int kVectors = 4;
  static constexpr std::int64_t kStep = 128;
  static constexpr std::int64_t kPiece = 32;  // codes of a vector
  static_assert(kStep <= kMxStep);
  __m512i shifts;
  LATHE_INLINE GroupedCodes() {
    alignas(64) std::uint16_t by[32];
    for (int i = 0; i < 32; ++i) by[i] = static_cast<std::uint16_t>(i / 8 * 4);
    shifts = _mm512_load_si512(by);
  }
  static LATHE_INLINE At at(const WeightView& w) {
    return {reinterpret_cast<const std::uint8_t*>(w.data),
            reinterpret_cast<const Scale*>(w.groups.data), w.groups.zeros,
            __builtin_ctz(static_cast<unsigned>(w.groups.size))};
  }
  static LATHE_INLINE const void* address(const At& p) { return p.codes; }

  // Codes in the low nibbles of 16-bit words; the bits above them are of other codes.
  LATHE_INLINE __m512i piece(const At& p, std::int64_t k) const {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p.codes + k / 2));
    return _mm512_srlv_epi16(_mm512_broadcast_i32x4(codes), shifts);
  }
  static LATHE_INLINE void order(__m512i* x) {
    alignas(64) std::uint16_t from[32];
    for (int i = 0; i < 32; ++i) from[i] = static_cast<std::uint16_t>(i % 8 * 4 + i / 8);
    const __m512i by = _mm512_load_si512(from);
    LATHE_UNROLL for (int v = 0; v < kVectors; ++v) x[v] = _mm512_permutexvar_epi16(by, x[v]);
  }
};

LATHE_INLINE __m512 scale_in_lanes(const bf16* p) {
  std::int16_t bits;
  __builtin_memcpy(&bits, p, sizeof(bits));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_set1_epi16(bits), 16));
}
LATHE_INLINE __m512 scale_in_lanes(const f16* p) {
  std::int16_t bits;
  __builtin_memcpy(&bits, p, sizeof(bits));
  return _mm512_cvtph_ps(_mm256_set1_epi16(bits));
}

// int4. A group's sixteen values (code - zero) * scale, rounded to bf16, are a table for its codes.
// It is there twice, because the bit above a nibble is part of the index too and must not matter.
struct U4Table {
  __m512 centred;  // code - kU4Zero
  LATHE_INLINE U4Table() {
    centred = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
  }
  // zero: the group's, or null: kU4Zero.
  template <class Half>
  LATHE_INLINE __m512i values(const Half* scale, const std::uint8_t* zero) const {
    static constexpr float kOffsets[17] = {-8, -7, -6, -5, -4, -3, -2, -1, 0,
                                           1,  2,  3,  4,  5,  6,  7,  8};  // zero - kU4Zero
    __m512 codes = centred;
    if (zero != nullptr) codes = _mm512_sub_ps(codes, _mm512_set1_ps(kOffsets[*zero]));
    const __m512 wide = _mm512_mul_ps(codes, scale_in_lanes(scale));
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(wide, wide));
  }
};

// kSize: as of PieceAt.
template <class Half, int kSize = 0>
struct U4Codes : GroupedCodes<Half, kSize> {
  using Base = GroupedCodes<Half, kSize>;
  using typename Base::At;
  U4Table table;
  LATHE_INLINE U4Codes() = default;
  LATHE_INLINE __m512i values(const At& p, std::int64_t k) const {
    const std::int64_t group = p.groups_of(k);
    const bool zeros = kSize == 0 && p.zeros != nullptr;
    return table.values(p.scales + group, zeros ? p.zeros + group : nullptr);
  }
  LATHE_INLINE void load(const At& p, __m512i* to) const { load(p, Base::kStep, to); }
  LATHE_INLINE void load(const At& p, std::int64_t n, __m512i* to) const {
    LATHE_UNROLL for (int v = 0; v < Base::kVectors; ++v) {
      const std::int64_t k = v * Base::kPiece;
      to[v] = k < n ? _mm512_permutexvar_epi16(this->piece(p, k), values(p, k))
                    : _mm512_setzero_si512();
    }
  }
};

// int4 in groups of 128: a cache line of codes has one table, so the line is loaded once, and
// vector j is the j-th nibble of every 16-bit word, as in E2m1Codes.
template <class Half, bool kZeros>
struct U4LineCodes {
  struct At {
    const std::uint8_t* codes;
    const Half* scales;         // of any alignment
    const std::uint8_t* zeros;  // null without kZeros
    LATHE_INLINE At operator+(std::int64_t k) const {
      const std::int64_t groups = k >> 7;
      return {codes + (k >> 1), scales + groups, kZeros ? zeros + groups : nullptr};
    }
    LATHE_INLINE At& operator+=(std::int64_t k) { return *this = *this + k; }
  };
  static constexpr std::int64_t kLine = 128;
  static constexpr int kLocality = 3;
  static constexpr int kVectors = 4;
  static constexpr std::int64_t kStep = 128;
  U4Table table;
  LATHE_INLINE U4LineCodes() = default;
  static LATHE_INLINE At at(const WeightView& w) {
    return {reinterpret_cast<const std::uint8_t*>(w.data),
            reinterpret_cast<const Half*>(w.groups.data), w.groups.zeros};
  }
  static LATHE_INLINE const void* address(const At& p) { return p.codes; }
  LATHE_INLINE void load(const At& p, __m512i* to) const {
    const __m512i values = table.values(p.scales, kZeros ? p.zeros : nullptr);
    __m512i words = _mm512_loadu_si512(p.codes);
    keep_in_register(words);
    to[0] = _mm512_permutexvar_epi16(words, values);
    LATHE_UNROLL for (int v = 1; v < kVectors; ++v) {
      const __m512i codes = _mm512_srli_epi16(words, static_cast<unsigned>(4 * v));
      to[v] = _mm512_permutexvar_epi16(codes, values);
    }
  }
  // Columns are whole groups.
  LATHE_INLINE void load(const At& p, std::int64_t, __m512i* to) const { load(p, to); }
  static LATHE_INLINE void order(__m512i* x) { E2m1Codes::order(x); }
};

// NVFP4. A code times its scale is exact in bf16. The matrix's factor multiplies the sums.
struct NvCodes : GroupedCodes<std::uint8_t> {
  __m512i table;
  LATHE_INLINE NvCodes() {
    static constexpr std::uint16_t kSizes[8] = {0,      0x3f00, 0x3f80, 0x3fc0,
                                                0x4000, 0x4040, 0x4080, 0x40c0};
    alignas(64) std::uint16_t all[32];
    for (int i = 0; i < 32; ++i) {
      all[i] = static_cast<std::uint16_t>(kSizes[i % 8] | (i % 16 < 8 ? 0 : 0x8000));
    }
    table = _mm512_load_si512(all);
  }
  // The values of eight e4m3 codes: at the place of an f32's exponent and mantissa a code is its
  // value x 2^-120.
  static LATHE_INLINE __m512 scales(__m128i codes) {
    const __m512i wide = _mm512_cvtepu8_epi32(codes);
    const __m512i sign = _mm512_slli_epi32(_mm512_and_si512(wide, _mm512_set1_epi32(0x80)), 24);
    const __m512i size = _mm512_slli_epi32(_mm512_and_si512(wide, _mm512_set1_epi32(0x7f)), 20);
    return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_or_si512(sign, size)),
                         _mm512_set1_ps(0x1p120f));
  }
  // Words 0 to 3 of a 128-bit lane are of the first group of 16 columns, 4 to 7 of the second.
  LATHE_INLINE __m512i widen(const At& p, int v, __m512 scales) const {
    const __m512i codes = _mm512_permutexvar_epi16(piece(p, v * kPiece), table);
    const __m512i of_pairs = _mm512_add_epi32(_mm512_broadcast_i32x4(_mm_setr_epi32(0, 0, 1, 1)),
                                              _mm512_set1_epi32(2 * v));
    const __m512 scale = _mm512_permutexvar_ps(of_pairs, scales);
    const __m512i odd = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    const __m512 low = _mm512_castsi512_ps(_mm512_slli_epi32(codes, 16));
    const __m512 high = _mm512_castsi512_ps(_mm512_and_si512(codes, odd));
    return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(_mm512_mul_ps(low, scale)), 16),
                           _mm512_castps_si512(_mm512_mul_ps(high, scale)));
  }
  LATHE_INLINE void load(const At& p, __m512i* to) const {
    const __m512 all = scales(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p.scales)));
    LATHE_UNROLL for (int v = 0; v < kVectors; ++v) to[v] = widen(p, v, all);
  }
  LATHE_INLINE void load(const At& p, std::int64_t n, __m512i* to) const {
    const auto exist = static_cast<__mmask16>((1u << (n / kNvBlock)) - 1);
    const __m512 all = scales(_mm_maskz_loadu_epi8(exist, p.scales));
    LATHE_UNROLL for (int v = 0; v < kVectors; ++v) {
      to[v] = v * kPiece < n ? widen(p, v, all) : _mm512_setzero_si512();
    }
  }
};

LATHE_INLINE __m512 dot(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

// Sums the lanes of each of four vectors.
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

}  // namespace
}  // namespace lathe
