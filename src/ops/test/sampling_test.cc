#include "ops/sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string>

#include "base/test_scale.h"
#include "kernels/sampling_math.h"
#include "ops/test/test_util.h"

namespace lathe {
namespace {

using ::testing::ElementsAre;

// The distribution that a row is sampled from, directly from the definitions in long double: every
// step sorts the remaining tokens and renormalises their probabilities.
using Distribution = std::vector<long double>;  // [vocab]

struct Row {
  std::vector<float> logits;
  std::vector<std::int32_t> prompt, answer, ruled_out;
  std::vector<std::uint32_t> allowed = {};
  SamplingParams params;
  std::uint64_t seed = 0;

  SampleArgs args() const { return {logits, &params, prompt, answer, ruled_out, seed, allowed}; }
};

std::optional<SampledToken> sample_one(const Row& row, Device device = Device::cpu) {
  ops_test::Context c(1, device);
  const SampleArgs args = row.args();
  std::optional<SampledToken> out;
  sample(c.ops, std::span(&args, 1), std::span(&out, 1));
  return out;
}

std::vector<long double> adjusted(const Row& row) {
  const SamplingParams& p = row.params;
  std::vector<long double> x(row.logits.begin(), row.logits.end());
  for (std::size_t t = 0; t < x.size(); ++t) {
    const auto count = [&](const std::vector<std::int32_t>& list) {
      return std::count(list.begin(), list.end(), static_cast<std::int32_t>(t));
    };
    const auto answered = count(row.answer);
    if (answered + count(row.prompt) > 0) {
      if (x[t] > 0)
        x[t] /= static_cast<long double>(p.repetition_penalty);
      else
        x[t] *= static_cast<long double>(p.repetition_penalty);
    }
    x[t] -= static_cast<long double>(p.frequency_penalty) * static_cast<long double>(answered);
    if (answered > 0) x[t] -= static_cast<long double>(p.presence_penalty);
    for (const LogitBias& b : p.logit_bias) {
      if (b.token == static_cast<std::int32_t>(t)) x[t] += static_cast<long double>(b.bias);
    }
    const bool may = row.allowed.empty() || (row.allowed[t / 32] >> (t % 32) & 1u) != 0;
    if (!may || count(row.ruled_out) > 0) x[t] = -std::numeric_limits<long double>::infinity();
  }
  return x;
}

// `nudge` scales top_p: if a sum ties with it, rounding decides which tokens are kept.
Distribution oracle(const Row& row, long double nudge = 1) {
  const SamplingParams& p = row.params;
  const auto x = adjusted(row);
  std::vector<std::size_t> rank(x.size());
  std::iota(rank.begin(), rank.end(), 0);
  std::stable_sort(rank.begin(), rank.end(), [&](auto a, auto b) { return x[a] > x[b]; });
  Distribution out(x.size(), 0);
  if (p.temperature == 0) {
    out[rank[0]] = 1;
    return out;
  }
  const auto renormalise = [&](std::size_t keep) {
    rank.resize(keep);
    long double sum = 0;
    for (auto t : rank) sum += out[t];
    for (auto t : rank) out[t] /= sum;
    for (std::size_t t = 0; t < out.size(); ++t) {
      if (std::find(rank.begin(), rank.end(), t) == rank.end()) out[t] = 0;
    }
  };
  for (auto t : rank) out[t] = std::exp((x[t] - x[rank[0]]) / p.temperature);
  renormalise(rank.size());
  std::size_t keep = 0;
  while (keep < rank.size() &&
         out[rank[keep]] >= static_cast<long double>(p.min_p) * out[rank[0]]) {
    ++keep;
  }
  renormalise(keep);
  if (p.top_k != -1) renormalise(std::min(rank.size(), static_cast<std::size_t>(p.top_k)));
  if (p.top_p < 1) {
    long double sum = 0;
    for (keep = 0; keep < rank.size() && sum < nudge * static_cast<long double>(p.top_p); ++keep) {
      sum += out[rank[keep]];
    }
    renormalise(keep);
  }
  return out;
}

// The winner of a race in which token t arrives at time -ln(u_t) / d[t]. `margin`: its relative
// lead over the second.
std::int32_t oracle_draw(const Distribution& d, std::uint64_t seed, std::size_t position,
                         long double* margin = nullptr) {
  long double least = std::numeric_limits<long double>::infinity(), next = least;
  std::int32_t first = -1;
  for (std::size_t t = 0; t < d.size(); ++t) {
    if (d[t] == 0) continue;
    const auto token = static_cast<std::int32_t>(t);
    const long double u = token_noise(seed, position, token);
    const long double time = -std::log(u) / d[t];
    if (time < least) {
      next = least;
      least = time;
      first = token;
    } else {
      next = std::min(next, time);
    }
  }
  if (margin != nullptr) *margin = (next - least) / least;
  return first;
}

Row random_row(std::mt19937& rng) {
  const auto unit = [&] { return static_cast<float>(rng() % 1000) / 1000.0f; };
  const auto some = [&](int one_in) { return rng() % static_cast<unsigned>(one_in) == 0; };
  Row row;
  const std::int32_t vocab = 2 + static_cast<std::int32_t>(rng() % 60);
  const auto token = [&] {
    return static_cast<std::int32_t>(rng() % static_cast<unsigned>(vocab));
  };
  const float spread = some(2) ? 3.0f : 20.0f;
  for (std::int32_t t = 0; t < vocab; ++t) {
    // Coarse values, for many ties.
    row.logits.push_back(spread * (std::floor(unit() * 16) / 8 - 1));
  }
  for (auto i = rng() % 9; i > 0; --i) row.prompt.push_back(token());
  for (auto i = rng() % 9; i > 0; --i) row.answer.push_back(token());
  if (some(4)) row.ruled_out = {token()};
  if (some(3)) {
    for (std::int32_t t = 0; t < vocab; t += 32)
      row.allowed.push_back(static_cast<std::uint32_t>(rng()));
    // One more than may be ruled out.
    for (const std::int32_t t : {0, 1}) row.allowed[0] |= 1u << t;
  }
  row.seed = rng();
  SamplingParams& p = row.params;
  p.temperature = some(4) ? 0 : 0.1f + 2 * unit();
  if (some(2)) p.top_k = 1 + static_cast<std::int32_t>(rng() % 70);
  if (some(2)) p.top_p = 0.001f + 0.998f * unit();
  if (some(3)) p.min_p = unit();
  if (some(3)) p.repetition_penalty = 0.5f + unit();
  if (some(3)) p.frequency_penalty = 2 * unit() - 1;
  if (some(3)) p.presence_penalty = 2 * unit() - 1;
  if (some(3)) p.logit_bias = {{token(), 8 * unit() - 4}, {token(), 1}};
  return row;
}

TEST(Sampling, EqualsTheDefinitionInLongDouble) {
  std::mt19937 rng(test_seed(1));
  int compared = 0;
  for (int i = 0; i < 20000 * test_scale(); ++i) {
    const Row row = random_row(rng);
    const auto got = sample_one(row, i % 2 == 0 ? Device::cpu : Device::ref);
    ASSERT_TRUE(got);
    const Distribution d = oracle(row);
    // Adjusted logits may tie in double but not in long double, and vice versa.
    auto x = adjusted(row);
    std::sort(x.begin(), x.end());
    bool close = false;
    for (std::size_t t = 1; t < x.size(); ++t) {
      close |= x[t] != x[t - 1] && x[t] - x[t - 1] < 1e-6L;
    }
    long double margin = 0;
    const std::int32_t wanted = oracle_draw(d, row.seed, row.answer.size(), &margin);
    close |= margin < 1e-12L;
    for (const double nudge : {1 - 1e-12, 1 + 1e-12}) {
      close |= oracle_draw(oracle(row, nudge), row.seed, row.answer.size()) != wanted;
    }
    if (close) continue;
    ++compared;
    EXPECT_EQ(got->token, wanted) << "case " << i << ", temperature " << row.params.temperature
                                  << " top_k " << row.params.top_k << " top_p " << row.params.top_p
                                  << " min_p " << row.params.min_p;
    if (HasFailure()) break;
  }
  EXPECT_GT(compared, 15000 * test_scale());
}

// Pearson's statistic of `draws` tokens against their probabilities.
double chi_square(const Row& row, const std::vector<double>& p, int draws) {
  std::vector<SampleArgs> rows(static_cast<std::size_t>(draws), row.args());
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i].seed = i;
  std::vector<std::optional<SampledToken>> sampled(rows.size());
  ops_test::Context c(1);
  sample(c.ops, rows, sampled);
  std::vector<int> counts(p.size());
  for (const auto& s : sampled) ++counts[static_cast<std::size_t>(s->token)];
  double sum = 0;
  for (std::size_t t = 0; t < p.size(); ++t) {
    const double expected = p[t] * draws;
    if (p[t] == 0) {
      EXPECT_EQ(counts[t], 0) << "token " << t;
      continue;
    }
    sum += (counts[t] - expected) * (counts[t] - expected) / expected;
  }
  return sum;
}

// Logits that are logs of known probabilities; the distributions are worked out by hand. 99.9%
// quantiles of chi-square: 13.8 (2 degrees of freedom), 16.3 (3).
TEST(Sampling, FollowsClosedForms) {
  Row row;
  for (double p : {0.1, 0.4, 0.2, 0.3}) row.logits.push_back(static_cast<float>(std::log(p)));
  EXPECT_LT(chi_square(row, {0.1, 0.4, 0.2, 0.3}, 20000), 16.3);
  row.params.temperature = 0.5f;  // squares: 1, 16, 4, 9 of 30
  EXPECT_LT(chi_square(row, {1 / 30.0, 16 / 30.0, 4 / 30.0, 9 / 30.0}, 20000), 16.3);
  row.params.temperature = 1;
  row.params.top_k = 3;
  EXPECT_LT(chi_square(row, {0, 4 / 9.0, 2 / 9.0, 3 / 9.0}, 20000), 13.8);
  row.params.top_k = -1;
  row.params.top_p = 0.65f;  // 0.4 + 0.3 reaches it
  EXPECT_LT(chi_square(row, {0, 4 / 7.0, 0, 3 / 7.0}, 20000), 10.9);
  row.params.top_p = 1;
  row.params.min_p = 0.45f;  // 0.18 and more
  EXPECT_LT(chi_square(row, {0, 4 / 9.0, 2 / 9.0, 3 / 9.0}, 20000), 13.8);
  row.params.top_k = 2;
  row.params.min_p = 0;
  row.params.top_p = 0.5f;  // of the two that top_k left, the first has 4/7
  EXPECT_LT(chi_square(row, {0, 1, 0, 0}, 1000), 1e-9);
}

TEST(Sampling, PositionsAreIndependentDraws) {
  Row row;
  row.logits = {0, 0};
  row.params.seed = 1;
  std::map<std::pair<int, int>, int> pairs;
  int before = 0;
  for (int i = 0; i < 4000; ++i) {
    const int token = sample_one(row)->token;
    ++pairs[{before, token}];
    row.answer.push_back(before = token);
  }
  double sum = 0;
  for (const auto& [pair, n] : pairs) sum += (n - 1000.0) * (n - 1000.0) / 1000.0;
  EXPECT_EQ(pairs.size(), 4u);
  EXPECT_LT(sum, 16.3);
}

TEST(Sampling, TiesGoToTheLowerToken) {
  Row row;
  row.logits = {1, 3, 3, 3, 2};
  row.params.temperature = 0;
  EXPECT_EQ(sample_one(row)->token, 1);
  row.params.temperature = 1;
  row.params.top_k = 1;
  EXPECT_EQ(sample_one(row)->token, 1);
  row.params.top_k = 2;
  for (row.seed = 0; row.seed < 50; ++row.seed) EXPECT_LE(sample_one(row)->token, 2);
}

TEST(Sampling, TokensOnTheEdgeOfMinPStay) {
  Row row;
  row.logits = {3, 1, 3, 2};
  row.params.min_p = 1;
  std::map<int, int> counts;
  for (row.seed = 0; row.seed < 50; ++row.seed) ++counts[sample_one(row)->token];
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_EQ(counts[0] + counts[2], 50);
}

TEST(Sampling, LogprobsAreOfTheModelsDistribution) {
  Row row;
  for (double p : {0.1, 0.4, 0.2, 0.3}) row.logits.push_back(static_cast<float>(std::log(p)) + 7);
  row.params.temperature = 0;
  row.params.logit_bias = {{0, 50}};  // forces token 0, and must not change the logprobs
  row.params.logprobs = 2;
  const auto got = sample_one(row);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->token, 0);
  EXPECT_NEAR(*got->logprob, std::log(0.1), 1e-6);
  ASSERT_EQ(got->top.size(), 2u);
  EXPECT_EQ(got->top[0].token, 1);
  EXPECT_NEAR(got->top[0].logprob, std::log(0.4), 1e-6);
  EXPECT_EQ(got->top[1].token, 3);
  EXPECT_NEAR(got->top[1].logprob, std::log(0.3), 1e-6);
  row.params.logprob_ids = {2, 0, 2};
  const auto asked = sample_one(row)->asked;
  ASSERT_EQ(asked.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(asked[i].token, row.params.logprob_ids[i]);
    EXPECT_NEAR(asked[i].logprob, std::log(i == 1 ? 0.1 : 0.2), 1e-6);
  }
  row.params.logprobs = 0;
  EXPECT_TRUE(sample_one(row)->top.empty());
  row.params.logprobs.reset();
  EXPECT_FALSE(sample_one(row)->logprob);
}

