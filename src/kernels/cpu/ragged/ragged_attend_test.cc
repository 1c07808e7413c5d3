// Kind `ragged` on the CPU against the oracle: dims, long contexts, holes, bits, SIMD targets.
#include "kernels/cpu/ragged/ragged_attend.h"

#include <gtest/gtest.h>

#include "base/test_scale.h"
#include "kernels/cpu/grouped_query/gqa_test_util.h"
#include "kernels/cpu/matmul/matmul_bf16.h"
#include "kernels/ref/attend_ragged.h"

namespace lathe {
namespace {

using namespace cpu_test;

struct RaggedDimsOf {
  int nope = 128, rope = 16, k_nope = 24, v = 40;
};

struct Scene {
  RaggedDimsOf dims;
  int heads;
  Rng rng;
  TestPool pool;
  Batch batch;
  Matrix<float> q, w_uk, w_uv;
  std::vector<std::byte> kv_b;
  std::vector<float> kv_b_scales;
  std::vector<float> sink;
  AttendArgs args;

  Scene(LayoutKind kind, int page, int head_count, const std::vector<std::pair<int, int>>& requests,
        RaggedDimsOf d = {}, std::uint32_t seed = test_seed(11))
      : dims(d),
        heads(head_count),
        rng(seed),
        pool(CacheLayout(kind, {.nope = d.nope, .rope = d.rope}), page,
             GqaScene::pages_for(requests, page)),
        batch(pool, requests, rng),
        q(random_matrix(batch.rows, heads * (d.k_nope + d.rope), rng)),
        w_uk(random_matrix(heads * d.k_nope, d.nope, rng)),
        w_uv(random_matrix(heads * d.v, d.nope, rng)) {
    const float shrink = 1 / std::sqrt(static_cast<float>(d.nope));
    for (Matrix<float>* m : {&w_uk, &w_uv}) {
      for (float& x : m->data) x *= shrink;
    }
    args.problem = latent_problem(ProblemKind::dense_latent, heads, d.nope, d.rope);
    args.problem.scale = 1 / std::sqrt(static_cast<float>(d.k_nope + d.rope));
    args.problem.qk_nope_head = d.k_nope;
    args.problem.v_head = d.v;
    args.q = q.view();
    args.expansion = {w_uk.data, w_uv.data};
    batch.put_into(args);
    args.main.pool = pool.view();
    if (kind == LayoutKind::mla_fp8) args.main.key_scale = 0.7f;
    batch.name_by_page(args.main);
  }
  Scene(const Scene&) = delete;

