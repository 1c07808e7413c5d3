// Runs calls with shared prefixes on the emulator, and compares them with the oracle in double
// precision, which knows nothing of groups.
#include <fmt/format.h>

#include "kernels/cuda/sm90/gqa/gqa_call.h"
#include "kernels/cuda/sm90/gqa/gqa_limits.h"
#include "kernels/cuda/sm90/gqa/test/gqa_shared_scene.h"

namespace lathe::cuda {
namespace {

void check(Bf16Scene& s, int sms, DType out = DType::bf16) {
  expect_oracle(attend(s.args, sms, out), s.oracle());
}

class GqaSharedEmulated : public ::testing::TestWithParam<std::tuple<LayoutKind, int>> {
 protected:
  LayoutKind kind() const { return std::get<0>(GetParam()); }
  int dim() const { return std::get<1>(GetParam()); }
  GqaDims dims(int page, int group, int kv_heads = 2) const {
    const int value_dim = dim() == kGqaWideKey ? kGqaWideKeyValue : dim();
    return {kind(), page, group * kv_heads, kv_heads, dim(), value_dim};
  }
};

// Requests of 1 to 100 own keys after 160 shared ones, and one that shares nothing.
TEST_P(GqaSharedEmulated, OneGroup) {
  for (const int page : {16, 32}) {
    for (const int sms : {1, 3}) {
      SCOPED_TRACE(fmt::format("page {} SMs {}", page, sms));
      Bf16Scene s(dims(page, 4), {{161, 1}, {200, 1}, {90, 1}, {260, 1}, {170, 1}, {0, 1}});
      for (const std::size_t r : {1, 3, 4}) share_pages(s, r, 0, 160 / page);
      const SharedLists lists(s);
      ASSERT_FALSE(s.args.prefixes.empty());
      EXPECT_EQ(lists.savings.shared_keys, 4 * 160);
      EXPECT_EQ(lists.savings.read_keys, 160);
      check(s, sms, page == 32 ? DType::f32 : DType::bf16);
    }
  }
}

// More M rows than a block of 64 has, and than one of 128 has.
TEST_P(GqaSharedEmulated, ManyRows) {
  for (const int requests : {17, 35}) {
    SCOPED_TRACE(fmt::format("requests {}", requests));
    Requests all;
    for (int r = 0; r < requests; ++r) all.emplace_back(65 + r % 20, 1);
    Bf16Scene s(dims(64, 4, 1), all);
    for (std::size_t r = 1; r < all.size(); ++r) share_pages(s, r, 0, 1);
    const SharedLists lists(s);
    ASSERT_EQ(s.args.prefixes.size, PrefixSize::many);
    check(s, 3);
  }
}

// A tree of groups, in steps that verify drafts.
TEST_P(GqaSharedEmulated, NestedGroups) {
  for (const int rows : {1, 2, 8}) {
    SCOPED_TRACE(fmt::format("rows {}", rows));
    Bf16Scene s(dims(16, 4),
                {{150, rows}, {160, rows}, {140, 1}, {110, rows}, {70, rows}, {72, 1}});
    share_pages(s, 1, 0, 7);
    share_pages(s, 2, 0, 7);
    share_pages(s, 3, 0, 4);
    share_pages(s, 4, 0, 2);
    share_pages(s, 5, 4, 3);
    const SharedLists lists(s);
    EXPECT_GE(lists.savings.groups, 3);
    check(s, 2);
  }
}

TEST_P(GqaSharedEmulated, SinksAndWindows) {
  for (const int window : {0, 100, 300, -112, -320}) {  // negative: chunks
    SCOPED_TRACE(fmt::format("window {}", window));
    Bf16Scene s(dims(16, 3), {{170, 2}, {99, 1}, {98, 1}, {180, 1}, {5, 1}});
    for (const std::size_t r : {1, 2, 3}) share_pages(s, r, 0, 5);
    s.args.problem.window = std::abs(window);
    s.args.problem.chunked = window < 0;
    s.add_random_sink();
    const SharedLists lists(s);
    ASSERT_FALSE(s.args.prefixes.empty());
    const bool some = window == 100 || window == -112;
    EXPECT_EQ(lists.savings.shared_keys, (some ? 2 : 4) * 80);
    check(s, 2);
  }
}

// Rows on both sides of a chunk's edge, in requests that share nothing with the others: a request
// has M blocks that end with the chunk, before they are full.
TEST_P(GqaSharedEmulated, RowsCrossAnEdgeOfChunks) {
  for (const int sms : {1, 2, 3, 4, 6}) {
    SCOPED_TRACE(fmt::format("SMs {}", sms));
    Bf16Scene s(dims(16, 3), {{322, 4}, {200, 1}, {190, 1}, {660, 50}, {321, 2}, {400, 130}});
    share_pages(s, 2, 1, 9);
    s.make_chunks(20);
    const SharedLists lists(s);
    ASSERT_EQ(lists.savings.groups, 1);
    check(s, sms);
  }
}

TEST_P(GqaSharedEmulated, HolesAreNoKeys) {
  Bf16Scene s(dims(16, 4), {{150, 3}, {140, 1}, {130, 1}});
  s.batch.entry(0, 2) = PageId(1 << 30);
  for (const std::size_t r : {1, 2}) share_pages(s, r, 0, 6);
  s.batch.entry(1, 7) = PageId(-1);
  const SharedLists lists(s);
  ASSERT_FALSE(s.args.prefixes.empty());
  check(s, 2);
}

TEST_P(GqaSharedEmulated, RandomTrees) {
  for (int i = 0; i < 4 * test_scale(); ++i) {
    const std::uint32_t seed = test_seed(500 + static_cast<std::uint32_t>(i));
    ref_test::Rng rng(seed);
    const auto pick = [&](auto list) { return *(list.begin() + rng() % list.size()); };
    const int group = 1 + static_cast<int>(rng() % 16);
    const GqaDims d =
        dims(pick(std::initializer_list<int>{16, 32, 64}), group, 1 + static_cast<int>(rng() % 2));
    Bf16Scene s(
        d,
        random_requests(rng, 2 + static_cast<int>(rng() % 6), 1 + static_cast<int>(rng() % 8), 300),
        seed);
    share_randomly(s);
    if (rng() % 3 == 0) s.args.problem.window = 100 + static_cast<int>(rng() % 200);
    if (rng() % 4 == 0) s.make_chunks(2 + static_cast<int>(rng() % 6));
    if (rng() % 2 == 0) s.add_random_sink();
    const int sms = 1 + static_cast<int>(rng() % 6);
    const SharedLists lists(s);
    SCOPED_TRACE(fmt::format("seed {} group {} page {} window {} SMs {} groups {}", seed, group,
                             d.page, s.args.problem.window, sms, lists.savings.groups));
    check(s, sms, rng() % 2 == 0 ? DType::f32 : DType::bf16);
  }
}

TEST_P(GqaSharedEmulated, EachConventionOfLse) {
  Bf16Scene s(dims(16, 8, 1), {{100, 1}, {90, 1}, {0, 1}, {40, 1}});
  share_pages(s, 1, 0, 5);
  AttendArgs args = s.args;
  const SharedLists lists(s);
  args.prefixes = s.args.prefixes;
  ASSERT_FALSE(args.prefixes.empty());
  expect_each_convention(s.oracle().lse, 1e-6, 8.01 / 65536, [&](LseConvention convention) {
    args.lse_convention = convention;
    return attend(args, 2);
  });
}

// Keys of the own part that are not finite reach rows that see them, and no others.
TEST_P(GqaSharedEmulated, A1MaskedKeyReachesNoRow) {
  Bf16Scene s(dims(16, 4), {{130, 3}, {100, 1}, {90, 2}});
  for (const std::size_t r : {1, 2}) share_pages(s, r, 0, 5);
  const SharedLists lists(s);
  ASSERT_FALSE(s.args.prefixes.empty());
  check_nonfinite_keys(s, [&](const AttendArgs& args) { return attend(args, 2); });
}

TEST_P(GqaSharedEmulated, RepeatsItsBits) {
  Bf16Scene s(dims(16, 4), {{150, 2}, {140, 1}, {130, 1}});
  for (const std::size_t r : {1, 2}) share_pages(s, r, 0, 6);
  const SharedLists lists(s);
  cpu_test::expect_same_bits(attend(s.args, 3), attend(s.args, 3));
}

// Latents, as grouped queries of one KV head.
TEST(GqaShared, NarrowLatents) {
  for (const int heads : {5, 40}) {
    SCOPED_TRACE(fmt::format("heads {}", heads));
    latent_test::Scene s(CacheLayout(LayoutKind::mla_bf16, {.nope = 128, .rope = 32}), 16, heads,
                         {{170, 2}, {150, 1}, {0, 1}, {130, 3}});
    for (const std::size_t r : {1, 3}) {
      for (int page = 0; page < 7; ++page) s.batch.entry(r, page) = s.batch.entry(0, page);
    }
    const Matrix<bf16> q = rounded(s.q);
    s.args.q = q.view();
    const Outputs want = ref_test::run(ref_attend_latent, s.args, 128);
    const SharedLists lists(s.args);
    ASSERT_FALSE(s.args.prefixes.empty());
    expect_oracle(attend(s.args, 2), want);
  }
}

TEST(GqaShared, RefusesListsOfAnotherSize) {
  Bf16Scene s({LayoutKind::gqa_bf16, 16, 4, 2, 64, 64}, {{150, 1}, {140, 1}});
  share_pages(s, 1, 0, 6);
  const SharedLists lists(s);
  set_bounds(s.args);
  std::vector<float> out(static_cast<std::size_t>(s.args.q.rows) * 256);
  s.args.out = {reinterpret_cast<std::byte*>(out.data()), DType::f32, s.args.q.rows, 256, 256};
  ASSERT_TRUE(check_gqa_call(s.args).ok());
  s.args.prefixes.lists = s.args.prefixes.lists.first(3);
  const auto refused = check_gqa_call(s.args);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().field, "prefixes");
}

INSTANTIATE_TEST_SUITE_P(All, GqaSharedEmulated,
                         ::testing::Combine(::testing::Values(LayoutKind::gqa_bf16,
                                                              LayoutKind::gqa_fp8),
                                            ::testing::Values(64, 128, kGqaWideKey)),
                         [](const auto& test) {
                           return fmt::format("{}_d{}", name(std::get<0>(test.param)),
                                              std::get<1>(test.param));
                         });

}  // namespace
}  // namespace lathe::cuda
