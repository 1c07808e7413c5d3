// The row-wise operators of the CUDA backend, emulated, against the double-precision oracle.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "ops/cache_write.h"
#include "ops/elementwise.h"
#include "ops/test/gpu_test_util.h"

namespace lathe {
namespace {

using ops_test::GpuContext;
using ops_test::Rows;

constexpr double kUlp = 0x1p-23;

void expect_near(const Rows& got, const Rows& wanted, double relative, double absolute) {
  for (std::int64_t r = 0; r < wanted.rows; ++r) {
    for (std::int64_t c = 0; c < wanted.cols; ++c) {
      const double w = wanted.row(r)[c];
      ASSERT_NEAR(got.row(r)[c], w, std::fabs(w) * relative + absolute) << r << ", " << c;
    }
  }
}

std::vector<float> vector_of(std::int64_t n, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<std::size_t>(n));
  for (float& v : out) v = normal(rng);
  return out;
}

class GpuRowwise : public ::testing::Test {
 protected:
  std::mt19937 rng{7};
  GpuContext gpu;
  ops_test::Context ref{1, Device::ref};
};

TEST_F(GpuRowwise, RmsNorm) {
  // A head of 25 columns is not whole words; 5 rows x 6 heads do not fill whole warps.
  for (const auto& [rows, cols, heads] : {std::tuple{1, 7, 1},
                                          {5, 300, 1},
                                          {3, 512, 4},
                                          {5, 384, 6},
                                          {3, 100, 4},
                                          {9, 512, 2},
                                          {17, 200, 1}}) {
    for (const bool add : {false, true}) {
      if (add && heads > 1) continue;
      Rows x(rows, cols), out(rows, cols);
      x.randomize(rng);
      out.randomize(rng);
      const std::vector<float> weight = vector_of(cols / heads, rng);
      const MutableRowsView there = gpu.rows(out);
      const RowsView from = constant(gpu.rows(x));
      if (add) {
        add_rms_norm(gpu.ops, from, gpu.list(weight), 1e-6f, there);
        add_rms_norm(ref.ops, x.view(), weight, 1e-6f, out.out());
      } else {
        rms_norm(gpu.ops, from, gpu.list(weight), 1e-6f, there, heads);
        rms_norm(ref.ops, x.view(), weight, 1e-6f, out.out(), heads);
      }
      expect_near(gpu.read(there), out, 4 * kUlp, 8 * kUlp);
    }
  }
}

TEST_F(GpuRowwise, RmsNormOfHeadsWithoutAWeight) {
  Rows x(3, 512), out(3, 512);
  x.randomize(rng);
  const MutableRowsView there = gpu.rows(x);  // in place
  rms_norm(gpu.ops, constant(there), {}, 1e-6f, there, 4);
  rms_norm(ref.ops, x.view(), {}, 1e-6f, out.out(), 4);
  expect_near(gpu.read(there), out, 4 * kUlp, 8 * kUlp);
}

TEST_F(GpuRowwise, NormsRoundOnceToActivations) {
  for (const std::int64_t cols : {102, 200, 300}) {
    Rows x(4, cols), out(4, cols);
    x.randomize(rng);
    const std::vector<float> weight = vector_of(cols, rng);
    const MutableRowsView there = gpu.bf16_rows(out);
    rms_norm(gpu.ops, constant(gpu.rows(x)), gpu.list(weight), 1e-6f, there);
    rms_norm(ref.ops, x.view(), weight, 1e-6f, out.out());
    expect_near(gpu.read(there), out, 0x1p-8, 0);
  }
}

TEST_F(GpuRowwise, LayerNorm) {
  Rows x(3, 130), out(3, 130);
  x.randomize(rng);
  const std::vector<float> weight = vector_of(130, rng), bias = vector_of(130, rng);
  const MutableRowsView there = gpu.rows(x);  // in place
  layer_norm(gpu.ops, constant(there), gpu.list(weight), gpu.list(bias), 1e-5f, there);
  layer_norm(ref.ops, x.view(), weight, bias, 1e-5f, out.out());
  expect_near(gpu.read(there), out, 8 * kUlp, 16 * kUlp);
}

// 152 columns are whole words of 16 bytes, 150 are not.
TEST_F(GpuRowwise, Activations) {
  for (const std::int64_t cols : {150, 152}) {
    for (const ActivationKind kind :
         {ActivationKind::silu, ActivationKind::gelu_tanh, ActivationKind::clamped_swiglu}) {
      Rows gate(3, cols), up(3, cols), out(3, cols);
      gate.randomize(rng);
      up.randomize(rng);
      for (float& v : gate.data) v *= 5;
      const MutableRowsView in_place = gpu.rows(gate), rounded = gpu.bf16_rows(out);
      const RowsView up_there = constant(gpu.rows(up));
      gated_activation(gpu.ops, {{kind}, constant(in_place), up_there, rounded});
      gated_activation(gpu.ops, {{kind}, constant(in_place), up_there, in_place});
      gated_activation(ref.ops, {{kind}, gate.view(), up.view(), out.out()});
      expect_near(gpu.read(in_place), out, 64 * kUlp, 1e-12);
      expect_near(gpu.read(rounded), out, 0x1p-8, 1e-12);
    }
  }
}

TEST_F(GpuRowwise, GatesOfElementsAndOfHeads) {
  for (const bool one : {false, true}) {
    Rows x(3, 2 * 150), gate(3, 4 * 150);
    x.randomize(rng);
    gate.randomize(rng);
    const MutableRowsView in_place = gpu.rows(x), rounded = gpu.bf16_rows(x);
    const MutableRowsView there = gpu.rows(gate);
    const auto first = [&](const MutableRowsView& rows) {
      return constant(cols_at(rows, 150, one ? 1 : 150));
    };
    gate_rows(gpu.ops, {in_place, first(there), 2, 300});
    gate_rows(gpu.ops, {rounded, first(there), 2, 300});
    gate_rows(ref.ops, {x.out(), first(gate.out()), 2, 300});
    expect_near(gpu.read(in_place), x, 16 * kUlp, 1e-12);
    expect_near(gpu.read(rounded), x, 0x1p-7, 1e-12);
  }
}

TEST_F(GpuRowwise, ActivationsOfAGateThatHoldsBothByTurns) {
  Rows both(4, 600), out(4, 300);
  both.randomize(rng);
  MutableRowsView there = gpu.rows(both);
  const Activation activation{ActivationKind::clamped_swiglu};
  const RowsView gate = constant(there);
  there.cols = 300;
  gated_activation(gpu.ops, {activation, gate, {}, there});
  gated_activation(ref.ops, {activation, both.view(), {}, out.out()});
  const Rows got = gpu.read({there.data, DType::f32, 4, 600, there.row_stride});
  for (std::int64_t r = 0; r < 4; ++r) {
    for (std::int64_t c = 0; c < 300; ++c) {
      ASSERT_NEAR(got.row(r)[c], out.row(r)[c], std::fabs(out.row(r)[c]) * 64 * kUlp + 1e-12);
    }
  }
}

TEST_F(GpuRowwise, MovesRows) {
  Rows x(6, 140);
  x.randomize(rng);
  const std::vector<std::int32_t> tokens = {3, 0, 8, 3};
  for (const std::int64_t cols : {140, 1096}) {  // 1096: 137 words of 16 bytes
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      const ops_test::Weight table(rng, dtype, 9, cols);
      Rows some(4, cols);
      const MutableRowsView there = gpu.rows(some);
      embed(gpu.ops, gpu.weight(table), gpu.list(tokens), there, 1.5f);
      embed(ref.ops, table.view, tokens, some.out(), 1.5f);
      EXPECT_TRUE(gpu.read(there).same_bits(some)) << name(dtype) << ' ' << cols;
    }
  }
  const std::vector<std::int32_t> rows = {5, 1, 1};
  Rows some(3, 140);
  const MutableRowsView there = gpu.rows(some);
  gather_rows(gpu.ops, constant(gpu.rows(x)), gpu.list(rows), there);
  gather_rows(ref.ops, x.view(), rows, some.out());
  EXPECT_TRUE(gpu.read(there).same_bits(some));
}