TEST(Sampling, FindsWhatIsNotFinite) {
  Row row;
  row.logits.assign(40, 1.0f);
  EXPECT_TRUE(sample_one(row));
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                    -std::numeric_limits<float>::infinity()}) {
    for (std::size_t place : {0u, 17u, 39u}) {
      row.logits.assign(40, 1.0f);
      row.logits[place] = bad;
      EXPECT_FALSE(sample_one(row));
    }
  }
  row.logits.assign(40, std::numeric_limits<float>::max());
  EXPECT_TRUE(sample_one(row));
}

TEST(Sampling, ALargeVocabularyRanksLittleAndRight) {
  std::mt19937 rng(test_seed(2));
  std::normal_distribution<float> normal(0, 4);
  Row row;
  for (int t = 0; t < 50000; ++t) row.logits.push_back(normal(rng));
  row.params.top_p = 0.9f;
  const Distribution d = [&] {
    // oracle() is quadratic; this computes the same with one sort.
    std::vector<std::pair<double, int>> p;
    double sum = 0;
    for (int t = 0; t < 50000; ++t) {
      p.push_back({-std::exp(double{row.logits[static_cast<std::size_t>(t)]}), t});
      sum -= p.back().first;
    }
    std::sort(p.begin(), p.end());
    Distribution out(50000, 0);
    double reached = 0;
    for (std::size_t i = 0; reached < 0.9 * sum; ++i) {
      reached -= p[i].first;
      out[static_cast<std::size_t>(p[i].second)] = -p[i].first;
    }
    for (auto& x : out) x /= reached;
    return out;
  }();
  for (row.seed = 0; row.seed < 30; ++row.seed) {
    EXPECT_EQ(sample_one(row)->token, oracle_draw(d, row.seed, 0));
  }
}

