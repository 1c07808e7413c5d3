// Grouped-query attention over index lists, compact rows and page tables with holes; with all
// dtypes, with sinks, and with NaN outside a row's keys.
#include <gtest/gtest.h>

#include <cstring>

#include "kernels/cpu/grouped_query/gqa_attend.h"
#include "kernels/cpu/grouped_query/test/gqa_test_util.h"
#include "kernels/ref/attend_gqa.h"
#include "kernels/ref/decode_token.h"

namespace lathe {
namespace {

using namespace cpu_test;

class GqaFormats : public ::testing::TestWithParam<LayoutKind> {};

TEST_P(GqaFormats, IndexListsWithHolesAndDuplicates) {
  GqaScene s({GetParam(), 16, 8, 2, 64, 48}, {{90, 4}, {0, 0}, {33, 1}, {200, 2}});
  constexpr int kWidth = 210;
  std::vector<std::int32_t> list = s.batch.causal_list(16, kWidth);
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (i % 7 == 3) list[i] = list[i - 3];
    if (i % 11 == 5) list[i] = static_cast<std::int32_t>(i % 2 == 0 ? -1 : 1 << 30);
    if (i % 13 == 5) list[i] = -7;
  }
  for (std::size_t i = 64; i < 130; ++i) list[i] = -1;                 // a whole tile
  for (std::size_t i = 4 * kWidth; i < 5 * kWidth; ++i) list[i] = -1;  // a whole row
  s.by_index(list);
  expect_oracle(s);
  const Outputs o = run(cpu_attend_gqa, s.args, 48);
  EXPECT_EQ(o.lse.at(4, 7), -kInf);
  EXPECT_EQ(o.out.at(4, 0), 0);
  const std::vector<std::int32_t> lengths{0, 1, 63, 64, 65, 128, 210};
  s.args.main.index_lengths = lengths;
  expect_oracle(s);
}

TEST_P(GqaFormats, CompactRows) {
  GqaScene s({GetParam(), 16, 6, 2, 64, 80}, {{90, 2}, {33, 1}});
  const auto list = s.batch.causal_list(16, 100);
  const std::int64_t width = s.pool.view().layout.row_elems();
  Matrix<float> wide(std::ssize(list), width, std::numeric_limits<float>::quiet_NaN());
  Matrix<bf16> narrow(std::ssize(list), width, bf16{0x7fc0});
  std::vector<std::int32_t> rows(list.size(), -1);
  std::vector<double> token(static_cast<std::size_t>(width));
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i] < 0) continue;
    rows[i] = static_cast<std::int32_t>(i);
    decode_token(s.pool.view(), Slot(list[i]), 1.0f, 1.0f, token);
    for (std::int64_t e = 0; e < width; ++e) {
      wide.at(rows[i], e) = static_cast<float>(token[static_cast<std::size_t>(e)]);
      narrow.at(rows[i], e) = to_bf16(wide.at(rows[i], e));
    }
  }
  s.by_index(rows);
  s.args.main.pool.reset();
  s.args.main.key_scale = 1;
  s.args.main.value_scale = 1;
  s.args.main.compact = wide.view();
  expect_oracle(s);
  s.args.main.compact = narrow.view();
  expect_oracle(s);
}

TEST_P(GqaFormats, HolesInThePageTable) {
  GqaScene s({GetParam(), 16, 4, 2, 64, 64}, {{150, 150}, {40, 1}, {16, 1}});
  s.batch.entry(0, 0) = PageId(-1);
  s.batch.entry(0, 4) = PageId(1 << 30);
  s.batch.entry(1, 2) = PageId(-5);
  s.batch.entry(2, 0) = PageId(-1);
  expect_oracle(s);
  const Outputs o = run(cpu_attend_gqa, s.args, 64);
  EXPECT_EQ(o.lse.at(15, 0), -kInf);
  EXPECT_EQ(o.lse.at(151, 3), -kInf);
  EXPECT_EQ(o.out.at(151, 0), 0);
}

// Pages before the windows of all rows of a request have been freed: they are NaN, or their table
// entries are holes. Neither changes a result, with one chunk or with several uneven ones.
void expect_no_use_of_left_pages(LayoutKind kind, bool chunked) {
  const std::vector<std::pair<int, int>> requests{{150, 10}, {90, 1}, {64, 64}, {333, 40}};
  constexpr int kWindow = 20;
  GqaScene s({kind, 16, 4, 2, 64, 64}, requests);
  s.args.problem.window = kWindow;
  s.args.problem.chunked = chunked;
  expect_oracle(s);
  const Outputs whole = run(cpu_attend_gqa, s.args, 64);
  const auto left_behind = [&](auto f) {
    for (std::size_t r = 0; r < requests.size(); ++r) {
      const int row = requests[r].first - requests[r].second;
      const int first = chunked ? row / kWindow * kWindow : row - kWindow + 1;
      for (int page = 0; page < std::max(0, first) / 16; ++page) f(r, page);
    }
  };
  left_behind([&](std::size_t r, int page) {
    const ConstPoolView pool = s.pool.view();
    const std::int64_t at = s.batch.entry(static_cast<int>(r), page).value * pool.page_stride;
    std::memset(const_cast<std::byte*>(pool.data) + at, 0xff,
                static_cast<std::size_t>(pool.page_stride));
  });
  expect_same_bits(run(cpu_attend_gqa, s.args, 64), whole);
  expect_oracle(s);
  left_behind(
      [&](std::size_t r, int page) { s.batch.entry(static_cast<int>(r), page) = PageId(); });
  expect_same_bits(run(cpu_attend_gqa, s.args, 64), whole);
  expect_oracle(s);
}

