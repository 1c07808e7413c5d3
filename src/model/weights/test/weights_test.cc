#include "model/weights/weights.h"

#include <gtest/gtest.h>

#include <random>

#include "kernels/ref/linear.h"

namespace lathe {
namespace {

// A random kv_b: heads of `qk` and `v` rows, `nope` columns.
struct KvB {
  KvB(DType dtype, std::int32_t qk, std::int32_t v, std::int32_t nope) : weights({}) {
    constexpr std::int32_t kHeads = 3;
    config.layers = 1;
    config.all_layers().problem.kind = ProblemKind::dense_latent;
    config.all_layers().problem.heads = kHeads;
    config.all_layers().problem.nope = nope;
    config.all_layers().problem.qk_nope_head = qk;
    config.all_layers().problem.v_head = v;
    weights.layers.resize(1);
    const std::int64_t rows = std::int64_t{kHeads} * (qk + v);
    std::mt19937 random(7);
    const std::int64_t bytes = bytes_of(dtype, rows * nope);
    std::byte* data = weights.take(bytes);
    for (std::int64_t i = 0; i < bytes; ++i) {
      data[i] = static_cast<std::byte>(random() & 0x3fu);  // finite in every format
    }
    WeightView& w = weights.layers[0].mla.kv_b;
    w = {data, dtype, rows, nope, nullptr};
    if (dtype != DType::e4m3) return;
    const auto blocks = [](std::int64_t n) { return (n + kWeightBlock - 1) / kWeightBlock; };
    std::uniform_real_distribution<float> scale(0.5f, 2.0f);
    scales.resize(static_cast<std::size_t>(blocks(rows) * blocks(nope)));
    for (float& s : scales) s = scale(random);
    w.scales = scales.data();
  }

  ModelConfig config;
  ModelWeights weights;
  std::vector<float> scales;
};

// uk is a head's key rows transposed, uv its value rows, whatever their dtype.
TEST(SplitKvB, HeadsHoldTheNumbersOfKvB) {
  struct Case {
    DType dtype;
    std::int32_t qk, v, nope;
    DType kept;
  };
  for (const Case& c :
       {Case{DType::e4m3, 128, 256, 320, DType::e4m3},
        Case{DType::e4m3, 256, 128, 128, DType::e4m3}, Case{DType::e4m3, 128, 32, 256, DType::f32},
        Case{DType::e4m3, 96, 128, 128, DType::f32}, Case{DType::bf16, 20, 12, 64, DType::bf16},
        Case{DType::f32, 128, 128, 64, DType::f32}}) {
    KvB k(c.dtype, c.qk, c.v, c.nope);
    split_kv_b(k.config, true, nullptr, k.weights);
    const MlaWeights& m = k.weights.layers[0].mla;
    for (std::int64_t h = 0; h < k.config.all_layers().problem.heads; ++h) {
      const WeightView uk = m.uk.at(h);
      const WeightView uv = m.uv.at(h);
      ASSERT_EQ(uk.dtype, c.kept);
      ASSERT_EQ(uv.dtype, c.kept);
      const std::int64_t first = h * (c.qk + c.v);
      for (std::int64_t col = 0; col < c.nope; ++col) {
        for (std::int64_t r = 0; r < c.qk; ++r) {
          ASSERT_EQ(weight_at(uk, col, r), weight_at(m.kv_b, first + r, col)) << h << " " << r;
        }
        for (std::int64_t r = 0; r < c.v; ++r) {
          ASSERT_EQ(weight_at(uv, r, col), weight_at(m.kv_b, first + c.qk + r, col));
        }
      }
    }
  }
}

}  // namespace
}  // namespace lathe