  // Also brings the weights as a checkpoint stores them, and rounds w_uk and w_uv to what those
  // say.
  void store_weights(DType dtype) {
    const std::int64_t width = dims.k_nope + dims.v, nope = dims.nope;
    const std::int64_t across = (nope + kWeightBlock - 1) / kWeightBlock;
    kv_b.resize(static_cast<std::size_t>(bytes_of(dtype, heads * width * nope)));
    for (std::int64_t i = 0; i < (heads * width / kWeightBlock + 1) * across; ++i) {
      kv_b_scales.push_back(0.003f + 0.0001f * static_cast<float>(i % 17));
    }
    for (std::int64_t row = 0; row < heads * width; ++row) {
      const std::int64_t head = row / width, r = row % width;
      for (std::int64_t c = 0; c < nope; ++c) {
        float& x = r < dims.k_nope ? w_uk.at(head * dims.k_nope + r, c)
                                   : w_uv.at(head * dims.v + r - dims.k_nope, c);
        std::byte* to = kv_b.data() + bytes_of(dtype, row * nope + c);
        if (dtype == DType::bf16) {
          const bf16 b = to_bf16(x);
          std::memcpy(to, &b, sizeof(b));
          x = to_f32(b);
        } else {
          const float scale =
              kv_b_scales[static_cast<std::size_t>(row / kWeightBlock * across + c / kWeightBlock)];
          const e4m3 code = to_e4m3(x / scale);
          std::memcpy(to, &code, sizeof(code));
          x = to_f32(code) * scale;
        }
      }
    }
    args.expansion = {w_uk.data, w_uv.data, kv_b.data(), dtype,
                      dtype == DType::e4m3 ? kv_b_scales.data() : nullptr};
  }
  Outputs attend_in_floats() const {
    AttendArgs plain = args;
    plain.expansion.kv_b = nullptr;
    return run(cpu_attend_ragged, plain, dims.v);
  }
  Outputs attend() const { return run(cpu_attend_ragged, args, dims.v); }
  Outputs oracle() const { return run(ref_attend_ragged, args, dims.v); }
};

class CpuRagged : public ::testing::TestWithParam<LayoutPageHeads> {};

TEST_P(CpuRagged, EqualsTheOracle) {
  const auto& [kind, page, heads] = GetParam();
  for (int round = 0; round < test_scale(); ++round) {
    SCOPED_TRACE(round);
    Scene s(kind, page, heads,
            {{1, 1},
             {std::max(1, page - 1), 1},
             {page, page},
             {page + 1, 2},
             {0, 0},
             {5, 0},
             {300, 130}},
            {}, test_seed(11 + static_cast<std::uint32_t>(round)));
    expect_close(s.attend(), s.oracle());
    s.args.problem.sink = true;
    s.sink.assign(static_cast<std::size_t>(heads), 1.5f);
    s.args.sink = s.sink;
    expect_close(s.attend(), s.oracle());
  }
}

INSTANTIATE_TEST_SUITE_P(All, CpuRagged,
                         ::testing::Combine(::testing::ValuesIn(kLatentKinds),
                                            ::testing::Values(1, 16, 64), ::testing::Values(1, 3)),
                         layout_page_heads);

TEST(RaggedAttend, DimsOfDeepSeek) {
  Scene s(LayoutKind::mla_fp8_block, 64, 2, {{260, 70}}, {512, 64, 128, 128});
  expect_close(s.attend(), s.oracle());
}

TEST(RaggedAttend, LongContext) {
  Scene s(LayoutKind::mla_bf16, 64, 1, {{2047, 3}, {2048, 1}, {2049, 300}});
  expect_close(s.attend(), s.oracle());
}

TEST(RaggedAttend, HolesInThePageTable) {
  Scene s(LayoutKind::mla_fp8, 16, 3, {{200, 200}, {16, 1}});
  s.batch.entry(0, 0) = PageId(-1);
  s.batch.entry(0, 5) = PageId(100000);
  s.batch.entry(1, 0) = PageId(-1);
  const Outputs o = s.attend();
  expect_close(o, s.oracle());
  EXPECT_EQ(o.lse.at(15, 2), -kInf);
  EXPECT_EQ(o.lse.at(200, 0), -kInf);
  EXPECT_EQ(o.out.at(200, 0), 0);
}

TEST(RaggedAttend, SparseUpToTopK) {
  Scene s(LayoutKind::mla_bf16, 16, 3, {{20, 5}, {17, 1}});
  const Outputs dense = s.attend();
  s.args.problem.kind = ProblemKind::sparse_latent;
  s.args.problem.top_k = 20;
  expect_same_bits(s.attend(), dense);
  s.args.problem.top_k = 19;
  Matrix<double> out(6, 3 * s.dims.v, -7);
  s.args.out = out.mutable_view();
  EXPECT_FALSE(cpu_attend_ragged(s.args));
  EXPECT_EQ(out.data, std::vector<double>(out.data.size(), -7));
}

// Keys that only later rows see hold NaN; earlier rows keep their bits.
TEST(RaggedAttend, WhatARowDoesNotSeeCannotMatter) {
  Scene s(LayoutKind::mla_bf16, 16, 1, {{100, 100}});
  const Outputs clean = s.attend();
  const ConstPoolView pool = s.pool.view();
  const Slot slot = slot_of(s.batch.entry(0, 3), 16, 2);  // position 50
  auto* at = const_cast<std::byte*>(pool.at(pool.layout.part(0), slot));
  std::fill(at, at + pool.layout.part(0).bytes(), std::byte{0xff});
  const Outputs dirty = s.attend();
  expect_same_bits(rows_of(dirty, 0, 50), rows_of(clean, 0, 50));
  for (int row = 50; row < 100; ++row) EXPECT_TRUE(std::isnan(dirty.out.at(row, 3))) << row;
}

TEST(RaggedAttend, BitsDependOnTheRequestAlone) {
  Scene s(LayoutKind::mla_fp8_block, 16, 2, {{900, 500}});
  const Outputs whole = s.attend();
  for (const int count : {1, 2, 3, 16}) {
    ThreadPool threads(count);
    Scratch scratch;
    s.args.execution = {.threads = &threads, .scratch = &scratch};
    for (int i = 0; i < 3; ++i) expect_same_bits(s.attend(), whole);
    EXPECT_EQ(scratch.growths(), 1);
  }
  for (const auto& [first, count] :
       std::vector<std::pair<int, int>>{{0, 1}, {0, 100}, {100, 399}, {499, 1}, {37, 97}}) {
    AttendArgs args = s.args;
    const std::int32_t indptr[] = {0, count};
    const std::int32_t lens[] = {400 + first + count};
    args.q.data = s.args.q.row(first);
    args.q.rows = count;
    args.q_indptr = indptr;
    args.kv_lens = lens;
    args.execution = {};
    expect_same_bits(run(cpu_attend_ragged, args, s.dims.v), rows_of(whole, first, count));
  }
}

TEST(RaggedAttend, EverySimdTarget) {
  Scene s(LayoutKind::mla_fp8_block, 16, 2, {{200, 40}, {65, 1}, {0, 0}});
  const Outputs wanted = s.oracle();
  on_every_target([&] { expect_close(s.attend(), wanted); });
}

// Operands of bf16 have 2^-9 of rounding each: q, expanded keys and values, softmax weights, and
// the products of e4m3 codes and factors.
class RaggedPairs : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cpu_has_bf16_dot()) GTEST_SKIP() << "this CPU has no dot products of bf16 pairs";
  }
  static void expect_near_oracle(const Outputs& got, const Outputs& wanted) {
    double errors = 0, squares = 0;
    for (std::size_t i = 0; i < got.out.data.size(); ++i) {
      const double error = got.out.data[i] - wanted.out.data[i];
      errors += error * error;
      squares += wanted.out.data[i] * wanted.out.data[i];
      EXPECT_LT(std::abs(error), 0.06) << i;
    }
    EXPECT_LT(std::sqrt(errors / squares), 0x1p-7);
    for (std::size_t i = 0; i < got.lse.data.size(); ++i) {
      if (std::isinf(wanted.lse.data[i])) {
        EXPECT_EQ(got.lse.data[i], wanted.lse.data[i]);
      } else {
        EXPECT_NEAR(got.lse.data[i], wanted.lse.data[i], 0.03);
      }
    }
  }
};

