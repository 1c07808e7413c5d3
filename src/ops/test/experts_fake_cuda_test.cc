// The CUDA backend's experts, emulated: by grouped GEMMs and by plain ones.
#include "ops/test/expert_checks.h"

namespace lathe {
namespace {

using ops_test::ExpertCase;
using ops_test::ExpertForm;
using ops_test::Routing;
using ops_test::Rows;

constexpr ExpertForm kForms[] = {
    {DType::bf16, 8, 2, 1, 1, RouterScoring::softmax, false, 96, 72},
    {DType::e4m3, 16, 4, 4, 2, RouterScoring::sigmoid, false, 144, 80},
    {DType::e2m1, 6, 3, 1, 1, RouterScoring::softmax, true, 96, 160},
    {DType::e2m1, 8, 2, 1, 1, RouterScoring::sqrt_softplus, false, 96, 160},
    {DType::e4m3, 8, 2, 1, 1, RouterScoring::sqrt_softplus, false, 144, 80, true},
    {DType::bf16, 16, 4, 4, 2, RouterScoring::softmax, false, 96, 72, false, 1},
};

class GpuExperts : public ops_test::RandomExperts {};

// bf16 GEMMs with bf16 intermediate results: each value is rounded twice.
TEST_F(GpuExperts, AnyRouting) {
  for (const ExpertForm& f : kForms) {
    for (const Routing routing : {Routing::mixed, Routing::few, Routing::one}) {
      for (const std::int64_t rows : {1, 21, 170}) {
        ExpertCase c(rng, f, routing, rows);
        EXPECT_LT(error_of(c.run(), c.want()), 4e-3)
            << name(f.dtype) << ", " << rows << " rows, seed " << seed;
      }
    }
  }
}

TEST_F(GpuExperts, PlainProducts) {
  ExpertForm forms[] = {kForms[0], kForms[1], kForms[2], kForms[0]};
  forms[3].dtype = DType::f32;
  for (const ExpertForm& f : forms) {
    ExpertCase c(rng, f, Routing::mixed, 21, f.dtype != DType::f32);
    EXPECT_LT(error_of(c.run(), c.want()), 1e-5) << name(f.dtype) << ", seed " << seed;
  }
}

// Rows are quantized for gate and up, and again for down; results are rounded to bf16.
TEST_F(GpuExperts, Fp8AsTheCpuRounds) {
  ExpertForm f = kForms[1];
  f.n = 272;
  for (const MatmulPrecision precision : {MatmulPrecision::fp8, MatmulPrecision::fp8_pow2}) {
    for (const std::int64_t rows : {1, 21, 170}) {
      ExpertCase c(rng, f, Routing::mixed, rows, false, precision);
      const Rows got = c.run();
      EXPECT_LT(error_of(got, c.want_of_cpu()), 5e-3) << rows << " rows, seed " << seed;
      EXPECT_GT(error_of(got, c.want()), 1e-2);
    }
  }
}

TEST_F(GpuExperts, ARowsBitsDoNotDependOnTheRowsBesideIt) {
  for (const ExpertForm& f : kForms) {
    ExpertCase c(rng, f, Routing::mixed, 140);
    const Rows all = c.run();
    for (const auto& [first, count] : {std::pair{0, 1}, {3, 30}, {139, 1}}) {
      const Rows some = c.run(first, count);
      for (std::int64_t r = 0; r < count; ++r) {
        ASSERT_EQ(std::memcmp(some.row(r), all.row(first + r), static_cast<std::size_t>(f.n) * 4),
                  0)
            << name(f.dtype) << ", row " << first + r << ", seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace lathe
