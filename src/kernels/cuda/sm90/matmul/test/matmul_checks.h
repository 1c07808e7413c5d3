// Checks of grouped and gated GEMMs, on a device or on its emulator, against sums in double.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cuda/sm90/matmul/test/matmul_problem.h"

namespace lathe::cuda::matmul_test {

/// Values of f32 or bf16 bytes.
template <class Out>
std::vector<float> as_floats(const std::vector<std::byte>& bytes) {
  std::vector<Out> values(bytes.size() / sizeof(Out));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  std::vector<float> out;
  for (const Out v : values) {
    if constexpr (std::is_same_v<Out, bf16>) {
      out.push_back(to_f32(v));
    } else {
      out.push_back(v);
    }
  }
  return out;
}

/// Elements of scales from one weight of a stack to the next; of NVFP4, of its factors.
inline std::int64_t scale_stride(const WeightFormat& format, std::int64_t n, std::int64_t k) {
  if (format.packed()) return 1;
  return format.dtype == DType::e4m3 ? n / 128 * ((k + 127) / 128) : 0;
}

/// Experts with the given numbers of rows of x, then rows that belong to no expert. run: runs the
/// call. codes: x is e4m3, as are the weights. Out: type of out.
template <class Out, class Place, class Run>
void check_experts(std::mt19937& random, Place& place, const WeightFormat& format, bool codes,
                   const std::vector<std::int32_t>& counts, std::int64_t n, std::int64_t k,
                   Run run) {
  constexpr bool kHalves = std::is_same_v<Out, bf16>;
  const auto groups = static_cast<std::int64_t>(counts.size());
  std::vector<std::int32_t> offsets = {0};
  for (const std::int32_t count : counts) offsets.push_back(offsets.back() + count);
  const std::int64_t rows = offsets.back() + 5;
  // One weight with all experts' rows; each token is compared with its own expert's.
  Problem all(random, rows, n * groups, k, format, n);
  if (random() % 2 == 0) all.bias = random_f32(random, n * groups);
  if (codes) all.make_x_codes(random);
  const Placed placed(all, place);
  const MatmulCall whole = placed.call(rows);
  std::vector<std::byte> bytes(static_cast<std::size_t>(rows * n) * sizeof(Out), std::byte{0xff});
  std::byte* out = place.put(bytes);
  GroupedMatmulCall call{.x = whole.x,
                         .w = whole.w,
                         .out = {out, kHalves ? DType::bf16 : DType::f32, rows, n, n},
                         .groups = groups,
                         .offsets = place.put(offsets),
                         .weight_stride = n * k,
                         .scale_stride = scale_stride(format, n, k),
                         .bias = whole.bias,
                         .x_scales = whole.x_scales,
                         .x_scale_stride = whole.x_scale_stride};
  call.w.rows = n;
  ASSERT_EQ(n % 128, 0);
  ASSERT_TRUE(grouped_matmul_takes(call));
  run(call);
  place.get(out, bytes);
  const std::vector<float> got = as_floats<Out>(bytes);
  std::int64_t wrong = 0;
  for (std::int64_t g = 0, t = 0; t < rows; ++t) {
    while (g < groups && t >= offsets[static_cast<std::size_t>(g) + 1]) ++g;
    for (std::int64_t r = 0; r < n; ++r) {
      const float v = got[static_cast<std::size_t>(t * n + r)];
      if (g == groups) {
        wrong += !std::isnan(v);
        continue;
      }
      double size = 0;
      const double want = all.want(t, g * n + r, size);
      // At k = 256 the GPU's 14-bit accumulation exceeds 2^-11 in 2 of 10,000 sums.
      const double bound =
          std::abs(want) * (kHalves ? 0x1p-8 : 0x1p-22) + size * (codes ? 0x1p-10 : 0x1p-17);
      wrong += !(std::abs(double{v} - want) <= bound);
    }
  }
  EXPECT_EQ(wrong, 0);
}

/// A gated GEMM of all rows. codes: x is e4m3, as are the weights.
template <class Place, class Run>
void check_gated(std::mt19937& random, Place& place, const WeightFormat& format, bool codes,
                 std::int64_t m, std::int64_t n, std::int64_t k, Run run) {
  ASSERT_EQ(n % 8, 0);
  Problem gate(random, m, n, k, format), up(random, m, n, k, format);
  up.x = gate.x;
  if (format.dtype == DType::e4m3 && random() % 2 == 0) {
    gate.scale_by_rows(random);
    up.scale_by_rows(random);
  }
  if (codes) {
    gate.make_x_codes(random);
    up.x_codes = gate.x_codes;
    up.x_scales = gate.x_scales;
  }
  gate.bias = random_f32(random, n);
  // Either one may have the lower address.
  std::optional<Placed<Place>> first, second;
  const bool up_first = random() % 2 == 0;
  first.emplace(up_first ? up : gate, place);
  second.emplace(up_first ? gate : up, place);
  MatmulCall call = (up_first ? second : first)->call(m);
  const std::int64_t stride = n + 8;
  std::vector<bf16> got(static_cast<std::size_t>(m * stride), to_bf16(std::nanf("")));
  bf16* out = place.put(got);
  const Activation activation{ActivationKind::silu};
  call.out = {reinterpret_cast<std::byte*>(out), DType::bf16, m, n, stride};
  call.activation = &activation;
  call.up = (up_first ? first : second)->call(m).w;
  ASSERT_TRUE(matmul_takes(call));
  run(call);
  place.get(out, got);
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < m * stride; ++i) {
    const std::int64_t t = i / stride, r = i % stride;
    const double v = double{to_f32(got[static_cast<std::size_t>(i)])};
    if (r >= n) {
      wrong += !std::isnan(v);
      continue;
    }
    double a_size = 0, b_size = 0;
    const double a = gate.want(t, r, a_size), b = up.want(t, r, b_size);
    const double want = a / (1 + std::exp(-a)) * b;
    const double bound =
        std::abs(want) * 0x1p-8 +
        (a_size * (std::abs(b) + 1) + b_size * (std::abs(a) + 1)) * (codes ? 0x1p-10 : 0x1p-16);
    wrong += !(std::abs(v - want) <= bound);
  }
  EXPECT_EQ(wrong, 0);
}

