#include "kernels/ref/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/sampling_math.h"

namespace lathe {
namespace {

using Ids = std::vector<std::int32_t>;

std::size_t at(std::int32_t token) { return static_cast<std::size_t>(token); }

// Steps 1 and 2: logits with penalties, bias and ruled-out tokens applied.
std::vector<double> adjusted(const SampleArgs& args) {
  const SamplingParams& p = *args.params;
  std::vector<double> x(args.logits.begin(), args.logits.end());
  std::vector<int> answered(x.size()), seen(x.size());
  for (std::int32_t t : args.answer) ++answered[at(t)];
  for (const auto& part : {args.prompt, args.answer}) {
    for (std::int32_t t : part) seen[at(t)] = 1;
  }
  for (std::size_t t = 0; t < x.size(); ++t) {
    if (seen[t] != 0 && p.repetition_penalty != 1) {
      x[t] = x[t] > 0 ? x[t] / double{p.repetition_penalty} : x[t] * double{p.repetition_penalty};
    }
    if (answered[t] == 0) continue;
    x[t] -= double{p.frequency_penalty} * answered[t];
    x[t] -= double{p.presence_penalty};
  }
  for (const LogitBias& b : p.logit_bias) x[at(b.token)] += double{b.bias};
  for (std::int32_t t : args.ruled_out) x[at(t)] = -std::numeric_limits<double>::infinity();
  if (args.allowed.empty()) return x;
  for (std::size_t t = 0; t < x.size(); ++t) {
    const bool set = (args.allowed[t / 32] >> (t % 32) & 1u) != 0;
    if (!set) x[t] = -std::numeric_limits<double>::infinity();
  }
  return x;
}

// The sum of the weights of `kept`, in the order of ops/sampling.h.
double sum_of(const std::vector<double>& weights, std::span<const std::int32_t> kept) {
  std::vector<double> counted(weights.size());
  for (std::int32_t t : kept) counted[at(t)] = weights[at(t)];
  double sum = 0;
  for (std::size_t block = 0; block < counted.size(); block += kSumBlock) {
    double lanes[kSumLanes] = {};
    const std::size_t end = std::min<std::size_t>(counted.size(), block + kSumBlock);
    for (std::size_t t = block; t < end; ++t) lanes[(t - block) % kSumLanes] += counted[t];
    for (std::int64_t half = kSumLanes / 2; half > 0; half /= 2) {
      for (std::int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    sum += lanes[0];
  }
  return sum;
}

std::vector<double> weights_of(const std::vector<double>& x, double temperature) {
  const double most = *std::max_element(x.begin(), x.end());
  std::vector<double> out;
  for (double v : x) out.push_back(exp_of_nonpositive((v - most) * (1 / temperature)));
  return out;
}

// Steps 4 to 6: the tokens that are left, most likely first.
Ids kept(const std::vector<double>& weights, const SamplingParams& p) {
  Ids ranks;
  for (std::int32_t t = 0; t < std::ssize(weights); ++t) {
    const double w = weights[at(t)];
    if (w > 0 && w >= double{p.min_p}) ranks.push_back(t);
  }
  std::stable_sort(ranks.begin(), ranks.end(),
                   [&](auto a, auto b) { return weights[at(a)] > weights[at(b)]; });
  if (p.top_k != -1 && p.top_k < std::ssize(ranks)) ranks.resize(at(p.top_k));
  if (p.top_p == 1) return ranks;
  const double share = double{p.top_p} * sum_of(weights, ranks);
  std::vector<std::size_t> counts(ranks.size());
  std::iota(counts.begin(), counts.end(), 1);
  const auto fewest = std::partition_point(counts.begin(), counts.end(), [&](std::size_t n) {
    return sum_of(weights, std::span(ranks).first(n)) < share;
  });
  ranks.resize(*fewest);
  return ranks;
}

std::int32_t draw(const std::vector<double>& weights, Ids tokens, const SampleArgs& args) {
  std::sort(tokens.begin(), tokens.end());
  double least = std::numeric_limits<double>::infinity();
  std::int32_t drawn = -1;
  for (std::int32_t t : tokens) {
    const double time =
        -log_of_positive(token_noise(args.seed, args.position(), t)) / weights[at(t)];
    if (drawn >= 0 && time >= least) continue;
    least = time;
    drawn = t;
  }
  return drawn;
}

void add_logprobs(const SampleArgs& args, SampledToken& out) {
  const std::vector<double> x(args.logits.begin(), args.logits.end());
  Ids ranks(x.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  const double sum = sum_of(weights_of(x, 1), ranks);
  const double log_sum = *std::max_element(x.begin(), x.end()) + log_of_positive(sum);
  out.logprob = x[at(out.token)] - log_sum;
  std::stable_sort(ranks.begin(), ranks.end(), [&](auto a, auto b) { return x[at(a)] > x[at(b)]; });
  for (std::int32_t i = 0; i < *args.params->logprobs; ++i) {
    out.top.push_back({ranks[at(i)], x[at(ranks[at(i)])] - log_sum});
  }
  for (std::int32_t t : args.params->logprob_ids) out.asked.push_back({t, x[at(t)] - log_sum});
}

std::optional<SampledToken> sample_row(const SampleArgs& args) {
  for (float x : args.logits) {
    if (!std::isfinite(x)) return std::nullopt;
  }
  const SamplingParams& p = *args.params;
  const std::vector<double> x = adjusted(args);
  SampledToken out;
  if (p.temperature == 0) {
    out.token = static_cast<std::int32_t>(std::max_element(x.begin(), x.end()) - x.begin());
  } else {
    const std::vector<double> weights = weights_of(x, double{p.temperature});
    out.token = draw(weights, kept(weights, p), args);
  }
  if (p.logprobs) add_logprobs(args, out);
  return out;
}

}  // namespace

void ref_sample(std::span<const SampleArgs> rows, std::span<std::optional<SampledToken>> out) {
  for (std::size_t i = 0; i < rows.size(); ++i) out[i] = sample_row(rows[i]);
}

}  // namespace lathe