// 99.99 % quantile of chi-square by the approximation of Wilson and Hilferty.
double chi_square_bound(std::size_t degrees) {
  const double n = static_cast<double>(degrees), v = 2 / (9 * n);
  const double root = 1 - v + 3.719 * std::sqrt(v);
  return n * root * root * root;
}

// Each filter alone and all together, against the defined distribution.
TEST(Sampling, DrawsFollowTheDistributionWithEachFilter) {
  std::mt19937 rng(test_seed(3));
  std::normal_distribution<float> normal(0, 1.5f);
  Row row;
  for (int t = 0; t < 16; ++t) row.logits.push_back(normal(rng));
  const auto with = [](auto set) {
    SamplingParams p;
    set(p);
    return p;
  };
  const std::map<std::string, SamplingParams> cases{
      {"none", {}},
      {"temperature", with([](auto& p) { p.temperature = 0.6f; })},
      {"top_k", with([](auto& p) { p.top_k = 7; })},
      {"top_p", with([](auto& p) { p.top_p = 0.8f; })},
      {"min_p", with([](auto& p) { p.min_p = 0.1f; })},
      {"all", with([](auto& p) {
         p.temperature = 1.4f;
         p.top_k = 10;
         p.top_p = 0.9f;
         p.min_p = 0.05f;
       })},
  };
  for (const auto& [name, params] : cases) {
    SCOPED_TRACE(name);
    row.params = params;
    const Distribution d = oracle(row);
    std::vector<double> p(d.begin(), d.end());
    const auto possible =
        static_cast<std::size_t>(std::count_if(p.begin(), p.end(), [](double x) { return x > 0; }));
    ASSERT_GT(possible, 1u);
    EXPECT_LT(chi_square(row, p, 100000), chi_square_bound(possible - 1));
  }
}

