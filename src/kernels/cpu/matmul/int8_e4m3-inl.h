// e4m3 weights of products by 8-bit integers. Include it after int8_tiles-inl.h, between
// LATHE_TARGET_BEGIN(LATHE_INT8_VBMI) and LATHE_TARGET_END.
//
// The 128 columns of an output that share a scale become integers as they are loaded: multiples of
// 2^-6 of the binade of the group's largest weight. A code selects its integer from a table, and
// the exponent of the largest code selects the table. Codes are ordered as their sizes are.

namespace lathe::int8_matmul {
namespace {

static_assert(kChunk == kWeightBlock);

constexpr int kE4m3Zero = 128;  // the unsigned byte that stands for 0

// [exponent of the largest code][code without its sign] kE4m3Zero + the integer.
struct E4m3Tables {
  alignas(64) std::uint8_t of[16][128];
};

constexpr E4m3Tables make_e4m3_tables() {
  E4m3Tables tables{};
  for (int top = 0; top < 16; ++top) {
    for (int code = 0; code < 128; ++code) {
      const int exponent = code >> 3, mantissa = code & 7;
      if (exponent > top) break;
      // A subnormal has the exponent of the smallest normal number.
      const int significand = exponent == 0 ? mantissa : 8 + mantissa;
      const int below = (top == 0 ? 1 : top) - (exponent == 0 ? 1 : exponent);
      int integer = significand << 3;
      if (below > 0) {  // to the nearest, or even
        const int half = 1 << below >> 1, rest = integer & ((1 << below) - 1);
        integer >>= below;
        if (rest > half || (rest == half && integer % 2 == 1)) ++integer;
      }
      tables.of[top][code] = static_cast<std::uint8_t>(kE4m3Zero + integer);
    }
  }
  return tables;
}
constexpr E4m3Tables kE4m3Tables = make_e4m3_tables();

// The integers of 64 codes, from the table of their group.
LATHE_INLINE __m512i integers_of(__m512i codes, const std::uint8_t* table) {
  const __m512i sizes =
      _mm512_permutex2var_epi8(_mm512_load_si512(table), codes, _mm512_load_si512(table + 64));
  // 256 - (128 + integer) is 128 - integer.
  return _mm512_mask_sub_epi8(sizes, _mm512_movepi8_mask(codes), _mm512_setzero_si512(), sizes);
}

// Codes of a group of an output without their signs: the larger of each two.
LATHE_INLINE __m512i larger_sizes(__m512i a, __m512i b) {
  const __m512i size = _mm512_set1_epi8(0x7f);
  return _mm512_max_epu8(_mm512_and_si512(a, size), _mm512_and_si512(b, size));
}

// The largest bytes of each of four vectors, apart for each quarter: the bytes of lane 4 q + i of
// the result have the largest of quarter q of x[i] among them.
LATHE_INLINE __m512i most_of_quarters(const __m512i (&x)[4]) {
  const __m512i a =
      _mm512_max_epu8(_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[0], x[1]));
  const __m512i b =
      _mm512_max_epu8(_mm512_unpacklo_epi32(x[2], x[3]), _mm512_unpackhi_epi32(x[2], x[3]));
  return _mm512_max_epu8(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

// The exponents of the largest of 64 bytes each of 16 vectors. x: most_of_quarters() of four of
// them each.
LATHE_INLINE __m512i exponents_of(__m512i (&x)[4]) {
  transpose_quarters(x);
  __m512i most = _mm512_max_epu8(_mm512_max_epu8(x[0], x[1]), _mm512_max_epu8(x[2], x[3]));
  most = _mm512_max_epu8(most, _mm512_srli_epi32(most, 16));
  most = _mm512_max_epu8(most, _mm512_srli_epi32(most, 8));
  return _mm512_and_si512(_mm512_srli_epi32(most, 3), _mm512_set1_epi32(15));
}

// The value of an integer of a group whose largest code has this exponent.
LATHE_INLINE __m512 unit_of(__m512i exponents) {
  const __m512i normal = _mm512_max_epi32(exponents, _mm512_set1_epi32(1));
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_add_epi32(normal, _mm512_set1_epi32(127 - 7 - 6)), 23));
}

// The scales of the weight blocks of output `out`, or null.
LATHE_INLINE const float* block_scales(const WeightView& w, std::int64_t out) {
  if (w.scales == nullptr || has_factors(w)) return nullptr;
  return w.scales + out / kWeightBlock * weight_blocks(w.cols);
}

// The codes of 64 columns that exist if n columns are left.
LATHE_INLINE __mmask64 first64(std::int64_t n) {
  return n >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << (n < 0 ? 0 : n)) - 1;
}