class CpuRaggedPairs : public RaggedPairs,
                       public ::testing::WithParamInterface<std::tuple<LayoutKind, DType>> {};

TEST_P(CpuRaggedPairs, AreNearTheOracle) {
  const auto& [kind, dtype] = GetParam();
  const std::vector<RaggedDimsOf> all = {{}, {128, 64, 10, 7}, {512, 64, 128, 128}};
  for (const RaggedDimsOf& d : all) {
    SCOPED_TRACE(d.k_nope);
    const bool wide = d.nope == 512;
    Scene s(kind, 16, 3,
            wide ? std::vector<std::pair<int, int>>{{260, 130}}
                 : std::vector<std::pair<int, int>>{{1, 1},
                                                    {15, 1},
                                                    {16, 16},
                                                    {17, 2},
                                                    {0, 0},
                                                    {5, 0},
                                                    {300, 130}},
            d);
    s.store_weights(dtype);
    const Outputs wanted = s.oracle(), got = s.attend();
    expect_near_oracle(got, wanted);
    EXPECT_NE(got.out.data, s.attend_in_floats().out.data);
    s.args.problem.sink = true;
    s.sink.assign(3, 1.5f);
    s.args.sink = s.sink;
    expect_near_oracle(s.attend(), s.oracle());
    on_every_target([&] { expect_near_oracle(s.attend(), s.oracle()); });
  }
}