// 513 words of 16 bytes a row. Of 531 rows a block copies several, the last fewer.
TEST_F(GpuRowwise, GathersFewAndManyRowsOfWholeWords) {
  for (const std::int64_t rows : {3, 531}) {
    std::vector<std::int32_t> of;
    for (std::int64_t r = 0; r < rows; ++r) of.push_back(static_cast<std::int32_t>(rng() % 7));
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const std::int64_t cols = dtype == DType::f32 ? 2052 : 4104;
      Rows x(7, cols, 0, 16), out(rows, cols, 0, 8);
      x.randomize(rng);
      const bool exact = dtype == DType::f32;
      const MutableRowsView from = exact ? gpu.rows(x) : gpu.bf16_rows(x);
      const MutableRowsView to = exact ? gpu.rows(out) : gpu.bf16_rows(out);
      gather_rows(gpu.ops, constant(from), gpu.list(of), to);
      gather_rows(ref.ops, gpu.read(from).view(), of, out.out());
      EXPECT_TRUE(gpu.read(to).same_bits(out)) << rows << " rows of " << name(dtype);
    }
  }
}

TEST_F(GpuRowwise, AddsAndCastsRows) {
  for (const std::int64_t cols : {140, 144}) {
    Rows x(6, cols), out(6, cols);
    x.randomize(rng);
    Rows sum = x;
    const MutableRowsView sums = gpu.rows(sum);
    add_rows(gpu.ops, constant(gpu.rows(x)), sums);
    add_rows(ref.ops, x.view(), sum.out());
    EXPECT_TRUE(gpu.read(sums).same_bits(sum));
    const MutableRowsView narrow = gpu.bf16_rows(out);
    cast_rows(gpu.ops, constant(gpu.rows(x)), narrow);
    const Rows narrowed = gpu.read(narrow);
    for (std::int64_t r = 0; r < 6; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) {
        ASSERT_EQ(narrowed.row(r)[c], to_f32(to_bf16(x.row(r)[c])));
      }
    }
  }
}