// Integers and scales of outputs out .. out + 16, columns k on, to columns `begin` on of the panel.
// Of missing outputs, those of the last one. ahead: [16, kChunk] codes to prefetch.
void fill_e4m3(const WeightView& w, std::int64_t out, std::int64_t k, std::int64_t begin,
               float block, const std::byte* ahead, Panel& panel) {
  const std::byte* from[16];
  for (std::int64_t i = 0; i < 16; ++i) {
    from[i] = w.data + smaller(out + i, w.rows - 1) * w.cols + k;
  }
  const __mmask64 low = first64(w.cols - k), high = first64(w.cols - k - 64);
  __m512i quarters[4];
  LATHE_UNROLL for (int a = 0; a < 4; ++a) {
    __m512i sizes[4];
    LATHE_UNROLL for (int i = 0; i < 4; ++i) {
      const std::byte* at = from[4 * a + i];
      sizes[i] =
          larger_sizes(_mm512_maskz_loadu_epi8(low, at), _mm512_maskz_loadu_epi8(high, at + 64));
    }
    quarters[a] = most_of_quarters(sizes);
  }
  const __m512i exponents = exponents_of(quarters);
  alignas(64) std::int32_t tops[16];
  _mm512_store_si512(tops, exponents);
  _mm512_store_ps(panel.scales[k / kChunk % kScaleRun] + begin,
                  _mm512_mul_ps(_mm512_set1_ps(block), unit_of(exponents)));
  for (int half = 0; half < 2; ++half) {
    const __mmask64 exist = half == 0 ? low : high;
    __m512i x[16];
    LATHE_UNROLL for (int i = 0; i < 16; ++i) {
      fetch(ahead + 64 * i);
      x[i] =
          integers_of(_mm512_maskz_loadu_epi8(exist, from[i] + 64 * half), kE4m3Tables.of[tops[i]]);
    }
    ahead += 16 * 64;
    transpose(x);
    LATHE_UNROLL for (int j = 0; j < 16; ++j) {
      _mm512_store_si512(panel.codes[16 * half + j][begin], x[j]);
    }
  }
}

// Few rows: integers are used as they are loaded. The outputs are divided into four consecutive
// runs, and four of them, one of each run, are multiplied together: memory is read fastest in a few
// long streams. The exponents of a batch are found while the batch before is multiplied, because
// the way from codes to a table is long.
constexpr int kBatch = 4;  // groups of each of four outputs
constexpr std::int64_t kBatchCols = kBatch * kChunk;

struct FourOutputs {
  std::int64_t of[4];  // number in the task
  const std::byte* codes[4];
};

// Of a batch; lane 4 g + i is of group g of output i.
struct BatchScales {
  alignas(64) std::uint32_t exponents[16];
  alignas(64) float scales[16];
};

// The columns of a batch that exist if `left` are left.
struct BatchColumns {
  std::int64_t left;
  LATHE_INLINE bool has(int group) const { return group * kChunk < left; }
  LATHE_INLINE __mmask64 mask(int group, int half) const {
    return first64(left - group * kChunk - half * 64);
  }
  LATHE_INLINE __mmask16 groups() const { return first16((left + kChunk - 1) / kChunk); }
};

// Lane i becomes lanes 4 i to 4 i + 3.
LATHE_INLINE __m512i each_four_times(__m128i x) {
  const __m512i from = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  return _mm512_permutexvar_epi32(from, _mm512_castsi128_si512(x));
}

// Keeps GCC from computing an address of its own for every load: it would need too many registers.
template <class T>
LATHE_INLINE const T* keep(const T* p) {
  asm("" : "+r"(p));
  return p;
}

// Finds the scales of the batch from column k on. blocks: those of its weight blocks, or null.
LATHE_INLINE void find_scales(const FourOutputs& w, std::int64_t k, BatchColumns columns,
                              const float* blocks, BatchScales& to) {
  const std::byte* from[4];
  LATHE_UNROLL for (int i = 0; i < 4; ++i) from[i] = keep(w.codes[i] + k);
  __m512i quarters[kBatch];
  LATHE_UNROLL for (int g = 0; g < kBatch; ++g) {
    quarters[g] = _mm512_setzero_si512();
    if (!columns.has(g)) continue;
    const __mmask64 low = columns.mask(g, 0), high = columns.mask(g, 1);
    __m512i sizes[4];
    LATHE_UNROLL for (int i = 0; i < 4; ++i) {
      const std::byte* at = from[i] + g * kChunk;
      sizes[i] =
          larger_sizes(_mm512_maskz_loadu_epi8(low, at), _mm512_maskz_loadu_epi8(high, at + 64));
    }
    quarters[g] = most_of_quarters(sizes);
  }
  const __m512i exponents = exponents_of(quarters);
  _mm512_store_si512(to.exponents, exponents);
  __m512 scales = unit_of(exponents);
  if (blocks != nullptr) {
    const __m128i of_groups =
        _mm_maskz_loadu_epi32(static_cast<__mmask8>(columns.groups()), blocks);
    scales = _mm512_mul_ps(_mm512_castsi512_ps(each_four_times(of_groups)), scales);
  }
  _mm512_store_ps(to.scales, scales);
}

