// Rounds x to 8-bit integers and multiplies it by panels of weights. Include it once in a file,
// between LATHE_TARGET_BEGIN(LATHE_INT8_DOT) and LATHE_TARGET_END
// (kernels/cpu/common/dot_targets.h), before the files of the formats.
//
// A task is 64 outputs and up to 512 rows of x. Of more than a few rows, for each 128 columns the
// weights are transposed to a panel in the first-level cache, which multiplies all rows.

namespace lathe::int8_matmul {
namespace {

constexpr std::int64_t kChunk = 128;     // columns of a panel: a cache line of codes of each row
constexpr std::int64_t kTaskOuts = 64;   // outputs of a panel, four vectors
constexpr std::int64_t kTaskRows = 512;  // most rows of a task: their sums fit the second level
constexpr int kTileRows = 6;             // times four vectors of sums: 24 of 32 registers
constexpr std::int64_t kScaleRun = 16;   // groups whose scales are transposed at a time

// The rounded x of a product.
struct Int8Rows {
  std::int64_t rows, cols, size;  // size: columns of a group; the last group may have fewer
  bool evens_first;               // of each 8 columns the even ones are first
  std::int8_t* codes;             // [ceil(cols / kChunk)][rows, kChunk]
  std::int64_t groups;
  float* scales;        // [rows, groups]
  std::int32_t* minus;  // [rows, groups] minus the sum of the codes
};

#define LATHE_INLINE inline __attribute__((always_inline))

// Not std::min: the linker could choose a copy of it with these instructions for other files.
LATHE_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// sum += dot products of four unsigned and four signed bytes in each 32-bit lane. GCC 12 keeps the
// sums of a tile in memory if it is given the intrinsic.
LATHE_INLINE void dot(__m512i& sum, __m512i unsigned_bytes, __m512i signed_bytes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(unsigned_bytes), "v"(signed_bytes));
}

// Asks for a line of codes. A load that misses keeps later ones waiting; this does not.
LATHE_INLINE void fetch(const void* line) { __builtin_prefetch(line, 0, 2); }

// Lanes of a vector that exist if n columns are left.
LATHE_INLINE __mmask16 first16(std::int64_t n) {
  return static_cast<__mmask16>(n >= 16 ? 0xffffu : (1u << (n < 0 ? 0 : n)) - 1);
}

// Rounds columns first .. first + x.size of a row. Codes of columns beyond the last are zeros.
LATHE_INLINE void round_group(const Int8Rows& x, std::int64_t row, std::int64_t first,
                              const float* from) {
  const std::int64_t depth = smaller(x.size, x.cols - first);
  // The bits of sizes are ordered as the sizes are, and NaN is the largest.
  __m512i most = _mm512_setzero_si512();
  const __m512i size_bits = _mm512_set1_epi32(0x7fffffff);
  for (std::int64_t i = 0; i < depth; i += 16) {
    const __m512i bits = _mm512_maskz_loadu_epi32(first16(depth - i), from + i);
    most = _mm512_max_epi32(most, _mm512_and_si512(bits, size_bits));
  }
  const float largest = __builtin_bit_cast(float, _mm512_reduce_max_epi32(most));
  const bool finite = largest - largest == 0;
  const float inverse = finite && largest > 1e-30f ? 127.0f / largest : 0.0f;
  const float scale = inverse > 0 ? largest / 127.0f : largest - largest;  // 0 or NaN
  const __m512 by = _mm512_set1_ps(inverse);
  const __m128i evens_first = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
  __m512i sum = _mm512_setzero_si512();
  std::int8_t* to = x.codes + (first / kChunk * x.rows + row) * kChunk + first % kChunk;
  for (std::int64_t i = 0; i < x.size; i += 16) {
    __m512i code = _mm512_setzero_si512();
    if (inverse > 0) {
      const __m512 value = _mm512_maskz_loadu_ps(first16(depth - i), from + i);
      code = _mm512_cvtps_epi32(_mm512_mul_ps(value, by));
    }
    sum = _mm512_add_epi32(sum, code);
    __m128i bytes = _mm512_cvtepi32_epi8(code);
    if (x.evens_first) bytes = _mm_shuffle_epi8(bytes, evens_first);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), bytes);
  }
  const std::int64_t at = row * x.groups + first / x.size;
  x.scales[at] = scale;
  x.minus[at] = -_mm512_reduce_add_epi32(sum);
}

