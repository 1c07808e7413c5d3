// Tests the LSE conventions of latent attention: whole calls of every kernel family, emulated,
// against the oracle in double precision. Work tiles are whole, split, and both in one call; rows
// without keys have no item, or items without a valid entry.
#include "kernels/cuda/sm90/latent/test/latent_gpu_test_util.h"

namespace lathe::cuda {
namespace {

struct Family {
  const char* name;
  LayoutKind layout;
  bool e4m3;  // fp8 operands
  int heads;  // few heads: A and B are swapped
};

class LatentLse : public DeviceCall, public ::testing::WithParamInterface<Family> {
 protected:
  enum class Split { none, all, last_rows };

  /// room_pages, last: as in prepare().
  void check(Scene& s, int sms, Split split, std::int64_t room_pages = 0, std::int64_t last = 0) {
    const Family& family = GetParam();
    Matrix<e4m3> codes(family.e4m3 ? s.q.rows : 0, s.q.cols);
    const Matrix<bf16> q = rounded(s.q);
    s.args.q = q.view();
    if (family.e4m3) {
      for (std::size_t i = 0; i < codes.data.size(); ++i) codes.data[i] = to_e4m3(s.q.data[i] * 3);
      s.args.q = codes.view();
      s.args.q_scale = 0.3f;
    }
    const Outputs want = s.oracle();
    Call c = prepare(s.args, sms, room_pages, last, /*m_rows=*/64);
    const LatentCut& cut = c.schedule.cut;
    EXPECT_EQ(cut.block_m < 64, family.heads < 64);
    EXPECT_EQ(cut.shared || cut.all.cut(), split == Split::all);
    EXPECT_EQ(cut.tail.cut(), split == Split::last_rows);
    EXPECT_EQ(cut.main.room > 0, room_pages > 0);
    must(plan_latent(c.args, c.schedule, stream()));
    // With fp8 operands, the bound of latent_native_gpu_test.cc.
    expect_each_convention(
        want.lse, family.e4m3 ? 4e-3 : 1e-6, 8.01 / 65536, [&](LseConvention convention) {
          EXPECT_EQ(cudaMemsetAsync(c.out.data(), 0xff, c.out.size_bytes(), stream()), cudaSuccess);
          EXPECT_EQ(cudaMemsetAsync(c.lse.data(), 0xff, c.lse.size_bytes(), stream()), cudaSuccess);
          c.args.lse_convention = convention;
          must(attend_latent(c.args, {}, c.schedule, c.workspace, stream()));
          return read(c);
        });
    release();
  }
};

// Requests without keys, and one without pages.
TEST_P(LatentLse, ByPageTable) {
  for (const Split split : {Split::none, Split::all}) {
    SCOPED_TRACE(split == Split::all ? "split" : "whole");
    const int most = split == Split::all ? 400 : 70;
    Scene s(layout_of(GetParam().layout), 64, GetParam().heads,
            {{most, 1}, {0, 1}, {most, 1}, {65, 2}});
    for (int page = 0; page * 64 < most; ++page) s.batch.entry(2, page) = PageId(-1);
    check(s, split == Split::all ? 8 : 1, split);
  }
}

// Lists of length 0, and without keys.
TEST_P(LatentLse, ByLists) {
  constexpr int kWidth = 300;
  for (const Split split : {Split::none, Split::all, Split::last_rows}) {
    SCOPED_TRACE(split == Split::all    ? "split"
                 : split == Split::none ? "whole"
                                        : "last rows split");
    Scene s(layout_of(GetParam().layout), 61, GetParam().heads, {{200, 1}, {90, 2}, {300, 2}});
    Ints list = s.random_list(kWidth);
    for (const int row : {1, 4}) {
      std::fill(list.begin() + row * kWidth, list.begin() + (row + 1) * kWidth, -1);
    }
    const Ints lengths = {kWidth, kWidth, 0, 140, kWidth};
    s.by_index(list);
    s.args.main.index_lengths = lengths;
    check(s, split == Split::all ? 40 : 2, split, 0, split == Split::last_rows ? 3 : 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, LatentLse,
                         ::testing::Values(Family{"m64_bf16", LayoutKind::mla_bf16, false, 64},
                                           Family{"swap_ab_bf16", LayoutKind::mla_bf16, false, 8},
                                           Family{"m64_fp8", LayoutKind::mla_fp8_block, false, 64},
                                           Family{"swap_ab_fp8", LayoutKind::mla_fp8_block, false,
                                                  8},
                                           Family{"native_m64", LayoutKind::mla_fp8, true, 64},
                                           Family{"native_swap_ab", LayoutKind::mla_fp8, true, 8}),
                         [](const auto& test) { return std::string(test.param.name); });

// Staged pages, with and without room for all of them.
class LatentLseStaged : public LatentLse {};
TEST_P(LatentLseStaged, ByLists) {
  constexpr int kWidth = 200;
  for (const std::int64_t room : {std::int64_t{1} << 20, std::int64_t{2}}) {
    for (const std::int64_t last : {0, 2}) {
      SCOPED_TRACE("room " + std::to_string(room) + ", split " + std::to_string(last));
      Scene s(layout_of(GetParam().layout), 16, GetParam().heads, {{200, 1}, {90, 2}, {300, 1}});
      Ints list = s.random_list(kWidth);
      std::fill(list.begin() + kWidth, list.begin() + 2 * kWidth, -1);
      const Ints lengths = {kWidth, kWidth, 0, kWidth};
      s.by_index(list);
      s.args.main.index_lengths = lengths;
      check(s, 2, last > 0 ? Split::last_rows : Split::none, room, last);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Families, LatentLseStaged,
                         ::testing::Values(Family{"fp8", LayoutKind::mla_fp8_block, false, 64}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace lathe::cuda
