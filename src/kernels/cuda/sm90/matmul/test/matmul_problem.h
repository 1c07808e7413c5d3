// A random GEMM, its memory on a device or its emulator, and its sums in double.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "base/float_formats.h"
#include "kernels/cuda/sm90/matmul/matmul_call.h"
#include "kernels/cuda/sm90/matmul/pack/packed_weights.h"

namespace lathe::cuda::matmul_test {

inline std::vector<bf16> random_bf16(std::mt19937& random, std::int64_t count) {
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> spread(-2, 1);
  std::vector<bf16> out(static_cast<std::size_t>(count));
  for (bf16& v : out) v = to_bf16(std::ldexp(normal(random), spread(random)));
  return out;
}
inline std::vector<float> random_f32(std::mt19937& random, std::int64_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& v : out) v = normal(random);
  return out;
}

/// How weights are stored. A DType alone: bf16 or e4m3.
struct WeightFormat {
  DType dtype = DType::bf16;
  std::int32_t size = 0;  // of groups: weights of 4 bits
  DType scales = DType::bf16;
  bool zeros = false;

  WeightFormat(DType of_weights) : dtype(of_weights) {}
  WeightFormat(DType of_weights, std::int32_t columns, DType of_scales, bool has_zeros)
      : dtype(of_weights), size(columns), scales(of_scales), zeros(has_zeros) {}
  bool packed() const { return size > 0; }
};
inline std::string name(const WeightFormat& f) {
  if (!f.packed()) return std::string(lathe::name(f.dtype));
  return std::string(lathe::name(f.dtype)) + " of " + std::to_string(f.size) + ", " +
         std::string(lathe::name(f.scales)) + (f.zeros ? ", zeros" : "");
}
inline const WeightFormat kNvfp4(DType::e2m1, 16, DType::e4m3, false);
inline const WeightFormat kMxfp4(DType::e2m1, 32, DType::ue8m0, false);
/// All kinds of packed weights.
inline std::vector<WeightFormat> packed_formats() {
  std::vector<WeightFormat> out = {kNvfp4, kMxfp4};
  for (const int size : {32, 64, 128}) {
    for (const DType scales : {DType::bf16, DType::f16}) {
      for (const bool zeros : {false, true}) out.emplace_back(DType::u4, size, scales, zeros);
    }
  }
  return out;
}

/// One x and one weight. Rows of x and out have gaps, which are filled with NaN.
struct Problem {
  std::int64_t m, n, k;
  std::int64_t x_stride, out_stride;
  WeightFormat format;
  DType dtype;
  std::int64_t page;  // rows of each weight, if there are several
  std::vector<bf16> x;
  std::vector<std::byte> w;
  std::vector<float> scales;  // of e4m3: of blocks, or of rows; of NVFP4: one per weight
  bool scale_rows = false;
  std::vector<std::byte> group_scales;  // packed
  std::vector<std::uint8_t> zeros;      // packed
  std::vector<double> weights;          // [n, k] their values
  // For e4m3 tokens: codes [m, k] and scales [ceil(k / 128), scale_stride()].
  std::vector<std::byte> x_codes;
  std::vector<float> x_scales;
  std::vector<float> bias, before;  // before: contents of out, if it is added to
  bool out_bf16 = false;