void round_row(const Int8Rows& x, const RowsView& from, std::int64_t row) {
  const auto* values = reinterpret_cast<const float*>(from.row(row));
  for (std::int64_t k = 0; k < x.cols; k += x.size) round_group(x, row, k, values + k);
}

// Element j of vector i becomes element i of vector j.
LATHE_INLINE void transpose(__m512i (&x)[16]) {
  __m512i t[16], u[16];
  LATHE_UNROLL for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  LATHE_UNROLL for (int i = 0; i < 16; i += 4) {
    u[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    u[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    u[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    u[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  LATHE_UNROLL for (int c = 0; c < 4; ++c) {
    const __m512i a = _mm512_shuffle_i32x4(u[c], u[4 + c], 0x44);
    const __m512i b = _mm512_shuffle_i32x4(u[c], u[4 + c], 0xee);
    const __m512i d = _mm512_shuffle_i32x4(u[8 + c], u[12 + c], 0x44);
    const __m512i e = _mm512_shuffle_i32x4(u[8 + c], u[12 + c], 0xee);
    x[c] = _mm512_shuffle_i32x4(a, d, 0x88);
    x[4 + c] = _mm512_shuffle_i32x4(a, d, 0xdd);
    x[8 + c] = _mm512_shuffle_i32x4(b, e, 0x88);
    x[12 + c] = _mm512_shuffle_i32x4(b, e, 0xdd);
  }
}

struct Panel {
  alignas(64) std::uint8_t codes[kChunk / 4][kTaskOuts][4];  // 4 columns of each output
  alignas(64) float scales[kScaleRun][kTaskOuts];
  alignas(64) std::int32_t zeros[kScaleRun][kTaskOuts];  // written if has_zeros
  bool has_zeros;
  std::int32_t zero;  // of all groups, without zeros
};

// Adds a group's integer sums of 16 outputs to a row's sums.
LATHE_INLINE void add_group(__m512i integers, const float* scales, float x_scale, float* sums) {
  const __m512 scale = _mm512_mul_ps(_mm512_load_ps(scales), _mm512_set1_ps(x_scale));
  _mm512_store_ps(sums, _mm512_fmadd_ps(_mm512_cvtepi32_ps(integers), scale, _mm512_load_ps(sums)));
}

// kRows rows of x times a group of a panel.
struct Tile {
  const std::uint8_t* panel;  // [steps, kTaskOuts, 4]
  const std::int8_t* x;       // [kRows, kChunk]
  std::int64_t steps;         // of 4 columns
  const float* scales;        // [kTaskOuts]
  const std::int32_t* zeros;  // [kTaskOuts], or null: all are `zero`
  std::int32_t zero;
  const float* x_scales;      // [kRows], `groups` apart
  const std::int32_t* minus;  // [kRows], `groups` apart
  std::int64_t groups;
  float* sums;  // [kRows, kTaskOuts]
};

template <int kRows>
__attribute__((noinline)) void multiply_group(const Tile& t) {
  constexpr int kVectors = kTaskOuts / 16;
  __m512i acc[kRows][kVectors];
  LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
    if (t.zeros == nullptr) {
      const __m512i offset = _mm512_set1_epi32(t.minus[r * t.groups] * t.zero);
      LATHE_UNROLL for (int v = 0; v < kVectors; ++v) acc[r][v] = offset;
    } else {
      const __m512i minus = _mm512_set1_epi32(t.minus[r * t.groups]);
      LATHE_UNROLL for (int v = 0; v < kVectors; ++v) {
        acc[r][v] = _mm512_mullo_epi32(minus, _mm512_load_si512(t.zeros + 16 * v));
      }
    }
  }
  const std::uint8_t* panel = t.panel;
  const std::int8_t* x = t.x;
  for (std::int64_t s = t.steps; s > 0; --s) {
    __m512i w[kVectors];
    LATHE_UNROLL for (int v = 0; v < kVectors; ++v) w[v] = _mm512_load_si512(panel + 64 * v);
    LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
      std::int32_t four;
      __builtin_memcpy(&four, x + r * kChunk, sizeof(four));
      const __m512i in = _mm512_set1_epi32(four);
      LATHE_UNROLL for (int v = 0; v < kVectors; ++v) { dot(acc[r][v], w[v], in); }
    }
    panel += 4 * kTaskOuts;
    x += 4;
  }
  LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
    LATHE_UNROLL for (int v = 0; v < kVectors; ++v) {
      add_group(acc[r][v], t.scales + 16 * v, t.x_scales[r * t.groups],
                t.sums + r * kTaskOuts + 16 * v);
    }
  }
}

using MultiplyGroup = void (*)(const Tile&);
constexpr MultiplyGroup kMultiply[kTileRows] = {multiply_group<1>, multiply_group<2>,
                                                multiply_group<3>, multiply_group<4>,
                                                multiply_group<5>, multiply_group<6>};

// The sums of the lanes of each of four vectors, apart for each quarter: lane 4 q + i of the result
// is the sum of lanes 4 q to 4 q + 3 of x[i].
LATHE_INLINE __m512i sums_of_quarters(const __m512i (&x)[4]) {
  const __m512i a =
      _mm512_add_epi32(_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[0], x[1]));
  const __m512i b =
      _mm512_add_epi32(_mm512_unpacklo_epi32(x[2], x[3]), _mm512_unpackhi_epi32(x[2], x[3]));
  return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

// Quarter q of vector i becomes quarter i of vector q.
LATHE_INLINE void transpose_quarters(__m512i (&x)[4]) {
  const __m512i a = _mm512_shuffle_i32x4(x[0], x[1], 0x44);
  const __m512i b = _mm512_shuffle_i32x4(x[0], x[1], 0xee);
  const __m512i d = _mm512_shuffle_i32x4(x[2], x[3], 0x44);
  const __m512i e = _mm512_shuffle_i32x4(x[2], x[3], 0xee);
  x[0] = _mm512_shuffle_i32x4(a, d, 0x88);
  x[1] = _mm512_shuffle_i32x4(a, d, 0xdd);
  x[2] = _mm512_shuffle_i32x4(b, e, 0x88);
  x[3] = _mm512_shuffle_i32x4(b, e, 0xdd);
}

// Multiplies a group of the panel by all rows.
void multiply_panel(const Int8Rows& x, std::int64_t row, std::int64_t rows, std::int64_t k,
                    const Panel& panel, float* sums) {
  const std::int64_t group = k / x.size, in_run = group % kScaleRun;
  for (std::int64_t r = 0; r < rows; r += kTileRows) {
    const Tile tile{panel.codes[k % kChunk / 4][0],
                    x.codes + (k / kChunk * x.rows + row + r) * kChunk + k % kChunk,
                    x.size / 4,
                    panel.scales[in_run],
                    panel.has_zeros ? panel.zeros[in_run] : nullptr,
                    panel.zero,
                    x.scales + (row + r) * x.groups + group,
                    x.minus + (row + r) * x.groups + group,
                    x.groups,
                    sums + r * kTaskOuts};
    kMultiply[smaller(kTileRows, rows - r) - 1](tile);
  }
}

}  // namespace
}  // namespace lathe::int8_matmul
