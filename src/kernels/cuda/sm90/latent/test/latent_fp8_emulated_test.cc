// Latent attention in fp8 arithmetic, emulated, against the oracle in double precision.
#include "kernels/cuda/sm90/latent/test/latent_emulation.h"

namespace lathe::cuda {
namespace {

// fp8 operands, with the bounds of latent_native_gpu_test.cc: P is rounded to e4m3.
void expect_fp8(const Outputs& got, const Outputs& want) {
  double error = 0, all = 0;
  for (std::size_t i = 0; i < want.out.data.size(); ++i) {
    const double off = got.out.data[i] - want.out.data[i];
    error += off * off;
    all += want.out.data[i] * want.out.data[i];
  }
  EXPECT_LE(std::sqrt(error / all), 0.04);
  for (std::size_t i = 0; i < want.lse.data.size(); ++i) {
    if (want.lse.data[i] == got.lse.data[i]) continue;
    EXPECT_NEAR(got.lse.data[i], want.lse.data[i], 4e-3) << i;
  }
}

Matrix<e4m3> fp8_queries(Scene& s) {
  Matrix<e4m3> q(s.q.rows, s.q.cols);
  for (std::size_t i = 0; i < q.data.size(); ++i) q.data[i] = to_e4m3(s.q.data[i] * 3);
  s.args.q = q.view();
  s.args.q_scale = 0.3f;
  return q;
}

TEST(LatentEmulatedFp8, DenseByPageTable) {
  for (const int page : {16, 64, 128}) {
    for (const int heads : {4, 5, 12, 48, 72}) {
      SCOPED_TRACE("page " + std::to_string(page) + ", heads " + std::to_string(heads));
      const bool cut = page == 64;
      Scene s(layout_of(LayoutKind::mla_fp8), page, heads,
              cut ? latent_test::Requests{{700, 1}, {5, 1}, {0, 1}}
                  : latent_test::Requests{{130, 2}, {1, 1}, {0, 1}, {300, 1}});
      const Matrix<e4m3> q = fp8_queries(s);
      const Outputs want = s.oracle();
      for (const bool few : {false, true}) {
        if (few && (heads != 48 || page == 16)) continue;
        SCOPED_TRACE(few ? "16 M rows a block" : "M rows as they are");
        expect_fp8(few ? attend(s, 132, {}, {}, 0, 0, 16) : attend(s, cut ? 6 : 3), want);
      }
    }
  }
}

TEST(LatentEmulatedFp8, Lists) {
  for (const int heads : {4, 12, 32, 48, 72, 128}) {
    SCOPED_TRACE("heads " + std::to_string(heads));
    Scene s(layout_of(LayoutKind::mla_fp8), 61, heads, {{200, 1}, {90, 2}});
    const Matrix<e4m3> q = fp8_queries(s);
    const Ints list = s.random_list(330);
    s.by_index(list);
    const Outputs want = s.oracle();
    expect_fp8(attend(s, 2), want);
    expect_fp8(attend(s, 40), want);               // split
    expect_fp8(attend(s, 2, {}, {}, 0, 2), want);  // the last rows split
    if (heads == 48) expect_fp8(attend(s, 132, {}, {}, 0, 0, 16), want);
  }
}

TEST(LatentEmulatedFp8, ListsThatEndOrAreEmpty) {
  for (const int heads : {8, 64}) {
    SCOPED_TRACE("heads " + std::to_string(heads));
    constexpr int kWidth = 450;
    Scene s(layout_of(LayoutKind::mla_fp8), 61, heads, {{200, 1}, {90, 1}, {300, 1}, {300, 1}});
    const Ints list = lists_with_missing_runs(s, kWidth, /*empty_row=*/true);
    const Matrix<e4m3> q = fp8_queries(s);
    s.by_index(list);
    const Ints lengths{450, 450, 129, 1};
    s.args.main.index_lengths = lengths;
    const Outputs want = s.oracle();
    expect_fp8(attend(s, 2), want);
    expect_fp8(attend(s, 40), want);
  }
}

TEST(LatentEmulatedFp8, PositionsAndPageTable) {
  for (const int heads : {8, 64}) {
    Scene s(layout_of(LayoutKind::mla_fp8), 16, heads, {{200, 2}, {70, 1}});
    const Matrix<e4m3> q = fp8_queries(s);
    const PositionLists lists = position_lists(s, 90);
    const Ints row_request{0, 0, 1};
    s.by_index(lists.slots);
    expect_fp8(attend(s, 2, row_request, lists.positions), s.oracle());
  }
}

}  // namespace
}  // namespace lathe::cuda
