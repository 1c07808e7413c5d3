// Runs the sampler's search for a filter's cut thread by thread on the CPU (common/emulator.h)
// against sorted weights and sums in the order of ops/sampling.h. Sampled tokens alone would not
// show a cut that is a few tokens off.
// Compiled alone: it includes kernels.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "base/test_scale.h"
#include "kernels/cuda/sm90/sampling/cut_search.cuh"

namespace lathe::cuda {
namespace {

struct CutParams {
  const double* values;
  std::int64_t vocab;
  ProbCut from;
  std::int32_t k;          // 0: by share
  double share;            // of the sum of what `from` keeps
  int blocks = 1;          // of the row
  ProbCut* out = nullptr;  // [blocks]
};

__global__ void cut_kernel(const CutParams p) {
  LATHE_DYNAMIC_SHARED(shared);
  SampleTeam team(shared, p.vocab, p.blocks);
  const CutSearch search(p.values, p.vocab, team);
  const ProbCut cut = p.k > 0 ? search.first(p.from, p.k)
                              : search.reaching(p.from, p.share * search.sum_kept(p.from));
  if (threadIdx.x == 0) p.out[team.rank] = cut;
  team.sync();
}

/// In the order of ops/sampling.h.
double sum_by_rule(const std::vector<double>& values, const ProbCut& cut) {
  double sum = 0;
  for (std::size_t block = 0; block < values.size(); block += kSumBlock) {
    double lanes[kSumLanes] = {};
    for (std::size_t i = 0; i < kSumBlock; ++i) {
      const double w = values[block + i];
      lanes[i % kSumLanes] += kept(w, static_cast<std::int64_t>(block + i), cut) ? w : 0;
    }
    for (std::int64_t d = kSumLanes / 2; d > 0; d /= 2) {
      for (std::int64_t l = 0; l < d; ++l) lanes[l] += lanes[l + d];
    }
    sum += lanes[0];
  }
  return sum;
}

ProbCut wanted_cut(const CutParams& p, const std::vector<double>& values) {
  std::vector<std::int32_t> ranked;
  for (std::int32_t i = 0; i < p.vocab; ++i) {
    if (kept(values[static_cast<std::size_t>(i)], i, p.from)) ranked.push_back(i);
  }
  const auto weight = [&](std::int32_t i) { return values[static_cast<std::size_t>(i)]; };
  std::stable_sort(ranked.begin(), ranked.end(),
                   [&](std::int32_t a, std::int32_t b) { return weight(a) > weight(b); });
  const auto cut_at = [&](std::ptrdiff_t n) {
    const std::int32_t token = ranked[static_cast<std::size_t>(n)];
    return ProbCut{weight(token), token};
  };
  if (p.k > 0) return p.k > std::ssize(ranked) ? p.from : cut_at(p.k - 1);
  const double wanted = p.share * sum_by_rule(values, p.from);
  std::ptrdiff_t below = -1, last = std::ssize(ranked) - 1;
  while (last - below > 1) {
    const std::ptrdiff_t middle = below + (last - below) / 2;
    (sum_by_rule(values, cut_at(middle)) >= wanted ? last : below) = middle;
  }
  return cut_at(last);
}

TEST(CutSearch, FindsTheCutsOfSortedWeights) {
  std::mt19937 rng(test_seed(21));
  std::normal_distribution<double> normal;
  for (int round = 0; round < 150 * test_scale(); ++round) {
    const std::int64_t vocab = 1 + static_cast<std::int64_t>(rng() % 9000);
    std::vector<double> values(static_cast<std::size_t>(padded_vocab(vocab)), 0.0);
    const double spread = std::exp2(static_cast<double>(rng() % 24) - 15);
    const bool grouped = rng() % 4 == 0;  // hundreds of equal weights
    double most = -INFINITY;
    for (std::size_t i = 0; i < static_cast<std::size_t>(vocab); ++i) {
      values[i] = grouped && i >= 9 ? values[i % 9] : spread * normal(rng);
      most = std::max(most, values[i]);
    }
    for (std::size_t i = 0; i < static_cast<std::size_t>(vocab); ++i) {
      values[i] = std::exp(values[i] - most);
    }
    CutParams p{.values = values.data(), .vocab = vocab, .from = {}, .k = 0, .share = 1};
    if (rng() % 3 == 0) p.from.prob = std::exp2(-static_cast<double>(rng() % 80));
    if (rng() % 2 == 0) {
      p.k = 1 + static_cast<std::int32_t>(rng() % static_cast<unsigned>(vocab + 5));
    } else {
      p.share = rng() % 4 == 0 ? 1 - std::exp2(-static_cast<double>(rng() % 50) - 3)
                               : static_cast<double>(1 + rng() % 9999) / 10000;
    }
    ProbCut all[8];
    p.out = all;
    p.blocks = 1 << rng() % 4;
    emulate_clusters(p.blocks, {static_cast<unsigned>(p.blocks), 1, 1}, kSampleThreads, cut_kernel,
                     p);
    const ProbCut wanted = wanted_cut(p, values);
    for (int b = 0; b < p.blocks; ++b) {
      const ProbCut& got = all[b];
      ASSERT_EQ(got.prob, wanted.prob) << round << ": k " << p.k << ", share " << p.share;
      ASSERT_EQ(got.token, wanted.token) << round << ": k " << p.k << ", share " << p.share;
    }
  }
}

}  // namespace
}  // namespace lathe::cuda