  Problem(std::mt19937& random, std::int64_t tokens, std::int64_t rows, std::int64_t depth,
          const WeightFormat& of_weights = DType::bf16, std::int64_t rows_of_each = 0)
      : m(tokens),
        n(rows),
        k(depth),
        x_stride(depth + 24),
        out_stride(rows + 6),
        format(of_weights),
        dtype(of_weights.dtype),
        page(rows_of_each == 0 ? rows : rows_of_each) {
    x = random_bf16(random, m * x_stride);
    for (std::int64_t t = 0; t < m; ++t) {
      for (std::int64_t i = k; i < x_stride; ++i) {
        x[static_cast<std::size_t>(t * x_stride + i)] =
            to_bf16(std::numeric_limits<float>::quiet_NaN());
      }
    }
    make_weights(random);
  }
  void make_weights(std::mt19937& random) {
    const auto count = static_cast<std::size_t>(n * k);
    const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
    weights.resize(count);
    w.resize(static_cast<std::size_t>(bytes_of(dtype, n * k)));
    if (dtype == DType::bf16) {
      const std::vector<bf16> values = random_bf16(random, n * k);
      std::memcpy(w.data(), values.data(), w.size());
      for (std::size_t i = 0; i < count; ++i) weights[i] = double{to_f32(values[i])};
      return;
    }
    const auto draw = [&](int most) { return std::uniform_int_distribution<int>(0, most)(random); };
    if (dtype == DType::e4m3) {
      const std::int64_t blocks = (k + 127) / 128;
      for (std::int64_t i = 0; i < (n + 127) / 128 * blocks; ++i) {
        scales.push_back(std::ldexp(1.f + 0.01f * static_cast<float>(draw(99)), -8 + draw(4)));
      }
      for (std::size_t i = 0; i < count; ++i) {
        const e4m3 code{static_cast<std::uint8_t>(draw(1) << 7 | draw(0x7e))};
        w[i] = std::byte{code.bits};
        const auto r = static_cast<std::int64_t>(i) / k, c = static_cast<std::int64_t>(i) % k;
        weights[i] = double{to_f32(code)} * double{scales[at(r / 128 * blocks + c / 128)]};
      }
      return;
    }
    make_packed(draw);
  }
  /// Gives e4m3 weights a scale for each row instead.
  void scale_by_rows(std::mt19937& random) {
    std::uniform_real_distribution<float> uniform(0x1p-8f, 0x1p-4f);
    scale_rows = true;
    scales.assign(static_cast<std::size_t>(n), 0);
    for (float& s : scales) s = uniform(random);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const e4m3 code{std::to_integer<std::uint8_t>(w[i])};
      weights[i] = double{to_f32(code)} * double{scales[i / static_cast<std::size_t>(k)]};
    }
  }
  /// Weights are rounded to bf16, NVFP4's without its factor, from codes and scales of random bits.
  template <class Draw>
  void make_packed(const Draw& draw) {
    const bool u4 = dtype == DType::u4;
    const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
    const std::int64_t groups = k / format.size, pages = n / page;
    const PackedGroups shape = packed_groups(page, k, format.size);
    const int bytes = bits_of(format.scales) / 8;
    group_scales.resize(at(pages * shape.count() * bytes));
    if (format.zeros) zeros.resize(at(pages * shape.count()));
    const bool factors = format.scales == DType::e4m3;
    if (factors) {
      for (std::int64_t i = 0; i < pages; ++i) {
        scales.push_back(std::ldexp(1.f + 0.01f * static_cast<float>(draw(99)), draw(4) - 2));
      }
    }
    std::vector<std::uint32_t> words(at(n * k / 8)), packed(words.size());
    for (std::int64_t r = 0; r < n; ++r) {
      for (std::int64_t g = 0; g < groups; ++g) {
        const std::int64_t place = r / page * shape.count() + shape.at(r % page, g);
        const float scale = draw_scale(draw, &group_scales[at(place * bytes)]);
        const int zero = format.zeros ? draw(16) : 8;
        if (format.zeros) zeros[at(place)] = static_cast<std::uint8_t>(zero);
        for (std::int64_t i = r * k + g * format.size; i < r * k + (g + 1) * format.size; ++i) {
          const auto code = static_cast<std::uint32_t>(draw(15));
          words[at(i / 8)] |= code << (4 * (i % 8));
          const float of_code = u4 ? static_cast<float>(static_cast<int>(code) - zero)
                                   : to_f32(e2m1{static_cast<std::uint8_t>(code)});
          weights[at(i)] = double{to_f32(to_bf16(of_code * scale))} *
                           (factors ? double{scales[at(r / page)]} : 1.);
        }
      }
    }
    for (std::size_t i = 0; i < words.size(); ++i) {
      const std::size_t first = i / 4 * 4;
      const std::uint32_t unit[4] = {words[first], words[first + 1], words[first + 2],
                                     words[first + 3]};
      packed[i] = packed_word(u4, unit, static_cast<int>(i % 4));
    }
    std::memcpy(w.data(), packed.data(), w.size());
  }
  template <class Draw>
  float draw_scale(const Draw& draw, std::byte* to) const {
    const float value =
        draw(20) == 0 ? 0.f : std::ldexp(1.f + static_cast<float>(draw(1023)) / 1024, draw(6) - 8);
    const auto keep = [&](auto v) {
      std::memcpy(to, &v, sizeof v);
      return to_f32(v);
    };
    if (format.scales == DType::bf16) return keep(to_bf16(value));
    if (format.scales == DType::f16) return keep(to_f16(value));
    if (format.scales == DType::ue8m0) {
      // The smallest is 2^-85: weights become bf16 times 2^-40, and smaller scales lose bits.
      return keep(ue8m0{static_cast<std::uint8_t>(draw(9) == 0 ? 42 : 120 + draw(9))});
    }
    return keep(e4m3{static_cast<std::uint8_t>(draw(0x7e))});
  }
  /// Replaces the tokens by e4m3 codes, with scales of either sign.
  void make_x_codes(std::mt19937& random) {
    x_codes.resize(static_cast<std::size_t>(m * k));
    for (std::byte& code : x_codes) {
      code = std::byte(random() % 2 << 7 | random() % 0x7f);
    }
    x_scales = random_f32(random, (k + 127) / 128 * scale_stride());
  }
  std::int64_t scale_stride() const { return (m + 3) / 4 * 4; }
  double x_at(std::int64_t t, std::int64_t i) const {
    if (x_codes.empty()) return double{to_f32(x[static_cast<std::size_t>(t * x_stride + i)])};
    const auto code = std::to_integer<std::uint8_t>(x_codes[static_cast<std::size_t>(t * k + i)]);
    return double{to_f32(e4m3{code})} *
           double{x_scales[static_cast<std::size_t>(i / 128 * scale_stride() + t)]};
  }
  double want(std::int64_t t, std::int64_t row, double& size) const {
    double sum = 0;
    size = 0;
    for (std::int64_t i = 0; i < k; ++i) {
      const double v = x_at(t, i) * weights[static_cast<std::size_t>(row * k + i)];
      sum += v;
      size += std::abs(v);
    }
    const auto r = static_cast<std::size_t>(row);
    if (!bias.empty()) sum += double{bias[r]};
    if (!before.empty()) sum += double{before[static_cast<std::size_t>(t * out_stride) + r]};
    return sum;
  }
};

