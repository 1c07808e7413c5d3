#include "kernels/sampling_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "base/test_scale.h"

namespace lathe {
namespace {

// Error in units in the last place of the exact result, which is long double.
double error_in_ulp(double got, long double exact) {
  int exponent = 0;
  std::frexp(static_cast<double>(exact), &exponent);
  return static_cast<double>(std::abs(got - exact) / std::ldexp(1.0L, exponent - 53));
}

struct KnownNoise {
  std::uint64_t seed, position;
  std::int32_t token;
  double noise;
};
constexpr KnownNoise kKnownNoise[] = {
#include "kernels/sampling_noise.inc"
};

TEST(SamplingMath, NoiseIsWhatTheDefinitionGives) {
  for (const KnownNoise& known : kKnownNoise) {
    EXPECT_EQ(token_noise(known.seed, known.position, known.token), known.noise)
        << "seed " << known.seed << " position " << known.position << " token " << known.token;
  }
}

TEST(SamplingMath, ExponentialIsWithinAnUlp) {
  static_assert(std::numeric_limits<long double>::digits >= 64);
  EXPECT_EQ(exp_of_nonpositive(0.0), 1);
  EXPECT_EQ(exp_of_nonpositive(-0.0), 1);
  EXPECT_GT(exp_of_nonpositive(-708), std::numeric_limits<double>::min());
  EXPECT_EQ(exp_of_nonpositive(std::nextafter(-708.0, -1e3)), 0);
  EXPECT_EQ(exp_of_nonpositive(-std::numeric_limits<double>::max()), 0);
  EXPECT_EQ(exp_of_nonpositive(-std::numeric_limits<double>::infinity()), 0);
  std::mt19937_64 rng(test_seed(1));
  std::uniform_real_distribution<double> unit;
  double worst = 0;
  for (int i = 0; i < 200000 * test_scale(); ++i) {
    const double u = unit(rng);
    for (const double x : {-708 * u, -2 * u, -std::exp2(-60 * u), -u * std::exp2(9 * u)}) {
      worst = std::max(worst, error_in_ulp(exp_of_nonpositive(x), std::exp((long double){x})));
    }
    // Next to a boundary of the reduction, (k + 1/2) ln 2.
    const double k = std::floor(-1000 * u) + 0.5;
    const double edge = k * 0.6931471805599453 * (1 + (u - 0.5) * 1e-14);
    worst = std::max(worst, error_in_ulp(exp_of_nonpositive(edge), std::exp((long double){edge})));
  }
  EXPECT_LT(worst, 1);
  EXPECT_GT(worst, 0.5);
}

TEST(SamplingMath, LogarithmIsWithinAnUlp) {
  EXPECT_EQ(log_of_positive(1), 0);
  EXPECT_EQ(log_of_positive(std::nextafter(1.0, 0.0)), -0x1p-53);
  EXPECT_EQ(log_of_positive(2), 0x1.62e42fefa39efp-1);
  std::mt19937_64 rng(test_seed(2));
  std::uniform_real_distribution<double> unit;
  double worst = 0;
  for (int i = 0; i < 200000 * test_scale(); ++i) {
    const double u = unit(rng);
    const double noise =
        token_noise(rng(), rng() % 4096, static_cast<std::int32_t>(rng() % 200000));
    for (const double x : {noise, 1 - std::exp2(-52 * u) / 2, 1 + std::exp2(-52 * u),
                           std::exp2(2000 * u - 1000), 0.7071 + u * 1e-4, 1.4142 + u * 1e-4}) {
      if (x == 1) continue;
      worst = std::max(worst, error_in_ulp(log_of_positive(x), std::log((long double){x})));
    }
  }
  EXPECT_LT(worst, 1);
  EXPECT_GT(worst, 0.5);
}

}  // namespace
}  // namespace lathe