// Heads of 16 columns are 24 elements apart in x and 40 in out; the gaps are not written.
TEST_F(GpuRowwise, CastsHeads) {
  constexpr std::int64_t kRows = 5, kHeads = 3;
  Rows x(kRows, 72), out(kRows, 120);
  x.randomize(rng);
  out.randomize(rng);
  const Rows before = gpu.read(gpu.bf16_rows(out));
  const MutableRowsView there = gpu.bf16_rows(out);
  const RowsView from = constant(gpu.rows(x));
  gpu.ops.backend->cast_rows(gpu.ops, {{from.data, from.dtype, kRows, 16, from.row_stride},
                                       {there.data, there.dtype, kRows, 16, there.row_stride},
                                       kHeads,
                                       24,
                                       40});
  const Rows got = gpu.read(there);
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t c = 0; c < 120; ++c) {
      const std::int64_t head = c / 40, col = c % 40;
      ASSERT_EQ(got.row(r)[c],
                col < 16 ? to_f32(to_bf16(x.row(r)[head * 24 + col])) : before.row(r)[c])
          << r << ", " << c;
    }
  }
}

TEST_F(GpuRowwise, ScalesAndCapsRows) {
  const std::vector<float> factor = {-0.75f};
  Rows x(5, 140);
  x.randomize(rng);
  x.row(2)[7] = NAN;
  Rows scaled = x, capped = x;
  const MutableRowsView there = gpu.rows(x), others = gpu.rows(x);
  scale_rows(gpu.ops, there, gpu.list(factor));
  scale_rows(ref.ops, scaled.out(), factor);
  EXPECT_TRUE(gpu.read(there).same_bits(scaled));
  cap_rows(gpu.ops, others, 1.5f);
  cap_rows(ref.ops, capped.out(), 1.5f);
  Rows got = gpu.read(others);
  EXPECT_TRUE(std::isnan(got.row(2)[7]));
  got.row(2)[7] = capped.row(2)[7] = 0;
  expect_near(got, capped, 0x1p-20, 0);
}

TEST_F(GpuRowwise, FindsWhatIsNotFinite) {
  Rows x(5, 400, 0);
  x.randomize(rng);
  x.row(1)[399] = INFINITY;
  x.row(3)[0] = NAN;
  const std::vector<std::int32_t> none(7, kFinite), of = {6, 2, 0, 4, 1};
  const std::span<const std::int32_t> first = gpu.list(none);
  const std::span<std::int32_t> out(const_cast<std::int32_t*>(first.data()), first.size());
  const RowsView there = constant(gpu.rows(x));
  find_non_finite(gpu.ops, {there, gpu.list(of), 9, out});
  find_non_finite(gpu.ops, {there, gpu.list(of), 12, out});
  std::vector<std::int32_t> got(7);
  ASSERT_TRUE(gpu.backend
                  ->download(gpu.ops, reinterpret_cast<const std::byte*>(first.data()),
                             std::as_writable_bytes(std::span(got)))
                  .ok());
  EXPECT_EQ(got, (std::vector<std::int32_t>{kFinite, kFinite, 9, kFinite, 9, kFinite, kFinite}));
}

}  // namespace
}  // namespace lathe