/// A problem's arrays where kernels read them. Place: put() copies a vector there and keeps the
/// copy, get() copies it back.
template <class Place>
struct Placed {
  const Problem& problem;
  Place& place;
  bf16* x;
  std::byte* w;
  std::byte* x_codes;  // null, as are the following: none
  float *x_scales, *scales, *bias;
  std::byte* group_scales;
  std::uint8_t* zeros;
  std::byte* out;

  Placed(const Problem& p, Place& where)
      : problem(p),
        place(where),
        x(where.put(p.x)),
        w(where.put(p.w)),
        x_codes(p.x_codes.empty() ? nullptr : where.put(p.x_codes)),
        x_scales(p.x_scales.empty() ? nullptr : where.put(p.x_scales)),
        scales(p.scales.empty() ? nullptr : where.put(p.scales)),
        bias(p.bias.empty() ? nullptr : where.put(p.bias)),
        group_scales(p.group_scales.empty() ? nullptr : where.put(p.group_scales)),
        zeros(p.zeros.empty() ? nullptr : where.put(p.zeros)),
        out(where.put(first_out(p))) {}
  static std::vector<std::byte> first_out(const Problem& p) {
    const auto count = static_cast<std::size_t>(p.m * p.out_stride);
    std::vector<std::byte> out(count * (p.out_bf16 ? 2 : 4), std::byte{0xff});
    if (!p.before.empty()) std::memcpy(out.data(), p.before.data(), out.size());
    return out;
  }
  /// A call with the first `tokens` tokens.
  MatmulCall call(std::int64_t tokens) const {
    const Problem& p = problem;
    const RowsView values{reinterpret_cast<const std::byte*>(x), DType::bf16, tokens, p.k,
                          p.x_stride};
    return {.x = x_codes == nullptr ? values : RowsView{x_codes, DType::e4m3, tokens, p.k, p.k},
            .w = {.data = w,
                  .dtype = p.dtype,
                  .rows = p.n,
                  .cols = p.k,
                  .scales = scales,
                  .scale_rows = p.scale_rows,
                  .groups = {group_scales, p.format.scales, p.format.size, zeros}},
            .out = {out, p.out_bf16 ? DType::bf16 : DType::f32, tokens, p.n, p.out_stride},
            .bias = bias,
            .add = !p.before.empty(),
            .x_scales = x_scales,
            .x_scale_stride = x_scales == nullptr ? 0 : p.scale_stride()};
  }
  std::vector<float> read() const {
    const auto count = static_cast<std::size_t>(problem.m * problem.out_stride);
    std::vector<float> values(count);
    if (!problem.out_bf16) {
      place.get(reinterpret_cast<const float*>(out), values);
      return values;
    }
    std::vector<bf16> halves(count);
    place.get(reinterpret_cast<const bf16*>(out), halves);
    for (std::size_t i = 0; i < count; ++i) values[i] = to_f32(halves[i]);
    return values;
  }
  /// Checks the first `tokens` rows, and that nothing else was written. Compares every `step`-th
  /// value.
  void expect_right(std::int64_t tokens, std::int64_t step = 1) const {
    const Problem& p = problem;
    const std::vector<float> got = read();
    const double ulp = p.out_bf16 ? 0x1p-8 : 0x1p-22;
    std::int64_t wrong = 0, beyond = 0;
    for (std::int64_t i = 0; i < p.m * p.out_stride; i += step) {
      const std::int64_t t = i / p.out_stride, r = i % p.out_stride;
      const float v = got[static_cast<std::size_t>(i)];
      bool right = false;
      double want = 0;
      if (t >= tokens || r >= p.n) {
        right = p.before.empty() ? std::isnan(v) : v == p.before[static_cast<std::size_t>(i)];
      } else {
        double size = 0;
        want = p.want(t, r, size);
        const double bound = std::abs(want) * ulp, error = std::abs(double{v} - want);
        right = error <= bound + size * (p.x_codes.empty() ? 0x1p-17 : 0x1p-11);
        // The GPU's 14-bit accumulation exceeds 2^-11 in one of some 200,000 sums of codes.
        if (!right && !p.x_codes.empty() && error <= bound + size * 0x1p-10) {
          right = true;
          ++beyond;
        }
      }
      if (right || ++wrong > 3) continue;
      ADD_FAILURE() << "token " << t << " of " << tokens << ", row " << r << " of " << p.n << ": "
                    << v << " for " << want;
    }
    EXPECT_EQ(wrong, 0);
    EXPECT_LE(beyond, 1 + p.m * p.n / 10'000);
  }
};

}  // namespace lathe::cuda::matmul_test
