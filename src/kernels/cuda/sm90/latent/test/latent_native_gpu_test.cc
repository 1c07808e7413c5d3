// Tests latent attention with fp8 operands on a GPU against the oracle in double precision on the
// same e4m3 q and cache.
//
// P is rounded to e4m3: off by at most 1/16, and by about 2.6 % on average. On normal data an
// output is about as large as the sum of that many independent errors, hence bounds by the mean
// square of a row's output.
#include "kernels/cuda/sm90/latent/test/latent_gpu_test_util.h"

namespace lathe::cuda {
namespace {

constexpr double kMean = 0.04;     // of the errors' mean square, relative to the outputs'
constexpr double kElement = 0.25;  // of an error, relative to the RMS of its row
constexpr double kAngle = 6e-4;    // 1 - cosine of all outputs
constexpr double kLse = 4e-3;      // absolute

class LatentNativeGpu : public DeviceCall {
 protected:
  /// last: rows at the end that are split.
  void check(Scene& s, int sms = 0, int repeats = 1, std::int64_t last = 0) {
    Matrix<e4m3> q(s.q.rows, s.q.cols);
    for (std::size_t i = 0; i < q.data.size(); ++i) q.data[i] = to_e4m3(s.q.data[i] * 3);
    s.args.q = q.view();
    s.args.q_scale = 0.3f;
    const Outputs want = s.oracle();
    expect_close(attend(s.args, sms, repeats, 0, last), want);
    if (small_block_m_) {
      SCOPED_TRACE("64 M rows a block");
      expect_close(attend(s.args, sms, repeats, 0, 0, 64), want);
    }
  }
  void expect_close(const Outputs& got, const Outputs& want) {
    double dot = 0, a = 0, b = 0, errors = 0;
    const std::size_t m_rows = want.lse.data.size();
    int shown = 0;
    for (std::size_t l = 0; l < m_rows && shown < 5; ++l) {
      double row = 0, error = 0, most = 0;
      for (std::size_t i = l * 512; i < (l + 1) * 512; ++i) {
        const double x = got.out.data[i], y = want.out.data[i];
        dot += x * y;
        a += x * x;
        b += y * y;
        row += y * y;
        error += (x - y) * (x - y);
        if (!(std::abs(x - y) <= most)) most = std::abs(x - y);
      }
      errors += error;
      if (!(most <= kElement * std::sqrt(row / 512))) {
        ADD_FAILURE() << "M row " << l << ": off by " << most << " where values are "
                      << std::sqrt(row / 512);
        ++shown;
      } else if (row > 0) {
        worst_element_ = std::max(worst_element_, most / std::sqrt(row / 512));
      }
      const double x = got.lse.data[l], y = want.lse.data[l];
      if (x == y) continue;
      if (!(std::abs(x - y) <= kLse)) {
        ADD_FAILURE() << "lse " << l << ": " << x << " against " << y;
        ++shown;
      }
      worst_lse_ = std::max(worst_lse_, std::abs(x - y));
    }
    if (b == 0) return;
    EXPECT_LE(std::sqrt(errors / b), kMean);
    EXPECT_LE(1 - 2 * dot / (a + b), kAngle);
    worst_mean_ = std::max(worst_mean_, std::sqrt(errors / b));
    worst_angle_ = std::max(worst_angle_, 1 - 2 * dot / (a + b));
  }
  void TearDown() override {
    std::printf("largest errors: mean %.4f, element %.3f, angle %.1e, lse %.1e\n", worst_mean_,
                worst_element_, worst_angle_, worst_lse_);
  }