/// Gated experts with the given numbers of rows. turns: one weight interleaves the rows of gate and
/// up. codes: x is e4m3, as are the weights.
template <class Place, class Run>
void check_gated_experts(std::mt19937& random, Place& place, const WeightFormat& format, bool turns,
                         const std::vector<std::int32_t>& counts, std::int64_t n, std::int64_t k,
                         Run run, bool codes = false) {
  const auto groups = static_cast<std::int64_t>(counts.size());
  std::vector<std::int32_t> offsets = {0};
  for (const std::int32_t count : counts) offsets.push_back(offsets.back() + count);
  const std::int64_t rows = offsets.back() + 5;
  ASSERT_EQ(n % 128, 0);
  const std::int64_t of_each = turns ? 2 * n : n;
  Problem gate(random, rows, of_each * groups, k, format, of_each);
  Problem up(random, rows, n * groups, k, format, n);
  up.x = gate.x;
  if (codes) {
    gate.make_x_codes(random);
    up.x_codes = gate.x_codes;
    up.x_scales = gate.x_scales;
  }
  gate.bias = random_f32(random, gate.n);
  // Either one may have the lower address.
  std::optional<Placed<Place>> first, second;
  const bool up_first = random() % 2 == 0;
  first.emplace(up_first ? up : gate, place);
  second.emplace(up_first ? gate : up, place);
  const MatmulCall of_gate = (up_first ? second : first)->call(rows);
  const MatmulCall of_up = (up_first ? first : second)->call(rows);
  std::vector<bf16> got(static_cast<std::size_t>(rows * n), to_bf16(std::nanf("")));
  bf16* out = place.put(got);
  const Activation activation{turns ? ActivationKind::clamped_swiglu : ActivationKind::silu};
  GroupedMatmulCall call{.x = of_gate.x,
                         .w = of_gate.w,
                         .out = {reinterpret_cast<std::byte*>(out), DType::bf16, rows, n, n},
                         .groups = groups,
                         .offsets = place.put(offsets),
                         .weight_stride = n * k * (turns ? 2 : 1),
                         .bias = of_gate.bias,
                         .activation = &activation,
                         .x_scales = of_gate.x_scales,
                         .x_scale_stride = of_gate.x_scale_stride};
  call.scale_stride = scale_stride(format, of_each, k);
  call.w.rows = n * (turns ? 2 : 1);
  if (!turns) {
    call.up = of_up.w;
    call.up.rows = n;
  }
  ASSERT_TRUE(grouped_matmul_takes(call));
  run(call);
  place.get(out, got);
  std::int64_t wrong = 0;
  for (std::int64_t g = 0, t = 0; t < rows; ++t) {
    while (g < groups && t >= offsets[static_cast<std::size_t>(g) + 1]) ++g;
    for (std::int64_t r = 0; r < n; ++r) {
      const float v = to_f32(got[static_cast<std::size_t>(t * n + r)]);
      if (g == groups) {
        wrong += !std::isnan(v);
        continue;
      }
      double a_size = 0, b_size = 0, want = 0;
      double a = gate.want(t, turns ? 2 * (g * n + r) : g * n + r, a_size);
      double b = turns ? gate.want(t, 2 * (g * n + r) + 1, b_size) : up.want(t, g * n + r, b_size);
      if (turns) {
        a = std::min(a, 7.);
        b = std::clamp(b, -7., 7.);
        want = a / (1 + std::exp(-1.702 * a)) * (b + 1);
      } else {
        want = a / (1 + std::exp(-a)) * b;
      }
      const double bound =
          std::abs(want) * 0x1p-8 +
          (a_size * (std::abs(b) + 1) + b_size * (std::abs(a) + 1)) * (codes ? 0x1p-10 : 0x1p-16);
      wrong += !(std::abs(double{v} - want) <= bound);
    }
  }
  EXPECT_EQ(wrong, 0);
}