// Adds a batch to the sums of kRows rows and four outputs. ahead: bytes to what is prefetched.
template <int kRows>
LATHE_INLINE void add_batch(const FourOutputs& w, const Int8Rows& x, std::int64_t row,
                            std::int64_t k, BatchColumns columns, std::int64_t ahead,
                            const BatchScales& scales, __m128 (&sums)[kRows]) {
  const std::byte* from[4];
  LATHE_UNROLL for (int i = 0; i < 4; ++i) from[i] = keep(w.codes[i] + k);
  const std::int8_t* x_codes = keep(x.codes + (k / kChunk * x.rows + row) * kChunk);
  const std::int64_t x_stride = x.rows * kChunk;
  const std::uint32_t* exponents = keep(scales.exponents);
  const E4m3Tables* tables = keep(&kE4m3Tables);
  __m512i quarters[kRows][kBatch];
  LATHE_UNROLL for (int g = 0; g < kBatch; ++g) {
    LATHE_UNROLL for (int r = 0; r < kRows; ++r) quarters[r][g] = _mm512_setzero_si512();
    if (!columns.has(g)) continue;
    const __mmask64 low = columns.mask(g, 0), high = columns.mask(g, 1);
    const std::int8_t* in = x_codes;
    x_codes = keep(x_codes + x_stride);
    __m512i acc[kRows][4];
    LATHE_UNROLL for (int i = 0; i < 4; ++i) {
      const std::byte* at = from[i] + g * kChunk;
      fetch(at + ahead);
      fetch(at + ahead + 64);
      const std::uint8_t* table = tables->of[exponents[4 * g + i]];
      const __m512i a = integers_of(_mm512_maskz_loadu_epi8(low, at), table);
      const __m512i b = integers_of(_mm512_maskz_loadu_epi8(high, at + 64), table);
      LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
        acc[r][i] = _mm512_setzero_si512();
        dot(acc[r][i], a, _mm512_loadu_si512(in + r * kChunk));
        dot(acc[r][i], b, _mm512_loadu_si512(in + r * kChunk + 64));
      }
    }
    LATHE_UNROLL for (int r = 0; r < kRows; ++r) quarters[r][g] = sums_of_quarters(acc[r]);
  }
  const auto groups = static_cast<__mmask8>(columns.groups());
  LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
    __m512i(&q)[kBatch] = quarters[r];
    transpose_quarters(q);
    const std::int64_t at = (row + r) * x.groups + k / kChunk;
    const __m128i offset =
        _mm_mullo_epi32(_mm_maskz_loadu_epi32(groups, x.minus + at), _mm_set1_epi32(kE4m3Zero));
    const __m512i integers =
        _mm512_add_epi32(_mm512_add_epi32(_mm512_add_epi32(q[0], q[1]), each_four_times(offset)),
                         _mm512_add_epi32(q[2], q[3]));
    const __m512 by =
        _mm512_castsi512_ps(each_four_times(_mm_maskz_loadu_epi32(groups, x.scales + at)));
    const __m512 scale = _mm512_mul_ps(_mm512_load_ps(scales.scales), by);
    const __m512 value = _mm512_cvtepi32_ps(integers);
    __m128 sum = sums[r];
    sum = _mm_fmadd_ps(_mm512_castps512_ps128(value), _mm512_castps512_ps128(scale), sum);
    sum = _mm_fmadd_ps(_mm512_extractf32x4_ps(value, 1), _mm512_extractf32x4_ps(scale, 1), sum);
    sum = _mm_fmadd_ps(_mm512_extractf32x4_ps(value, 2), _mm512_extractf32x4_ps(scale, 2), sum);
    sums[r] = _mm_fmadd_ps(_mm512_extractf32x4_ps(value, 3), _mm512_extractf32x4_ps(scale, 3), sum);
  }
}

