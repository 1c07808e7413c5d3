// The experts of the CUDA backend on a GPU: random routings of wide layers against the oracle, and
// bits of rows.
#include "kernels/cuda/common/gpu_test_util.h"
#include "ops/expert_checks.h"

namespace lathe {
namespace {

using ops_test::ExpertCase;
using ops_test::ExpertForm;
using ops_test::Routing;
using ops_test::Rows;

constexpr ExpertForm kForms[] = {
    {DType::bf16, 48, 8, 1, 1, RouterScoring::softmax, false, 768, 512},
    {DType::e4m3, 96, 8, 8, 4, RouterScoring::sigmoid, false, 896, 256},
    {DType::e2m1, 32, 4, 1, 1, RouterScoring::softmax, true, 960, 960},
};

class ExpertsGpu : public ::testing::Test {
 protected:
  void TearDown() override {
    if (HasFailure()) std::printf("seed %u\n", seed);
  }
  unsigned seed = std::random_device()();
  std::mt19937 rng{seed};
};

// The oracle takes a few rows of many.
TEST_F(ExpertsGpu, AnyRouting) {
  for (const ExpertForm& f : kForms) {
    for (const Routing routing : {Routing::mixed, Routing::few, Routing::one}) {
      const std::int64_t rows = 3000 + static_cast<std::int64_t>(rng() % 500);
      ExpertCase c(rng, f, routing, rows);
      for (const std::int64_t count : {std::int64_t{1}, std::int64_t{7}, std::int64_t{64},
                                       std::int64_t{300}, std::int64_t{1100}, rows}) {
        const Rows got = c.run(0, count);
        const std::int64_t few = std::min<std::int64_t>(count, 12);
        for (const std::int64_t first : {std::int64_t{0}, count - few}) {
          Rows some(few, f.n);
          for (std::int64_t r = 0; r < few; ++r) {
            std::copy_n(got.row(first + r), f.n, some.row(r));
          }
          EXPECT_LT(error_of(some, c.want(first, few)), 4e-3)
              << name(f.dtype) << ", routing " << static_cast<int>(routing) << ", " << count
              << " rows from " << first;
        }
      }
    }
  }
}

TEST_F(ExpertsGpu, ARowsBitsDoNotDependOnTheRowsBesideIt) {
  for (const ExpertForm& f : kForms) {
    ExpertCase c(rng, f, Routing::mixed, 3300);
    const Rows all = c.run();
    for (int i = 0; i < 40; ++i) {
      const auto count = static_cast<std::int64_t>(1 + rng() % (i < 20 ? 40 : 3000));
      const auto first = static_cast<std::int64_t>(rng() % static_cast<unsigned>(3301 - count));
      const Rows some = c.run(first, count);
      for (std::int64_t r = 0; r < count; ++r) {
        ASSERT_EQ(std::memcmp(some.row(r), all.row(first + r), static_cast<std::size_t>(f.n) * 4),
                  0)
            << name(f.dtype) << ", row " << first + r << " of " << count;
      }
    }
  }
}

}  // namespace
}  // namespace lathe

int main(int argc, char** argv) { return lathe::cuda::gpu_test_main(argc, argv); }