// Two similar distributions, sampled with the same noise, mostly give the same token: with a
// probability of at least (1 - TV) / (1 + TV), where TV is their total variation distance.
TEST(Sampling, NearDistributionsMostlyAgree) {
  constexpr int kVocab = 2000, kDraws = 4000;
  std::mt19937 rng(test_seed(4));
  std::normal_distribution<float> normal;
  for (const float spread : {4.0f, 2.7f, 1.9f, 1.0f}) {  // from peaked to nearly flat
    Row row, near;
    for (int t = 0; t < kVocab; ++t) {
      row.logits.push_back(spread * normal(rng));
      near.logits.push_back(row.logits.back() + 0.6f * normal(rng));
    }
    const auto probabilities = [](const std::vector<float>& logits) {
      std::vector<double> p;
      double sum = 0;
      for (float x : logits) sum += p.emplace_back(std::exp(double{x}));
      for (double& x : p) x /= sum;
      return p;
    };
    const auto p = probabilities(row.logits), q = probabilities(near.logits);
    double apart = 0;
    for (std::size_t t = 0; t < p.size(); ++t) apart += std::abs(p[t] - q[t]) / 2;
    int equal = 0;
    for (row.seed = 0; row.seed < kDraws; ++row.seed) {
      near.seed = row.seed;
      equal += sample_one(row)->token == sample_one(near)->token ? 1 : 0;
    }
    const double share = double{1} * equal / kDraws;
    const double noise = 4 * std::sqrt(0.25 / kDraws);
    EXPECT_GT(share, (1 - apart) / (1 + apart) - noise) << "total variation " << apart;
    EXPECT_LT(share, 1 - apart + noise) << "no coupling agrees more often";
  }
}

