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
    {DType::bf16, 8, 2, 1, 1, RouterScoring::softmax, false, 96, 72, false, 2, true},
    {DType::bf16, 8, 1, 1, 1, RouterScoring::sigmoid, false, 96, 72, false, 2, false, true},
    {DType::e4m3, 8, 2, 1, 1, RouterScoring::sigmoid, false, 144, 80, false, 2, false, true},
};

class GpuExperts : public ops_test::RandomExperts {};

// bf16 GEMMs with bf16 intermediate results: each value is rounded twice, or three times with
// weights of inputs.
double bound_of(const ExpertForm& f) { return f.weighs_inputs ? 6e-3 : 4e-3; }

TEST_F(GpuExperts, AnyRouting) {
  for (const ExpertForm& f : kForms) {
    for (const Routing routing : {Routing::mixed, Routing::few, Routing::one}) {
      for (const std::int64_t rows : {1, 21, 170}) {
        ExpertCase c(rng, f, routing, rows);
        EXPECT_LT(error_of(c.run(), c.want()), bound_of(f))
            << name(f.dtype) << ", " << rows << " rows, seed " << seed;
      }
    }
  }
}

TEST_F(GpuExperts, PlainProducts) {
  ExpertForm forms[] = {kForms[0], kForms[1], kForms[2], kForms[0], kForms[7]};
  forms[3].dtype = DType::f32;
  for (const ExpertForm& f : forms) {
    ExpertCase c(rng, f, Routing::mixed, 21, f.dtype != DType::f32);
    EXPECT_LT(error_of(c.run(), c.want()), 1e-5) << name(f.dtype) << ", seed " << seed;
  }
}

// Rows are quantized for gate and up, and again for down; results are rounded to bf16.
TEST_F(GpuExperts, Fp8AsTheCpuRounds) {
  for (ExpertForm f : {kForms[1], kForms[8]}) {
    f.n = 272;
    for (const MatmulPrecision precision : {MatmulPrecision::fp8, MatmulPrecision::fp8_pow2}) {
      for (const std::int64_t rows : {1, 21, 170}) {
        ExpertCase c(rng, f, Routing::mixed, rows, false, precision);
        const Rows got = c.run();
        EXPECT_LT(error_of(got, c.want_of_cpu()), 5e-3)
            << rows << " rows, weighs inputs " << f.weighs_inputs << ", seed " << seed;
        EXPECT_GT(error_of(got, c.want()), 1e-2);
      }
    }
  }
}

// A rank's experts are some of those that the router chooses from: the first, the last, or between.
TEST_F(GpuExperts, SomeOfTheExperts) {
  for (const ExpertForm& f : kForms) {
    const std::int64_t half = f.experts / 2;
    for (const bool plain : {false, true}) {
      ExpertCase c(rng, f, Routing::mixed, 37, plain);
      for (const auto& [first, count] : {std::pair{std::int64_t{0}, half},
                                         {half, f.experts - half},
                                         {std::int64_t{1}, half},
                                         {f.experts - std::int64_t{1}, std::int64_t{1}}}) {
        c.keep_experts(first, count);
        c.set_add(first > 0);
        EXPECT_LT(error_of(c.run(), c.want()), plain ? 1e-5 : bound_of(f))
            << name(f.dtype) << ", experts from " << first << ", seed " << seed;
      }
    }
  }
}

TEST_F(GpuExperts, SomeOfTheExpertsInFp8) {
  ExpertForm f = kForms[1];
  f.n = 272;
  ExpertCase c(rng, f, Routing::mixed, 21, false, MatmulPrecision::fp8);
  c.keep_experts(4, 8);
  EXPECT_LT(error_of(c.run(), c.want_of_cpu()), 5e-3) << "seed " << seed;
}

// All rows are another rank's, or all are this one's.
TEST_F(GpuExperts, RowsWithoutLocalExpertsStayAsTheyAre) {
  for (const ExpertForm& f : {kForms[0], kForms[2]}) {
    ExpertForm one = f;
    one.top_k = 1;
    ExpertCase c(rng, one, Routing::one, 20);
    const std::int64_t chosen = f.experts / 3;
    c.keep_experts(chosen + 1, f.experts - chosen - 1);
    const Rows got = c.run();
    for (std::int64_t r = 0; r < got.rows; ++r) {
      ASSERT_EQ(std::memcmp(got.row(r), c.before().row(r), static_cast<std::size_t>(f.n) * 4), 0)
          << name(f.dtype) << ", row " << r << ", seed " << seed;
    }
    c.keep_experts(chosen, 1);
    EXPECT_LT(error_of(c.run(), c.want()), 4e-3) << name(f.dtype) << ", seed " << seed;
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
