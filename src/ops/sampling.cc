#include "ops/sampling.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "ops/philox.h"

namespace lathe {
namespace {

std::size_t at(std::int32_t token) { return static_cast<std::size_t>(token); }

template <class T>
std::int32_t argmax(std::span<const T> values) {
  return static_cast<std::int32_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

bool adjusts(const SampleArgs& args) {
  const SamplingParams& p = *args.params;
  return p.repetition_penalty != 1 || p.frequency_penalty != 0 || p.presence_penalty != 0 ||
         !p.logit_bias.empty() || !args.ruled_out.empty();
}

}  // namespace

Sampler::Sampler(std::int32_t vocab) : values_(at(vocab)), counts_(at(vocab)) {}

void Sampler::adjust(const SampleArgs& args) {
  const SamplingParams& p = *args.params;
  std::copy(args.logits.begin(), args.logits.end(), values_.begin());
  // A count is taken when the token is met first and reset to 0, so each token is adjusted once.
  if (p.repetition_penalty != 1) {
    for (const auto& part : {args.prompt, args.answer}) {
      for (std::int32_t t : part) counts_[at(t)] = 1;
    }
    for (const auto& part : {args.prompt, args.answer}) {
      for (std::int32_t t : part) {
        if (std::exchange(counts_[at(t)], 0) == 0) continue;
        double& x = values_[at(t)];
        x = x > 0 ? x / double{p.repetition_penalty} : x * double{p.repetition_penalty};
      }
    }
  }
  if (p.frequency_penalty != 0 || p.presence_penalty != 0) {
    for (std::int32_t t : args.answer) ++counts_[at(t)];
    for (std::int32_t t : args.answer) {
      const int count = std::exchange(counts_[at(t)], 0);
      if (count == 0) continue;
      values_[at(t)] -= double{p.frequency_penalty} * count;
      values_[at(t)] -= double{p.presence_penalty};
    }
  }
  for (const LogitBias& b : p.logit_bias) values_[at(b.token)] += double{b.bias};
  for (std::int32_t t : args.ruled_out) {
    values_[at(t)] = -std::numeric_limits<double>::infinity();
  }
}

void Sampler::weigh(double temperature) {
  const double most = *std::max_element(values_.begin(), values_.end());
  for (double& x : values_) x = std::exp((x - most) / temperature);
}

// The lowest-ranking token that the filters keep; nothing: they keep all tokens.
std::optional<Sampler::Candidate> Sampler::last_kept(const SamplingParams& p) {
  const auto vocab = std::ssize(values_);
  const bool top_k = p.top_k != -1 && p.top_k < vocab;
  const bool top_p = p.top_p < 1;
  if (!top_k && !top_p && p.min_p == 0) return std::nullopt;

  double floor = p.min_p;
  if (top_p && !top_k) {
    // All tokens below this together weigh less than what top_p leaves out (half of it, for the
    // rounding of the sums), so none of them is kept; it spares ranking the whole vocabulary.
    double sum = 0;
    for (double w : values_) sum += w >= floor ? w : 0;
    floor = std::max(floor, sum * (1 - double{p.top_p}) * 0.5 / static_cast<double>(vocab));
  }
  candidates_.clear();
  double below = 0;  // weight that min_p keeps and `floor` does not rank
  for (std::int32_t t = 0; t < vocab; ++t) {
    const double w = values_[at(t)];
    if (w >= floor) {
      candidates_.push_back({w, t});
    } else if (w >= double{p.min_p}) {
      below += w;
    }
  }
  if (top_k && p.top_k < std::ssize(candidates_)) {
    std::nth_element(candidates_.begin(), candidates_.begin() + p.top_k - 1, candidates_.end());
    candidates_.resize(at(p.top_k));
  }
  if (!top_p) return *std::max_element(candidates_.begin(), candidates_.end());
  std::sort(candidates_.begin(), candidates_.end());
  double sum = below;
  for (const Candidate& c : candidates_) sum += c.weight;
  double reached = 0;
  for (const Candidate& c : candidates_) {
    reached += c.weight;
    if (reached >= double{p.top_p} * sum) return c;
  }
  return candidates_.back();
}

std::int32_t Sampler::draw(const std::optional<Candidate>& last, double u) const {
  const auto kept = [&](std::int32_t t) {
    return !last || !(*last < Candidate{values_[at(t)], t});
  };
  const auto vocab = static_cast<std::int32_t>(values_.size());
  double sum = 0;
  for (std::int32_t t = 0; t < vocab; ++t) sum += kept(t) ? values_[at(t)] : 0;
  double reached = 0;
  std::int32_t likely = 0;  // the last with any weight: where rounding leaves the sum short
  for (std::int32_t t = 0; t < vocab; ++t) {
    if (!kept(t) || values_[at(t)] == 0) continue;
    likely = t;
    reached += values_[at(t)];
    if (reached > u * sum) break;
  }
  return likely;
}

void Sampler::add_logprobs(const SampleArgs& args, SampledToken& out) {
  const double most = double{*std::max_element(args.logits.begin(), args.logits.end())};
  double sum = 0;
  for (float x : args.logits) sum += std::exp(double{x} - most);
  const double log_sum = most + std::log(sum);
  out.logprob = double{args.logits[at(out.token)]} - log_sum;
  const auto n = static_cast<std::int32_t>(*args.params->logprobs);
  if (n == 0) return;
  candidates_.clear();
  for (std::int32_t t = 0; t < std::ssize(args.logits); ++t) {
    candidates_.push_back({double{args.logits[at(t)]}, t});
  }
  std::partial_sort(candidates_.begin(), candidates_.begin() + n, candidates_.end());
  for (std::int32_t i = 0; i < n; ++i) {
    const Candidate& c = candidates_[at(i)];
    out.top.push_back({c.token, c.weight - log_sum});
  }
}

std::optional<SampledToken> Sampler::sample(const SampleArgs& args) {
  LATHE_CHECK(args.logits.size() == values_.size(), "a row of vocab logits");
  // x * 0 is 0 for finite x and NaN otherwise, and NaN stays in a sum.
  float probe = 0;
  for (float x : args.logits) probe += x * 0.0f;
  if (probe != 0) return std::nullopt;

  const SamplingParams& p = *args.params;
  SampledToken out;
  if (p.temperature == 0 && !adjusts(args)) {
    out.token = argmax(args.logits);
  } else {
    adjust(args);
    if (p.temperature == 0) {
      out.token = argmax(std::span<const double>(values_));
    } else {
      weigh(double{p.temperature});
      out.token = draw(last_kept(p), random_unit(args.seed, args.answer.size()));
    }
  }
  if (p.logprobs) add_logprobs(args, out);
  return out;
}

}  // namespace lathe
