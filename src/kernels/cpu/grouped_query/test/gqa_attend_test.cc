// Grouped-query attention on the CPU against the oracle: head counts, long contexts, SIMD targets.
#include "kernels/cpu/grouped_query/gqa_attend.h"

#include <gtest/gtest.h>

#include "kernels/cpu/grouped_query/test/gqa_test_util.h"
#include "kernels/ref/attend_gqa.h"
#include "kernels/ref/decode_token.h"

namespace lathe {
namespace {

using namespace cpu_test;

using GroupDims = std::tuple<LayoutKind, int, int>;

class GqaGroups : public ::testing::TestWithParam<GroupDims> {};

TEST_P(GqaGroups, EqualTheOracle) {
  const auto& [kind, group, dim] = GetParam();
  for (const int page : {1, 16, 64}) {
    GqaScene s({kind, page, 2 * group, 2, dim, dim == 80 ? 48 : dim}, {{1, 1},
                                                                       {std::max(1, page - 1), 1},
                                                                       {page, page > 1 ? 2 : 1},
                                                                       {0, 0},
                                                                       {page + 1, 2},
                                                                       {5, 0},
                                                                       {130, 70}});
    expect_oracle(s);
    s.args.problem.window = 33;
    expect_oracle(s);
    s.args.problem.chunked = true;
    expect_oracle(s);
    s.add_sink(std::vector<float>(static_cast<std::size_t>(2 * group), 1.25f));
    expect_oracle(s);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, GqaGroups,
    ::testing::Combine(::testing::Values(LayoutKind::gqa_bf16, LayoutKind::gqa_fp8),
                       ::testing::Values(1, 2, 3, 8), ::testing::Values(64, 80, 128, 256)),
    [](const ::testing::TestParamInfo<GroupDims>& test) {
      return std::string(name(std::get<0>(test.param))) + "_group" +
             std::to_string(std::get<1>(test.param)) + "_dim" +
             std::to_string(std::get<2>(test.param));
    });

TEST(GqaAttend, LongContexts) {
  for (const LayoutKind kind : {LayoutKind::gqa_bf16, LayoutKind::gqa_fp8}) {
    GqaScene s({kind, 64, 4, 1, 64, 64}, {{2047, 1}, {2048, 3}, {2049, 1}, {63, 1}, {0, 0}});
    ThreadPool threads(3);
    for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &threads}) {
      for (const bool invariant : {false, true}) {
        s.args.execution = {.threads = pool, .batch_invariant = invariant};
        expect_oracle(s);
      }
    }
    s.args.problem.window = 1000;
    expect_oracle(s);
    s.args.problem.chunked = true;
    for (const int chunk : {64, 1000, 2048}) {
      s.args.problem.window = chunk;
      expect_oracle(s);
    }
  }
}

TEST(GqaAttend, EverySimdTarget) {
  for (const LayoutKind kind : {LayoutKind::gqa_bf16, LayoutKind::gqa_fp8}) {
    GqaScene s({kind, 16, 6, 2, 80, 112}, {{200, 40}, {65, 1}, {0, 0}});
    const Outputs wanted = run(ref_attend_gqa, s.args, 112);
    on_every_target([&] { expect_close(attend(s), wanted); });
  }
}

}  // namespace
}  // namespace lathe
