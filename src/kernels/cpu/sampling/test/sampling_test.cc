// The CPU's sampler against the oracle's, on every SIMD target: equal tokens, and log-probabilities
// with equal bits.
#include "kernels/cpu/sampling/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/test_scale.h"
#include "kernels/cpu/sampling/sampling_select.h"
#include "kernels/ref/sampling.h"
#include "kernels/sampling_math.h"
#include "layout/simd_targets.h"

#include "hwy/highway.h"

namespace lathe {
namespace {

// Runs body() on every target that this build holds and this machine can run.
template <class Body>
void for_each_target(Body body) {
  int seen = 0;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
    SCOPED_TRACE(hwy::TargetName(target));
    body();
    ++seen;
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
  EXPECT_GE(seen, 1);
}

struct TestRow {
  std::string what;
  std::vector<float> logits;
  std::vector<std::int32_t> prompt, answer, ruled_out;
  std::vector<std::uint32_t> allowed = {};
  SamplingParams params;
  std::uint64_t seed = 0;

  SampleArgs args() const { return {logits, &params, prompt, answer, ruled_out, seed, allowed}; }
};

class Draw {
 public:
  explicit Draw(std::uint32_t seed) : rng_(seed) {}

  TestRow row() {
    TestRow row;
    fill(row);
    const auto vocab = static_cast<std::uint32_t>(row.logits.size());
    const auto token = [&] { return static_cast<std::int32_t>(rng_() % vocab); };
    for (auto i = pick(30); i > 0; --i) row.prompt.push_back(token());
    for (auto i = pick(30); i > 0; --i) row.answer.push_back(token());
    if (vocab > 1 && some(4)) row.ruled_out.push_back(token());
    if (vocab > 1 && some(3)) {
      const bool sparse = some(2);
      for (std::uint32_t t = 0; t < vocab; t += 32) {
        row.allowed.push_back(sparse ? 0 : some(3) ? ~0u : static_cast<std::uint32_t>(rng_()));
      }
      row.allowed[0] |= 3;  // one more than may be ruled out
    }
    row.seed = std::uint64_t{rng_()} << 32 | rng_();
    SamplingParams& p = row.params;
    p.temperature = one_of({0.0f, 1.0f, 1.0f, 0.7f, 3.0f, 0.01f, 1e-30f, 1e-45f, 1e30f});
    if (some(2)) p.top_k = 1 + static_cast<std::int32_t>(pick(some(2) ? 60 : 2 * vocab));
    if (some(2)) p.top_p = one_of({0.95f, 0.5f, 0.999f, 1e-6f, 1 - 0x1p-24f, 0.25f + unit() / 2});
    if (some(3)) p.min_p = one_of({1.0f, 0.05f, 1e-6f, 1e-45f, unit()});
    if (some(3)) p.repetition_penalty = 0.5f + unit();
    if (some(3)) p.frequency_penalty = 2 * unit() - 1;
    if (some(3)) p.presence_penalty = 2 * unit() - 1;
    if (some(3)) {
      p.logit_bias = {{token(), 8 * unit() - 4},
                      {token(), -100},
                      {token(), -std::numeric_limits<float>::max()}};
    }
    if (some(3))
      p.logprobs = static_cast<std::int32_t>(pick(std::min<std::uint32_t>(vocab + 1, 40)));
    if (some(2)) p.logprob_ids = {token(), token(), token()};
    return row;
  }

 private:
  std::uint32_t pick(std::uint32_t n) { return static_cast<std::uint32_t>(rng_()) % n; }
  bool some(std::uint32_t one_in) { return pick(one_in) == 0; }
  float unit() { return static_cast<float>(pick(1 << 20)) * 0x1p-20f; }
  float one_of(std::vector<float> list) {
    return list[pick(static_cast<std::uint32_t>(list.size()))];
  }