/// Heads: each has its own columns of x and out, and a weight of n rows. Columns of out between
/// them must keep their contents.
template <class Out, class Place, class Run>
void check_heads(std::mt19937& random, Place& place, const WeightFormat& format, std::int64_t m,
                 std::int64_t heads, std::int64_t n, Run run) {
  constexpr std::int64_t k = 128;
  constexpr bool kHalves = std::is_same_v<Out, bf16>;
  const std::int64_t width = n + 8;
  // Row t, head h of x is row t * heads + h of the problem.
  Problem all(random, m * heads, n * heads, k, format, n);
  const Placed placed(all, place);
  const MatmulCall whole = placed.call(m);
  std::vector<std::byte> bytes(static_cast<std::size_t>(m * heads * width) * sizeof(Out),
                               std::byte{0xff});
  std::byte* out = place.put(bytes);
  GroupedMatmulCall call{.x = whole.x,
                         .w = whole.w,
                         .out = {out, kHalves ? DType::bf16 : DType::f32, m, n, heads * width},
                         .groups = heads,
                         .weight_stride = n * k,
                         .scale_stride = scale_stride(format, n, k),
                         .x_stride = all.x_stride,
                         .out_stride = width};
  call.x.row_stride = heads * all.x_stride;
  call.w.rows = n;
  ASSERT_TRUE(grouped_matmul_takes(call));
  run(call);
  place.get(out, bytes);
  const std::vector<float> got = as_floats<Out>(bytes);
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < m * heads * width; ++i) {
    const std::int64_t row = i / width, head = row % heads, column = i % width;
    const float v = got[static_cast<std::size_t>(i)];
    if (column >= n) {
      wrong += !std::isnan(v);
      continue;
    }
    double size = 0;
    const double want = all.want(row, head * n + column, size);
    const double bound = std::abs(want) * (kHalves ? 0x1p-8 : 0x1p-22) + size * 0x1p-17;
    wrong += !(std::abs(double{v} - want) <= bound);
  }
  EXPECT_EQ(wrong, 0);
}

}  // namespace lathe::cuda::matmul_test