TEST_P(GqaFormats, PagesThatAWindowHasLeftMayBeGone) {
  for (const bool chunked : {false, true}) expect_no_use_of_left_pages(GetParam(), chunked);
}

TEST_P(GqaFormats, Sinks) {
  const float inf = std::numeric_limits<float>::infinity();
  GqaScene s({GetParam(), 16, 6, 2, 64, 64}, {{70, 2}, {1, 1}});
  s.add_sink({-inf, inf, 0, 100, -100, 2.5f});
  expect_oracle(s);
  s.batch.entry(1, 0) = PageId(-1);
  expect_oracle(s);
}

// Rows of a verify step share tiles with keys that only later rows may see.
TEST_P(GqaFormats, WhatARowDoesNotSeeCannotMatter) {
  for (const int group : {1, 4}) {
    GqaScene s({GetParam(), 16, 2 * group, 2, 64, 64}, {{70, 70}});
    const Outputs clean = run(cpu_attend_gqa, s.args, 64);
    const ConstPoolView pool = s.pool.view();
    for (const int pos : {40, 69}) {
      const Slot slot = slot_of(s.batch.entry(0, pos / 16), 16, pos % 16);
      for (int i = 0; i < 2; ++i) {
        const Part& part = pool.layout.part(i);
        auto* at = const_cast<std::byte*>(pool.at(part, slot));
        std::fill(at, at + part.bytes(), std::byte{0xff});
      }
    }
    const Outputs dirty = run(cpu_attend_gqa, s.args, 64);
    expect_same_bits(rows_of(dirty, 0, 40), rows_of(clean, 0, 40));
    for (int row = 40; row < 70; ++row) EXPECT_TRUE(std::isnan(dirty.lse.at(row, 0))) << row;
    for (int row = 40; row < 70; ++row) EXPECT_TRUE(std::isnan(dirty.out.at(row, 5))) << row;
    s.args.problem.window = 20;
    const Outputs window = run(cpu_attend_gqa, s.args, 64);
    for (int row = 0; row < 70; ++row) {
      const bool sees = (row >= 40 && row < 60) || row == 69;
      EXPECT_EQ(std::isnan(window.out.at(row, 5)), sees) << row;
    }
  }
}

TEST_P(GqaFormats, DtypesOfQueriesAndResults) {
  GqaScene s({GetParam(), 16, 4, 2, 64, 64}, {{70, 3}, {9, 1}});
  Matrix<bf16> half(s.q.rows, s.q.cols);
  Matrix<e4m3> code(s.q.rows, s.q.cols);
  for (std::size_t i = 0; i < s.q.data.size(); ++i) {
    half.data[i] = to_bf16(s.q.data[i]);
    code.data[i] = to_e4m3(s.q.data[i]);
  }
  s.args.q = half.view();
  expect_oracle(s);
  s.args.q = code.view();
  s.args.q_scale = 0.4f;
  expect_oracle(s);
  const Outputs wide = run(cpu_attend_gqa, s.args, 64);
  Matrix<float> out(s.q.rows, 4 * 64), lse(s.q.rows, 4);
  Matrix<bf16> half_out(s.q.rows, 4 * 64);
  s.args.out = out.mutable_view();
  s.args.lse = lse.mutable_view();
  ASSERT_TRUE(cpu_attend_gqa(s.args));
  s.args.out = half_out.mutable_view();
  s.args.lse = {};
  ASSERT_TRUE(cpu_attend_gqa(s.args));
  for (std::size_t i = 0; i < out.data.size(); ++i) {
    EXPECT_EQ(double{out.data[i]}, wide.out.data[i]);
    EXPECT_EQ(half_out.data[i].bits, to_bf16(out.data[i]).bits);
  }
  for (std::size_t i = 0; i < lse.data.size(); ++i) {
    EXPECT_EQ(lse.data[i], static_cast<float>(wide.lse.data[i]));
  }
}

INSTANTIATE_TEST_SUITE_P(All, GqaFormats,
                         ::testing::Values(LayoutKind::gqa_bf16, LayoutKind::gqa_fp8),
                         [](const auto& test) { return std::string(name(test.param)); });

TEST(GqaAttend, RefusesWhatItCannotDo) {
  GqaScene s({LayoutKind::gqa_bf16, 16, 4, 2, 64, 64}, {{9, 1}});
  Matrix<double> out(1, 4 * 64, -7);
  s.args.out = out.mutable_view();
  s.args.problem.window = -1;
  EXPECT_FALSE(cpu_attend_gqa(s.args));
  s.args.problem.window = 0;
  Matrix<float> compact(1, 2 * (24 + 64));
  Matrix<float> q(1, 4 * 24);
  s.args.problem.head_dim = 24;
  s.args.q = q.view();
  s.by_index({0});
  s.args.main.pool.reset();
  s.args.main.compact = compact.view();
  const Result<void> refused = cpu_attend_gqa(s.args);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message(),
            "problem.head_dim: wanted a multiple of 16 up to 512, got 24");
  EXPECT_EQ(out.data, std::vector<double>(out.data.size(), -7));
}

}  // namespace
}  // namespace lathe