  void fill(TestRow& row) {
    const auto vocab =
        std::vector<int>{1, 2, 3, 31, 33, 500, 1023, 1024, 1025, 2100, 7001}[pick(11)];
    std::normal_distribution<float> normal;
    const std::uint32_t kind = pick(8);
    row.what = std::to_string(kind) + " of " + std::to_string(vocab);
    for (int t = 0; t < vocab; ++t) {
      const float x = normal(rng_);
      switch (kind) {
        case 0:  // as models give them
          row.logits.push_back(3 * x);
          break;
        case 1:  // wide
          row.logits.push_back(300 * x);
          break;
        case 2:  // nearly flat
          row.logits.push_back(1e-5f * x);
          break;
        case 3:  // flat
          row.logits.push_back(-7);
          break;
        case 4:  // many ties
          row.logits.push_back(std::round(2 * x));
          break;
        case 5:  // peaked
          row.logits.push_back(t == vocab / 2 ? 30 : x);
          break;
        case 6:  // rising, so that the next token often leads
          row.logits.push_back(0.01f * static_cast<float>(t));
          break;
        default:  // the largest numbers there are
          row.logits.push_back(x < 0 ? -std::numeric_limits<float>::max()
                                     : std::numeric_limits<float>::max() * (x < 1 ? 0.999f : 1));
      }
    }
  }