 private:
  double worst_mean_ = 0, worst_element_ = 0, worst_angle_ = 0, worst_lse_ = 0;
};

const CacheLayout kLayout(LayoutKind::mla_fp8, LayoutDims{.nope = 512, .rope = 64});

TEST_F(LatentNativeGpu, HeadsAndPages) {
  for (const int heads : {1, 8, 16, 33, 64, 128}) {
    for (const int page : {16, 64, 128}) {
      SCOPED_TRACE("heads " + std::to_string(heads) + ", page " + std::to_string(page));
      Scene s(kLayout, page, heads, {{65, 1}, {0, 1}, {1, 1}, {63, 1}, {64, 2}, {300, 3}});
      check(s);
    }
  }
}

// Small enough for compute-sanitizer's racecheck.
TEST_F(LatentNativeGpu, Small) {
  for (const int heads : {16, 64}) {
    SCOPED_TRACE("heads " + std::to_string(heads));
    Scene s(kLayout, 64, heads, {{300, 1}, {130, 2}, {0, 1}});
    check(s, 1);
    check(s, 2);
  }
}

TEST_F(LatentNativeGpu, CutAmongBlocks) {
  {
    Scene many(kLayout, 64, 16, {{9000, 1}});
    check(many, 0, 3);
  }
  for (const int heads : {16, 64, 128}) {
    for (const int page : {32, 64, 256}) {
      SCOPED_TRACE("heads " + std::to_string(heads) + ", page " + std::to_string(page));
      Scene s(kLayout, page, heads, {{1500, 1}, {700, 3}, {5, 1}, {129, 2}});
      check(s, page == 32 ? 3 : 0, 20);
    }
  }
}

TEST_F(LatentNativeGpu, LengthsAboutTwoThousandAndFortyEight) {
  for (const int heads : {10, 40}) {
    for (const int page : {16, 32, 64, 128}) {
      SCOPED_TRACE("heads " + std::to_string(heads) + ", page " + std::to_string(page));
      Scene s(kLayout, page, heads, {{2047, 1}, {0, 1}, {2049, 2}, {1, 1}, {2048, 1}});
      check(s, 0, 2);
    }
  }
}

// Lists with holes, wild values and duplicates, on pages of any size.
TEST_F(LatentNativeGpu, Lists) {
  for (const int heads : {1, 8, 16, 32, 33, 64, 128}) {
    for (const int page : {1, 61, 64}) {
      SCOPED_TRACE("heads " + std::to_string(heads) + ", page " + std::to_string(page));
      Scene s(kLayout, page, heads, {{900, 1}, {90, 2}, {3000, 3}, {1, 1}});
      const Ints list = s.random_list(page == 61 ? 2048 : 330);
      s.by_index(list);
      check(s, page == 64 ? 3 : 0, 10);
    }
  }
}

TEST_F(LatentNativeGpu, ListsOfManyRows) {
  for (const int heads : {16, 64, 128}) {
    SCOPED_TRACE("heads " + std::to_string(heads));
    Scene s(kLayout, 64, heads, {{700, 140}, {300, 7}, {1200, 90}});
    const Ints list = s.random_list(512);
    s.by_index(list);
    check(s, 0, 10);
    check(s, 0, 3, 5);
  }
}

// Each list may end early, and has holes of every width.
TEST_F(LatentNativeGpu, RunsOfMissingKeys) {
  constexpr int kWidth = 450;
  for (const int heads : {8, 64, 128}) {
    SCOPED_TRACE("heads " + std::to_string(heads));
    Scene s(kLayout, 61, heads, {{200, 1}, {90, 1}, {300, 1}, {300, 1}});
    const Ints list = lists_with_missing_runs(s, kWidth, /*empty_row=*/true);
    s.by_index(list);
    const Ints lengths{450, 450, 129, 1};
    s.args.main.index_lengths = lengths;
    check(s, 0, 10);
    check(s, 2, 10);
  }
}

// Pages at offsets beyond 2^32 bytes.
TEST_F(LatentNativeGpu, LargePools) {
  for (const int heads : {16, 128}) {
    SCOPED_TRACE("heads " + std::to_string(heads));
    Scene s(kLayout, 64, heads, {{300, 1}, {70, 2}});
    before_ = (std::int64_t{5} << 30) / s.pool.view().page_stride;
    check(s);
    const Ints list = s.random_list(200);
    s.by_index(list);
    check(s);
  }
}

// P of a single key is a power of two, and so is P of equal scores: only outputs are rounded.
TEST_F(LatentNativeGpu, ExactWherePIs) {
  Scene s(kLayout, 64, 64, {{1, 1}, {1, 1}, {200, 1}});
  Matrix<e4m3> q(s.q.rows, s.q.cols);
  for (std::size_t i = 0; i < static_cast<std::size_t>(2 * s.q.cols); ++i) {
    q.data[i] = to_e4m3(s.q.data[i]);
  }
  s.args.q = q.view();
  s.args.q_scale = 2;
  const Outputs want = s.oracle();
  for (const int m_rows : {16, 64}) {
    SCOPED_TRACE("min block M " + std::to_string(m_rows));
    Outputs got = attend(s.args, 0, 1, 0, 0, m_rows);
    for (std::size_t i = 0; i < want.lse.data.size(); ++i) {
      EXPECT_NEAR(got.lse.data[i], want.lse.data[i], kLse) << i;
    }
    got.lse = want.lse;
    expect_within(got, want, 2e-4, 2.01 / 256, 5e-6);
  }
}

TEST_F(LatentNativeGpu, SinksAndRisingScores) {
  Scene s(kLayout, 64, 33, {{400, 2}, {3, 1}, {0, 1}});
  std::vector<float> sink;
  for (int h = 0; h < 33; ++h) sink.push_back(static_cast<float>(h % 7) - 2);
  s.args.problem.sink = true;
  s.args.sink = sink;
  // Scores of up to a hundred: the row max rises again and again.
  s.args.problem.scale = 1.5f;
  Matrix<e4m3> q(s.q.rows, s.q.cols);
  for (std::size_t i = 0; i < q.data.size(); ++i) q.data[i] = to_e4m3(s.q.data[i]);
  s.args.q = q.view();
  const Outputs want = s.oracle(), got = attend(s.args);
  double dot = 0, a = 0, b = 0;
  for (std::size_t i = 0; i < want.out.data.size(); ++i) {
    const double x = got.out.data[i], y = want.out.data[i];
    dot += x * y;
    a += x * x;
    b += y * y;
  }
  EXPECT_LE(1 - 2 * dot / (a + b), 2e-3);
  for (std::size_t i = 0; i < want.lse.data.size(); ++i) {
    const double x = got.lse.data[i], y = want.lse.data[i];
    if (x != y) {
      EXPECT_NEAR(x, y, 0.1) << i;
    }
  }
}

TEST_F(LatentNativeGpu, Refusals) {
  Scene s(kLayout, 64, 8, {{100, 1}});
  Matrix<e4m3> q(s.q.rows, s.q.cols);
  s.args.q = q.view();
  const auto field = [&](AttendArgs args) {
    Matrix<bf16> out(1, 8 * 512);
    args.out = out.mutable_view();
    const auto result = attend_latent(args, {}, {}, {}, stream());
    return result ? std::string("none") : result.error().field;
  };
  EXPECT_EQ(field(s.args), "none");  // no work tiles
  AttendArgs a = s.args;
  a.main.pool->page_size = 48;
  EXPECT_EQ(field(a), "main.pool.page_size");
  a = s.args;
  a.main.pool->page_stride += 8;
  EXPECT_EQ(field(a), "main.pool");
  a = s.args;
  a.q.row_stride += 4;
  EXPECT_EQ(field(a), "q");
  a = s.args;
  a.q.dtype = DType::f32;
  EXPECT_EQ(field(a), "q.dtype");
  Scene block(CacheLayout(LayoutKind::mla_fp8_block, LayoutDims{.nope = 512, .rope = 64}), 64, 8,
              {{100, 1}});
  block.args.q = q.view();
  EXPECT_EQ(field(block.args), "main.pool.layout");
}

}  // namespace
}  // namespace lathe::cuda

int main(int argc, char** argv) { return lathe::cuda::gpu_test_main(argc, argv); }
