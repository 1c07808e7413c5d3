// The CUDA backend's experts on a GPU: random routings of wide layers against the oracle, and rows'
// bits.
#include <set>

#include "kernels/cuda/common/test/gpu_test_util.h"
#include "ops/test/expert_checks.h"

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
    {DType::bf16, 16, 1, 1, 1, RouterScoring::sigmoid, false, 768, 512, false, 2, false, true},
};

class ExpertsGpu : public ops_test::RandomExperts {};

// A few rows for the oracle, which is slow: the first and last row of each count, and at least one
// row of every expert that has rows.
std::vector<std::int64_t> some_rows(ExpertCase<std::mt19937>& c, const ExpertForm& f,
                                    std::span<const std::int64_t> counts, std::mt19937& rng) {
  std::set<std::int64_t> rows;
  for (const std::int64_t count : counts) rows.insert({0, count - 1});
  std::set<std::int32_t> experts;
  for (int tries = 0; tries < 400 && std::ssize(experts) < f.experts; ++tries) {
    const auto row = static_cast<std::int64_t>(rng() % static_cast<unsigned>(counts.back()));
    const std::size_t before = experts.size();
    for (const std::int32_t id : c.experts_of(row)) experts.insert(id);
    if (experts.size() > before) rows.insert(row);
  }
  return {rows.begin(), rows.end()};
}

TEST_F(ExpertsGpu, AnyRouting) {
  for (const ExpertForm& f : kForms) {
    const auto most = 3000 + static_cast<std::int64_t>(rng() % 500);
    const std::int64_t counts[] = {1, 7, 64, 300, 1100, most};
    ExpertCase c(rng, f, Routing::mixed, most);
    for (const Routing routing : {Routing::mixed, Routing::few, Routing::one}) {
      c.route(rng, routing);
      const std::vector<std::int64_t> rows = some_rows(c, f, counts, rng);
      const Rows want = c.want(rows);
      for (const std::int64_t count : counts) {
        const Rows got = c.run(0, count);
        for (std::size_t i = 0; i < rows.size() && rows[i] < count; ++i) {
          const Rows a = got.copy(rows[i], 1), b = want.copy(static_cast<std::int64_t>(i), 1);
          EXPECT_LT(error_of(a, b), 5e-3)
              << name(f.dtype) << ", routing " << static_cast<int>(routing) << ", row " << rows[i]
              << " of " << count;
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
