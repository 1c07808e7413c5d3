// Scenes and comparisons for the tests of the grouped-query and ragged CPU kernels.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "attn/attend.h"
#include "base/test_scale.h"
#include "kernels/cpu/grouped_query/gqa_attend.h"
#include "kernels/cpu/test/targets_test_util.h"
#include "kernels/ref/attend_gqa.h"
#include "kernels/ref/test/test_util.h"

namespace lathe::cpu_test {

using namespace ref_test;

/// Tolerance of f32 arithmetic against double in these tests. The project's bound is 8e-4 or
/// 2.01 / 128.
inline constexpr double kTolerance = 2e-5;

inline double cosine_difference(const Matrix<double>& a, const Matrix<double>& b) {
  double dot = 0, norms = 0;
  for (std::size_t i = 0; i < a.data.size(); ++i) {
    dot += 2 * a.data[i] * b.data[i];
    norms += a.data[i] * a.data[i] + b.data[i] * b.data[i];
  }
  return norms == 0 ? 0 : 1 - dot / norms;
}

inline void expect_close(const Outputs& got, const Outputs& wanted, double tolerance = kTolerance) {
  expect_near(got, wanted, tolerance);
  EXPECT_LT(cosine_difference(got.out, wanted.out), 1e-8);
}

inline void expect_same_bits(const Outputs& a, const Outputs& b) {
  EXPECT_EQ(0, std::memcmp(a.out.data.data(), b.out.data.data(), 8 * a.out.data.size()));
  EXPECT_EQ(0, std::memcmp(a.lse.data.data(), b.lse.data.data(), 8 * a.lse.data.size()));
  ASSERT_EQ(a.out.data.size(), b.out.data.size());
}

/// Rows first .. first + count - 1 of both outputs.
inline Outputs rows_of(const Outputs& o, std::int64_t first, std::int64_t count) {
  Outputs part{{count, o.out.cols}, {count, o.lse.cols}};
  const auto copy = [&](const Matrix<double>& from, Matrix<double>& to) {
    for (std::int64_t r = 0; r < count; ++r) {
      for (std::int64_t c = 0; c < from.cols; ++c) to.at(r, c) = from.at(first + r, c);
    }
  };
  copy(o.out, part.out);
  copy(o.lse, part.lse);
  return part;
}

struct GqaDims {
  LayoutKind kind = LayoutKind::gqa_bf16;
  int page = 16;
  int heads = 4;
  int kv_heads = 2;
  int dim = 64;
  int v_dim = 64;
};

/// A batch of (keys, rows) requests on a NaN-poisoned pool, with arguments by page table.
struct GqaScene {
  GqaDims dims;
  Rng rng;
  TestPool pool;
  Batch batch;
  Matrix<float> q;
  std::vector<float> sink;
  AttendArgs args;

  static std::int64_t pages_for(const std::vector<std::pair<int, int>>& requests, int page) {
    std::int64_t pages = 3;
    for (const auto& [keys, rows] : requests) pages += (keys + page - 1) / page;
    return pages;
  }
  GqaScene(const GqaDims& d, const std::vector<std::pair<int, int>>& requests,
           std::uint32_t seed = test_seed(7))
      : dims(d),
        rng(seed),
        pool(
            CacheLayout(d.kind, {.kv_heads = d.kv_heads, .head_dim = d.dim, .v_head_dim = d.v_dim}),
            d.page, pages_for(requests, d.page)),
        batch(pool, requests, rng),
        q(random_matrix(batch.rows, d.heads * d.dim, rng)) {
    AttentionProblem& p = args.problem;
    p.kind = ProblemKind::grouped_query;
    p.heads = d.heads;
    p.kv_heads = d.kv_heads;
    p.head_dim = d.dim;
    p.v_head_dim = d.v_dim;
    p.scale = 1.5f / std::sqrt(static_cast<float>(d.dim));
    args.q = q.view();
    batch.put_into(args);
    args.main.pool = pool.view();
    if (d.kind == LayoutKind::gqa_fp8) {
      args.main.key_scale = 0.7f;
      args.main.value_scale = 1.9f;
    }
    batch.name_by_page(args.main);
  }
  GqaScene(const GqaScene&) = delete;

  void add_sink(std::vector<float> logits) {
    args.problem.sink = true;
    sink = std::move(logits);
    args.sink = sink;
  }
  void by_index(const std::vector<std::int32_t>& list) {
    args.main.page_table = {};
    args.main.table_width = 0;
    name_by_index(args.main, list, std::ssize(list) / batch.rows);
  }
};

inline Outputs attend(const GqaScene& s) { return run(cpu_attend_gqa, s.args, s.dims.v_dim); }
inline Outputs oracle(const GqaScene& s) { return run(ref_attend_gqa, s.args, s.dims.v_dim); }
inline void expect_oracle(const GqaScene& s) { expect_close(attend(s), oracle(s)); }

}  // namespace lathe::cpu_test