  std::mt19937 rng_;
};

void expect_equal(const TestRow& row) {
  const SampleArgs args = row.args();
  std::optional<SampledToken> wanted, got;
  ref_sample(std::span(&args, 1), std::span(&wanted, 1));
  cpu_sample({}, std::span(&args, 1), std::span(&got, 1));
  const SamplingParams& p = row.params;
  ASSERT_TRUE(wanted && got);
  ASSERT_EQ(got->token, wanted->token)
      << row.what << ", temperature " << p.temperature << " top_k " << p.top_k << " top_p "
      << p.top_p << " min_p " << p.min_p << " seed " << row.seed;
  ASSERT_EQ(got->logprob, wanted->logprob) << row.what;
  ASSERT_EQ(got->top.size(), wanted->top.size());
  for (std::size_t i = 0; i < got->top.size(); ++i) {
    EXPECT_EQ(got->top[i].token, wanted->top[i].token) << i;
    EXPECT_EQ(got->top[i].logprob, wanted->top[i].logprob) << i;
  }
  ASSERT_EQ(got->asked.size(), wanted->asked.size());
  for (std::size_t i = 0; i < got->asked.size(); ++i) {
    EXPECT_EQ(got->asked[i].token, p.logprob_ids[i]);
    EXPECT_EQ(got->asked[i].logprob, wanted->asked[i].logprob) << i;
  }
}

TEST(CpuSampling, EqualsRefOnEveryTarget) {
  for_each_target([] {
    Draw draw(test_seed(1));
    for (int i = 0; i < 1500 * test_scale() && !testing::Test::HasFailure(); ++i) {
      expect_equal(draw.row());
    }
  });
}

// One long row for each path of the filters' search.
TEST(CpuSampling, EqualsRefOnALongRow) {
  std::mt19937 rng(test_seed(2));
  std::normal_distribution<float> normal;
  TestRow row;
  row.logits.resize(129280);
  for (const float spread : {0.0f, 1e-6f, 1.0f, 4.0f}) {
    for (float& x : row.logits) x = spread * normal(rng);
    for (const auto& [top_k, top_p, min_p] : {std::tuple{-1, 1.0f, 0.0f},
                                              {-1, 0.95f, 0.0f},
                                              {-1, 0.5f, 0.0f},
                                              {50, 1.0f, 0.0f},
                                              {90000, 0.9f, 0.0f},
                                              {-1, 0.9f, 0.02f}}) {
      row.params.top_k = top_k;
      row.params.top_p = top_p;
      row.params.min_p = min_p;
      row.seed = rng();
      row.what = "spread " + std::to_string(spread);
      expect_equal(row);
    }
  }
}

// The sum of three tokens equals the share up to rounding, so the order of summation decides. The
// tail is so light that an approximate sum cannot tell its ranks apart.
TEST(CpuSampling, RoundingDecidesByTheRulesOwnSums) {
  for_each_target([] {
    for (int heavy = 1; heavy < 9; ++heavy) {
      TestRow row;
      row.what = "tail";
      for (int t = 0; t < 3000; ++t) {
        row.logits.push_back(t % 300 < heavy ? 0 : -33 - 1e-3f * static_cast<float>(t));
      }
      for (const int more : {-1, 0, 1}) {
        row.params.top_p = std::nextafter(1.0f, 0.0f);
        if (more == 0) row.params.top_p = 0.5f;
        if (more == 1) row.params.top_p = 0.3f;
        for (row.seed = 0; row.seed < 20; ++row.seed) expect_equal(row);
      }
    }
  });
}

// top_p by sorting, with the exact sum of ops/sampling.h at each rank.
Cut plain_cut_top_p(const std::vector<double>& w, const Cut& from, double p) {
  std::vector<Candidate> ranks;
  for (std::int32_t t = 0; t < std::ssize(w); ++t) {
    const double weight = w[static_cast<std::size_t>(t)];
    if (from.keeps(weight, t)) ranks.push_back({weight, t});
  }
  std::sort(ranks.begin(), ranks.end());
  const auto n = std::ssize(w);
  const double target = p * sum_kept(w.data(), n, from);
  for (const Candidate& c : ranks) {
    if (sum_kept(w.data(), n, {c.weight, c.token}) >= target) return {c.weight, c.token};
  }
  return from;
}

TEST(CpuSampling, TopPIsCutWhereTheSumsSay) {
  std::mt19937_64 rng(test_seed(3));
  const auto unit = [&] { return static_cast<double>(rng() >> 11) * 0x1p-53; };
  std::vector<WeightBin> bins(kWeightBins + kSpareBins);
  std::vector<Candidate> candidates(1024);
  int close = 0;
  for (int i = 0; i < 300 * test_scale(); ++i) {
    std::vector<double> w(1024);
    // From 1 down by up to 2^-60: sums that only the last bits tell apart.
    const double range = 60 * unit();
    for (double& x : w) x = std::exp2(-range * unit());
    w[rng() % 1024] = 1;
    // A share that equals the sum of some ranks, give or take a bit.
    const Cut from{w[rng() % 1024] * (i % 2), 1023};
    std::vector<double> ranks;
    for (double x : w) {
      if (x > from.weight) ranks.push_back(x);
    }
    std::sort(ranks.rbegin(), ranks.rend());
    const double sum = sum_kept(w.data(), 1024, from);
    double p = 0;
    for (std::size_t k = 0; k <= rng() % 1024 && k < ranks.size(); ++k) p += ranks[k] / sum;
    for (const double share : {p, std::nextafter(p, 0.0), std::nextafter(p, 2.0)}) {
      if (!(share > 0 && share < 1 - 0x1p-24)) continue;
      ++close;
      const Cut got = cut_top_p(w.data(), 1024, from, share, {bins.data(), candidates.data()});
      const Cut wanted = plain_cut_top_p(w, from, share);
      ASSERT_EQ(got.token, wanted.token) << i;
      ASSERT_EQ(got.weight, wanted.weight) << i;
    }
  }
  EXPECT_GT(close, 100);
}

TEST(CpuSampling, WeightsAreTheScalarOnesOnEveryTarget) {
  for_each_target([] {
    std::mt19937 rng(test_seed(4));
    std::normal_distribution<float> normal;
    for (const std::int64_t n : {1, 5, 64, 1000, 1024, 1029}) {
      std::vector<float> x(static_cast<std::size_t>(n));
      for (float& v : x) v = 100 * normal(rng);
      x[0] = 0;
      const float most = largest_finite(x.data(), n);
      EXPECT_EQ(most, *std::max_element(x.begin(), x.end()));
      std::vector<double> w(2048);
      weigh(x.data(), n, double{most}, 1.7, w.data());
      for (std::int64_t i = 0; i < (n + 1023) / 1024 * 1024; ++i) {
        const double wanted =
            i < n
                ? exp_of_nonpositive((double{x[static_cast<std::size_t>(i)]} - double{most}) * 1.7)
                : 0;
        ASSERT_EQ(w[static_cast<std::size_t>(i)], wanted) << n << " " << i;
      }
    }
  });
}

}  // namespace
}  // namespace lathe
