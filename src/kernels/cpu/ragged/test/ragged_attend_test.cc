// Kind `ragged` on the CPU against the oracle: dims, long contexts, holes, bits, SIMD targets.
#include "kernels/cpu/ragged/ragged_attend.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/test_scale.h"
#include "kernels/cpu/grouped_query/test/gqa_test_util.h"
#include "kernels/cpu/matmul/matmul_bf16.h"
#include "kernels/cpu/ragged/ragged_expand.h"
#include "kernels/ref/attend_ragged.h"

namespace lathe {
namespace {

using namespace cpu_test;

struct RaggedDimsOf {
  int nope = 128, rope = 16, k_nope = 24, v = 40;
};

struct RaggedScene {
  RaggedDimsOf dims;
  int heads;
  Rng rng;
  TestPool pool;
  Batch batch;
  Matrix<float> q, w_uk, w_uv;
  std::vector<float> sink;
  std::vector<std::byte> kv_b;
  std::vector<float> kv_b_scales;
  AttendArgs args;

  RaggedScene(LayoutKind kind, int page, int head_count,
              const std::vector<std::pair<int, int>>& requests, RaggedDimsOf d = {},
              std::uint32_t seed = test_seed(11))
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
  RaggedScene(const RaggedScene&) = delete;
  // The weights as a checkpoint stores them, and w_uk and w_uv with their rounding.
  void store_weights(DType dtype, bool scaled) {
    const std::int64_t of_head = dims.k_nope + dims.v, rows = heads * of_head;
    const std::int64_t across = weight_blocks(dims.nope);
    kv_b.resize(static_cast<std::size_t>(bytes_of(dtype, rows * dims.nope)));
    kv_b_scales.assign(static_cast<std::size_t>(weight_blocks(rows) * across), 1);
    std::uniform_real_distribution<float> uniform(0.5f, 2);
    for (float& v : kv_b_scales) v = scaled ? uniform(rng) : 1;
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t head = r / of_head, in_head = r % of_head;
      const bool key = in_head < dims.k_nope;
      float* row =
          key ? &w_uk.data[static_cast<std::size_t>((head * dims.k_nope + in_head) * dims.nope)]
              : &w_uv.data[static_cast<std::size_t>((head * dims.v + in_head - dims.k_nope) *
                                                    dims.nope)];
      for (std::int64_t c = 0; c < dims.nope; ++c) {
        const auto at = static_cast<std::size_t>(r * dims.nope + c);
        const float scale =
            kv_b_scales[static_cast<std::size_t>(r / kWeightBlock * across + c / kWeightBlock)];
        if (dtype == DType::bf16) {
          const bf16 code = to_bf16(row[c]);
          std::memcpy(&kv_b[2 * at], &code, 2);
          row[c] = to_f32(code);
        } else {
          const e4m3 code = to_e4m3(row[c] / scale);
          std::memcpy(&kv_b[at], &code, 1);
          row[c] = to_f32(code) * scale;
        }
      }
    }
    args.expansion = {w_uk.data, w_uv.data, kv_b.data(), dtype,
                      scaled ? kv_b_scales.data() : nullptr};
  }
  Outputs attend() const { return run(cpu_attend_ragged, args, dims.v); }
  Outputs oracle() const { return run(ref_attend_ragged, args, dims.v); }
};

class CpuRagged : public ::testing::TestWithParam<LayoutPageHeads> {};

TEST_P(CpuRagged, EqualsTheOracle) {
  const auto& [kind, page, heads] = GetParam();
  for (int round = 0; round < test_scale(); ++round) {
    SCOPED_TRACE(round);
    RaggedScene s(kind, page, heads,
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
  RaggedScene s(LayoutKind::mla_fp8_block, 64, 2, {{260, 70}}, {512, 64, 128, 128});
  expect_close(s.attend(), s.oracle());
}

// Weights in bf16 and e4m3 with latents in bf16, which are multiplied by pairs where the CPU can.
TEST(RaggedAttend, WeightsOfTheCheckpoint) {
  for (const RaggedDimsOf& d : {RaggedDimsOf{512, 64, 128, 128}, RaggedDimsOf{},
                                RaggedDimsOf{160, 16, 100, 36}, RaggedDimsOf{96, 16, 8, 4}}) {
    for (const auto& [dtype, scaled] :
         {std::pair{DType::bf16, false}, {DType::e4m3, true}, {DType::e4m3, false}}) {
      SCOPED_TRACE(testing::Message() << d.nope << " to " << d.k_nope << " and " << d.v << ", "
                                      << name(dtype) << (scaled ? " scaled" : ""));
      RaggedScene s(LayoutKind::mla_bf16, 16, 3, {{150, 90}, {0, 0}, {64, 1}}, d);
      s.store_weights(dtype, scaled);
      s.batch.entry(0, 1) = PageId(-1);
      EXPECT_EQ(ragged_expands_by_pairs(s.args), cpu_has_bf16_dot());
      const Outputs got = s.attend(), want = s.oracle();
      expect_close(got, want);
      s.args.expansion.kv_b = nullptr;
      EXPECT_FALSE(ragged_expands_by_pairs(s.args));
      expect_close(s.attend(), want);
    }
  }
  RaggedScene s(LayoutKind::mla_fp8, 16, 1, {{20, 5}});
  s.store_weights(DType::bf16, false);
  EXPECT_FALSE(ragged_expands_by_pairs(s.args));  // such latents are not bf16
}

TEST(RaggedAttend, LongContext) {
  RaggedScene s(LayoutKind::mla_bf16, 64, 1, {{2047, 3}, {2048, 1}, {2049, 300}});
  expect_close(s.attend(), s.oracle());
}

TEST(RaggedAttend, HolesInThePageTable) {
  RaggedScene s(LayoutKind::mla_fp8, 16, 3, {{200, 200}, {16, 1}});
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
  RaggedScene s(LayoutKind::mla_bf16, 16, 3, {{20, 5}, {17, 1}});
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
  RaggedScene s(LayoutKind::mla_bf16, 16, 1, {{100, 100}});
  const Outputs clean = s.attend();
  const ConstPoolView pool = s.pool.view();
  const Slot slot = slot_of(s.batch.entry(0, 3), 16, 2);  // position 50
  auto* at = const_cast<std::byte*>(pool.at(pool.layout.part(0), slot));
  std::fill(at, at + pool.layout.part(0).bytes(), std::byte{0xff});
  const Outputs dirty = s.attend();
  expect_same_bits(rows_of(dirty, 0, 50), rows_of(clean, 0, 50));
  for (int row = 50; row < 100; ++row) EXPECT_TRUE(std::isnan(dirty.out.at(row, 3))) << row;
}

void expect_bits_of_the_request(RaggedScene& s) {
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

TEST(RaggedAttend, BitsDependOnTheRequestAlone) {
  RaggedScene s(LayoutKind::mla_fp8_block, 16, 2, {{900, 500}});
  expect_bits_of_the_request(s);
  RaggedScene pairs(LayoutKind::mla_bf16, 16, 2, {{900, 500}});
  pairs.store_weights(DType::e4m3, true);
  expect_bits_of_the_request(pairs);
}

TEST(RaggedAttend, EverySimdTarget) {
  RaggedScene s(LayoutKind::mla_fp8_block, 16, 2, {{200, 40}, {65, 1}, {0, 0}});
  const Outputs wanted = s.oracle();
  on_every_target([&] { expect_close(s.attend(), wanted); });
}

}  // namespace
}  // namespace lathe