INSTANTIATE_TEST_SUITE_P(All, CpuRaggedPairs,
                         ::testing::Combine(::testing::ValuesIn(kLatentKinds),
                                            ::testing::Values(DType::bf16, DType::e4m3)),
                         [](const auto& test) {
                           return std::string(name(std::get<0>(test.param))) + "_" +
                                  std::string(name(std::get<1>(test.param)));
                         });

// Of odd widths, or of weights that are not exact in bf16, products stay in f32.
TEST_F(RaggedPairs, LeaveOtherShapesInFloats) {
  Scene odd(LayoutKind::mla_bf16, 16, 2, {{100, 70}}, {128, 16, 23, 40});
  odd.store_weights(DType::bf16);
  expect_same_bits(odd.attend(), odd.attend_in_floats());
  Scene f16(LayoutKind::mla_bf16, 16, 2, {{100, 70}});
  f16.store_weights(DType::bf16);
  f16.args.expansion.kv_b_dtype = DType::f16;
  expect_same_bits(f16.attend(), f16.attend_in_floats());
}

TEST_F(RaggedPairs, HolesInThePageTable) {
  Scene s(LayoutKind::mla_fp8, 16, 3, {{200, 200}, {16, 1}});
  s.store_weights(DType::e4m3);
  s.batch.entry(0, 0) = PageId(-1);
  s.batch.entry(0, 5) = PageId(100000);
  s.batch.entry(1, 0) = PageId(-1);
  const Outputs o = s.attend();
  expect_near_oracle(o, s.oracle());
  EXPECT_EQ(o.lse.at(15, 2), -kInf);
  EXPECT_EQ(o.out.at(200, 0), 0);
}

// As in f32, where the key that shares a pair with a row's last one holds NaN.
TEST_F(RaggedPairs, WhatARowDoesNotSeeCannotMatter) {
  for (const int position : {50, 51}) {
    Scene s(LayoutKind::mla_bf16, 16, 1, {{100, 100}});
    s.store_weights(DType::bf16);
    const Outputs clean = s.attend();
    const ConstPoolView pool = s.pool.view();
    const Slot slot = slot_of(s.batch.entry(0, position / 16), 16, position % 16);
    auto* at = const_cast<std::byte*>(pool.at(pool.layout.part(0), slot));
    std::fill(at, at + pool.layout.part(0).bytes(), std::byte{0xff});
    const Outputs dirty = s.attend();
    expect_same_bits(rows_of(dirty, 0, position), rows_of(clean, 0, position));
    for (int row = position; row < 100; ++row) EXPECT_TRUE(std::isnan(dirty.out.at(row, 3))) << row;
  }
}

TEST_F(RaggedPairs, BitsDependOnTheRequestAlone) {
  Scene s(LayoutKind::mla_fp8_block, 16, 2, {{900, 500}});
  s.store_weights(DType::e4m3);
  const Outputs whole = s.attend();
  for (const int count : {1, 3}) {
    ThreadPool threads(count);
    Scratch scratch;
    s.args.execution = {.threads = &threads, .scratch = &scratch};
    for (int i = 0; i < 3; ++i) expect_same_bits(s.attend(), whole);
    EXPECT_EQ(scratch.growths(), 1);
  }
  for (const auto& [first, count] : std::vector<std::pair<int, int>>{
           {0, 1}, {0, 100}, {100, 399}, {37, 97}, {38, 5}, {499, 1}}) {
    AttendArgs args = s.args;
    const std::int32_t indptr[] = {0, count};
    const std::int32_t lens[] = {400 + first + count};
    args.q.data = s.args.q.row(first);
    args.q.rows = count;
    args.q_indptr = indptr;
    args.kv_lens = lens;
    args.execution = {};
    expect_same_bits(run(cpu_attend_ragged, args, s.dims.v), rows_of(whole, first, count));
  }
}

}  // namespace
}  // namespace lathe