// Neither other rows' filters and penalties nor threads affect a row.
TEST(Sampling, RowsOfABatchAreThemselves) {
  std::mt19937 rng(test_seed(5));
  std::vector<Row> rows;
  while (rows.size() < 40) {
    Row row = random_row(rng);
    row.logits.resize(2500, row.logits[0]);
    std::shuffle(row.logits.begin(), row.logits.end(), rng);
    while (!row.allowed.empty() && 32 * row.allowed.size() < row.logits.size()) {
      row.allowed.push_back(static_cast<std::uint32_t>(rng()));
    }
    if (rows.size() % 7 == 3) row.logits[1234] = std::numeric_limits<float>::infinity();
    if (rows.size() % 2 == 0) row.params.logprobs = 3;
    rows.push_back(row);
  }
  std::vector<SampleArgs> args;
  for (const Row& row : rows) args.push_back(row.args());
  for (const int threads : {1, 2, 5}) {
    ops_test::Context context(threads);
    Scratch scratch;
    context.ops.execution.scratch = &scratch;
    for (int round = 0; round < 2; ++round) {
      std::vector<std::optional<SampledToken>> got(rows.size());
      sample(context.ops, args, got);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const auto alone = sample_one(rows[i]);
        ASSERT_EQ(got[i].has_value(), alone.has_value()) << i;
        if (!alone) continue;
        EXPECT_EQ(got[i]->token, alone->token) << i;
        EXPECT_EQ(got[i]->logprob, alone->logprob) << i;
        EXPECT_EQ(got[i]->top.size(), alone->top.size()) << i;
      }
    }
    EXPECT_EQ(scratch.growths(), 1);
  }
}

}  // namespace
}  // namespace lathe
