// int4 weights of products by 8-bit integers. Include it after int8_tiles-inl.h, in the same way.

namespace lathe::int8_matmul {
namespace {

// Codes of outputs out .. out + outs, columns k .. k + depth. Outputs beyond `outs` are zeros.
void fill_codes(const WeightView& w, std::int64_t out, std::int64_t outs, std::int64_t k,
                std::int64_t depth, Panel& panel) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(w.data);
  const __mmask64 exist = ~std::uint64_t{0} >> (64 - depth / 2);
  const __m512i low = _mm512_set1_epi8(15);
  for (std::int64_t first = 0; first < kTaskOuts; first += 16) {
    __m512i x[16];
    LATHE_UNROLL for (int i = 0; i < 16; ++i) {
      if (first + i < outs) {
        const std::uint8_t* from = data + ((out + first + i) * w.cols + k) / 2;
        fetch(from + 256);  // four panels ahead
        x[i] = _mm512_maskz_loadu_epi8(exist, from);
      } else {
        x[i] = _mm512_setzero_si512();
      }
    }
    transpose(x);
    LATHE_UNROLL for (int j = 0; j < 16; ++j) {
      _mm512_store_si512(panel.codes[2 * j][first], _mm512_and_si512(x[j], low));
      _mm512_store_si512(panel.codes[2 * j + 1][first],
                         _mm512_and_si512(_mm512_srli_epi16(x[j], 4), low));
    }
  }
}

// Scales and zeros of outputs out .. out + 16, groups first .. first + kScaleRun, to columns
// `begin` on of the panel.
void fill_scales(const WeightView& w, std::int64_t out, std::int64_t first, std::int64_t begin,
                 Panel& panel) {
  const GroupScales& groups = w.groups;
  const std::int64_t across = w.cols / groups.size;
  const std::int64_t count = smaller(kScaleRun, across - first);
  const auto exist = static_cast<__mmask16>((1u << count) - 1);
  __m512i scales[16], zeros[16];
  for (std::int64_t i = 0; i < 16; ++i) {
    const std::int64_t at = smaller(out + i, w.rows - 1) * across + first;
    const __m256i half = _mm256_maskz_loadu_epi16(exist, groups.data + 2 * at);
    scales[i] = groups.dtype == DType::f16 ? _mm512_castps_si512(_mm512_cvtph_ps(half))
                                           : _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
    zeros[i] = groups.zeros == nullptr
                   ? _mm512_set1_epi32(kU4Zero)
                   : _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(exist, groups.zeros + at));
  }
  transpose(scales);
  if (groups.zeros != nullptr) transpose(zeros);
  for (int g = 0; g < kScaleRun; ++g) {
    _mm512_store_si512(panel.scales[g] + begin, scales[g]);
    _mm512_store_si512(panel.zeros[g] + begin, zeros[g]);
  }
}

// Few rows and 16 outputs: codes are used as they are loaded, and the lanes of the outputs are
// summed together. A quarter of a vector of codes is 32 columns.
template <int kRows>
void few_rows(const WeightView& w, const Int8Rows& x, std::int64_t row, std::int64_t out,
              Panel& panel, float* sums) {
  const __m512i low = _mm512_set1_epi8(15);
  const __m512i evens =
      _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
  const std::int64_t most = w.rows - 1 - out;
  const std::byte* codes_of[16];
  for (int i = 0; i < 16; ++i) codes_of[i] = w.data + (out + smaller(i, most)) * w.cols / 2;
  for (std::int64_t k = 0; k < x.cols; k += kChunk) {
    if (k % (kScaleRun * x.size) == 0) fill_scales(w, out, k / x.size, 0, panel);
    const std::int64_t depth = smaller(kChunk, x.cols - k);
    const __mmask64 exist = ~std::uint64_t{0} >> (64 - depth / 2);
    __m512i even[kRows], odd[kRows], quarters[kRows][4];
    LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
      const std::int8_t* from = x.codes + (k / kChunk * x.rows + row + r) * kChunk;
      const __m512i a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + 64);
      even[r] = _mm512_permutex2var_epi32(a, evens, b);
      odd[r] = _mm512_permutex2var_epi32(a, odds, b);
    }
    LATHE_UNROLL for (int a = 0; a < 4; ++a) {
      __m512i acc[kRows][4];
      LATHE_UNROLL for (int i = 0; i < 4; ++i) {
        const std::byte* from = codes_of[4 * a + i] + k / 2;
        fetch(from + 8 * w.cols);  // the line of the next 16 outputs
        const __m512i codes = _mm512_maskz_loadu_epi8(exist, from);
        const __m512i l = _mm512_and_si512(codes, low);
        const __m512i h = _mm512_and_si512(_mm512_srli_epi16(codes, 4), low);
        LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
          acc[r][i] = _mm512_setzero_si512();
          dot(acc[r][i], l, even[r]);
          dot(acc[r][i], h, odd[r]);
        }
      }
      LATHE_UNROLL for (int r = 0; r < kRows; ++r) quarters[r][a] = sums_of_quarters(acc[r]);
    }
    LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
      transpose_quarters(quarters[r]);
      for (std::int64_t i = 0; i < depth; i += x.size) {
        const std::int64_t group = (k + i) / x.size, in_run = group % kScaleRun;
        const __m512i* of = quarters[r] + i / 32;
        __m512i sum = of[0];
        if (x.size >= 64) sum = _mm512_add_epi32(sum, of[1]);
        if (x.size == 128) sum = _mm512_add_epi32(sum, _mm512_add_epi32(of[2], of[3]));
        const std::int64_t at = (row + r) * x.groups + group;
        const __m512i offset = _mm512_mullo_epi32(_mm512_set1_epi32(x.minus[at]),
                                                  _mm512_load_si512(panel.zeros[in_run]));
        add_group(_mm512_add_epi32(sum, offset), panel.scales[in_run], x.scales[at],
                  sums + r * kTaskOuts);
      }
    }
  }
}

using MultiplyFew = void (*)(const WeightView&, const Int8Rows&, std::int64_t, std::int64_t, Panel&,
                             float*);
constexpr MultiplyFew kMultiplyFew[] = {few_rows<1>, few_rows<2>, few_rows<3>, few_rows<4>};
constexpr std::int64_t kFewRows = std::ssize(kMultiplyFew);  // up to this many need no panel

// Sums of rows row .. row + rows and outputs out .. out + kTaskOuts. sums: [rows, kTaskOuts] zeros.
void sum_int4(const WeightView& w, const Int8Rows& x, std::int64_t row, std::int64_t rows,
              std::int64_t out, float* sums) {
  Panel panel;
  panel.has_zeros = w.groups.zeros != nullptr;
  panel.zero = kU4Zero;
  const std::int64_t outs = smaller(kTaskOuts, w.rows - out);
  if (rows <= kFewRows) {
    for (std::int64_t i = 0; i < outs; i += 16) {
      kMultiplyFew[rows - 1](w, x, row, out + i, panel, sums + i);
    }
    return;
  }
  for (std::int64_t k = 0; k < x.cols; k += kChunk) {
    if (k % (kScaleRun * x.size) == 0) {
      for (std::int64_t i = 0; i < kTaskOuts; i += 16) {
        fill_scales(w, out + i, k / x.size, i, panel);
      }
    }
    const std::int64_t depth = smaller(kChunk, x.cols - k);
    fill_codes(w, out, outs, k, depth, panel);
    for (std::int64_t i = 0; i < depth; i += x.size) {
      multiply_panel(x, row, rows, k + i, panel, sums);
    }
  }
}

}  // namespace
}  // namespace lathe::int8_matmul