template <int kRows>
__attribute__((noinline, aligned(64))) void few_e4m3(const WeightView& w, const Int8Rows& x,
                                                     std::int64_t row, std::int64_t out,
                                                     std::int64_t outs, float* sums) {
  constexpr std::int64_t kAhead = 4096;  // bytes to prefetch ahead in a run
  const std::int64_t run = (outs + 3) / 4;
  const float* blocks = block_scales(w, out);
  const auto outputs = [&](std::int64_t n) {
    FourOutputs four;
    LATHE_UNROLL for (int i = 0; i < 4; ++i) {
      four.of[i] = smaller(i * run + n, outs - 1);
      four.codes[i] = w.data + (out + four.of[i]) * w.cols;
    }
    return four;
  };
  const auto find = [&](const FourOutputs& of, std::int64_t k, BatchScales& to) {
    const float* scales = blocks == nullptr ? nullptr : blocks + k / kWeightBlock;
    if (w.cols - k >= kBatchCols) {
      find_scales(of, k, {kBatchCols}, scales, to);
    } else {
      find_scales(of, k, {w.cols - k}, scales, to);
    }
  };
  BatchScales scales[2];
  FourOutputs now = outputs(0);
  find(now, 0, scales[0]);
  int turn = 0;
  for (std::int64_t n = 0; n < run; ++n) {
    const FourOutputs next = outputs(n + 1);
    __m128 all[kRows];
    LATHE_UNROLL for (int r = 0; r < kRows; ++r) all[r] = _mm_setzero_ps();
    for (std::int64_t k = 0; k < w.cols; k += kBatchCols, turn ^= 1) {
      const std::int64_t left = w.cols - k;
      if (left > kBatchCols) {
        find(now, k + kBatchCols, scales[turn ^ 1]);
      } else if (n + 1 < run) {
        find(next, 0, scales[turn ^ 1]);
      }
      // What follows in the run, or at its end what follows all runs.
      const bool ends = n * w.cols + k + kAhead >= run * w.cols;
      const std::int64_t ahead = kAhead + (ends ? 3 * run * w.cols : 0);
      if (left >= kBatchCols) {
        add_batch<kRows>(now, x, row, k, {kBatchCols}, ahead, scales[turn], all);
      } else {
        add_batch<kRows>(now, x, row, k, {left}, ahead, scales[turn], all);
      }
    }
    LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
      alignas(16) float four[4];
      _mm_store_ps(four, all[r]);
      for (int i = 0; i < 4; ++i) sums[r * kTaskOuts + now.of[i]] = four[i];
    }
    now = next;
  }
}

using MultiplyFewE4m3 = void (*)(const WeightView&, const Int8Rows&, std::int64_t, std::int64_t,
                                 std::int64_t, float*);
constexpr MultiplyFewE4m3 kMultiplyFewE4m3[] = {few_e4m3<1>, few_e4m3<2>, few_e4m3<3>, few_e4m3<4>,
                                                few_e4m3<5>, few_e4m3<6>, few_e4m3<7>, few_e4m3<8>};
constexpr std::int64_t kFewE4m3 = std::ssize(kMultiplyFewE4m3);  // up to this many need no panel

// Sums of rows row .. row + rows and outputs out .. out + kTaskOuts, without the factors of
// has_factors(). sums: [rows, kTaskOuts] zeros. next: the codes that this thread probably reads
// after these, or null. They are prefetched in the order of memory, which is the fastest.
void sum_e4m3(const WeightView& w, const Int8Rows& x, std::int64_t row, std::int64_t rows,
              std::int64_t out, const std::byte* next, float* sums) {
  const std::int64_t outs = smaller(kTaskOuts, w.rows - out);
  if (rows <= kFewE4m3) return kMultiplyFewE4m3[rows - 1](w, x, row, out, outs, sums);
  Panel panel;
  panel.has_zeros = false;
  panel.zero = kE4m3Zero;
  const float* blocks = block_scales(w, out);
  const std::byte* ahead = next == nullptr ? w.data : next;
  for (std::int64_t k = 0; k < w.cols; k += kChunk) {
    const float block = blocks == nullptr ? 1.0f : blocks[k / kWeightBlock];
    for (std::int64_t i = 0; i < kTaskOuts; i += 16, ahead += 16 * kChunk) {
      fill_e4m3(w, out + i, k, i, block, ahead, panel);
    }
    multiply_panel(x, row, rows, k, panel, sums);
  }
}

}  // namespace
}  // namespace lathe::int8_matmul
