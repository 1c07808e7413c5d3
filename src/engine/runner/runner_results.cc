// What a step samples and scores, and the results that a caller reads after collect().
#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/rows.h"
#include "engine/runner/runner.h"

namespace lathe {

// The logits of a row of all ranks' logits that is this rank's.
std::span<const float> Runner::own_logit_row(std::int64_t row) const {
  const std::int64_t vocab = model_->config().vocab;
  return {reinterpret_cast<const float*>(logits_.get()) + row / ranks_ * vocab,
          static_cast<std::size_t>(vocab)};
}

void Runner::collect_draws(const Runner& leader, std::span<const BatchItem> items) {
  Results& results = launched();
  sample_args_.clear();
  results.sampled.clear();
  results.own_of.clear();
  results.sampled_of.assign(items.size(), -1);
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i].samples.empty()) continue;
    results.sampled_of[i] = std::ssize(results.sampled);
    for (std::int64_t k = 0; k < items[i].logits; ++k) {
      const auto logit = static_cast<std::size_t>(results.first_logit[i] + k);
      add_draw(items[i].samples[static_cast<std::size_t>(k)], results.logit_of[logit]);
    }
  }
  add_scored_rows(leader, items);
  results.own.assign(results.own_of.size(), std::nullopt);
}

// Samples from a row of logits, if that is this rank's.
void Runner::add_draw(SampleArgs args, std::int64_t logit) {
  Results& results = launched();
  const std::size_t draw = results.sampled.size();
  results.sampled.emplace_back();
  if (logit % ranks_ != rank_) return;
  args.logits = own_logit_row(logit);
  if (ranks_ > 1) {
    args.place = logit;
    results.own_of.push_back(draw);
  }
  sample_args_.push_back(args);
}

// Where this rank's sampler writes.
std::span<std::optional<SampledToken>> Runner::sampled_here() {
  return ranks_ > 1 ? launched().own : launched().sampled;
}

std::int32_t Runner::drawn(std::size_t item, std::int64_t k) const {
  const Results& results = launched();
  if (ranks_ == 1) return token_of_draw(results.sampled_of[item] + k);
  return token_of_draw(results.logit_of[static_cast<std::size_t>(results.first_logit[item] + k)]);
}

void Runner::take_draws(Runner& from) {
  Results& results = from.current();
  for (std::size_t i = 0; i < results.own_of.size(); ++i) {
    current().sampled[results.own_of[i]] = std::move(results.own[i]);
  }
}

void Runner::add_non_finite(std::span<const NonFiniteItem> others) {
  for (const NonFiniteItem& bad : others) {
    const auto known = std::ranges::find_if(non_finite_, [&](const NonFiniteItem& k) {
      return k.item == bad.item && k.row == bad.row;
    });
    if (known == non_finite_.end()) {
      non_finite_.push_back(bad);
    } else {
      known->layer = std::min(known->layer, bad.layer);
    }
  }
}

// Scores a token by sampling with a bias that forces it. So every device's sampler can do it, and
// log-probabilities, which ignore the bias, have the bits that an answer's token would have.
void Runner::add_scored_rows(const Runner& leader, std::span<const BatchItem> items) {
  Results& results = launched();
  results.scored_of.assign(items.size(), 0);
  results.scored_count.assign(items.size(), 0);
  const std::span<const ScoredRow> scored = leader.scored_rows_;
  scored_params_.resize(scored.size());  // arguments point to them
  for (std::size_t k = 0; k < scored.size(); ++k) {
    const ScoredRow& s = scored[k];
    const BatchItem& item = items[s.item];
    SamplingParams& params = scored_params_[k];
    params.temperature = 0;
    params.logprobs = item.scored_top;
    params.logprob_ids.assign(item.scored_ids.begin(), item.scored_ids.end());
    params.logit_bias = {{item.scored[static_cast<std::size_t>(s.row - item.first_scored)],
                          std::numeric_limits<float>::max()}};
    if (results.scored_count[s.item]++ == 0) {
      results.scored_of[s.item] = std::ssize(results.sampled);
    }
    SampleArgs args;
    args.params = &params;
    add_draw(args, s.logit);
  }
}

std::span<const std::optional<SampledToken>> Runner::scored(std::size_t item) const {
  const Results& results = current();
  return std::span(results.sampled)
      .subspan(static_cast<std::size_t>(results.scored_of[item]),
               static_cast<std::size_t>(results.scored_count[item]));
}

std::int64_t Runner::logit_of(std::size_t item, std::int64_t k) const {
  const Results& results = current();
  LATHE_CHECK(k < results.first_logit[item + 1] - results.first_logit[item],
              "logits of a row that were not asked for");
  return results.logit_of[static_cast<std::size_t>(results.first_logit[item] + k)];
}

std::optional<SampledToken>& Runner::sampled(std::size_t item, std::int64_t k) {
  Results& results = current();
  LATHE_CHECK(results.sampled_of[item] >= 0, "no draw was asked for");
  return results.sampled[static_cast<std::size_t>(results.sampled_of[item] + k)];
}

Result<std::span<const float>> Runner::logits(std::size_t item, std::int64_t k,
                                              const OpsContext& ops) {
  const std::span<const float> row = own_logit_row(logit_of(item, k));
  if (ops.backend->memory().kind == MemoryKind::host) return row;
  read_.resize(row.size());
  auto ok = ops.backend->download(ops, reinterpret_cast<const std::byte*>(row.data()),
                                  std::as_writable_bytes(std::span(read_)));
  if (!ok) return ok.error();
  return std::span<const float>(read_);
}

}  // namespace lathe
