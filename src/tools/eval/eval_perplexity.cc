// Scores the likelihood of a given text through the prefill and decode kernels of a plan.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tools/eval/eval_run.h"
#include "tools/terminal/answer.h"

namespace lathe {
namespace {

constexpr double kSigmas = 1.959963984540054;  // of 95 %

struct Spread {
  double mean = 0;
  double error = 0;  // standard error of the mean
};

Spread spread(std::span<const double> values) {
  const auto n = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const double v : values) sum += v;
  const double mean = sum / n;
  for (const double v : values) squares += (v - mean) * (v - mean);
  return {mean, values.size() > 1 ? std::sqrt(squares / (n - 1) / n) : 0};
}

// -log of the token's share of the softmax, in double.
double nats_of(std::span<const float> logits, std::int32_t token) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float v : logits) sum += std::exp(v - most);
  return std::log(sum) + most - logits[static_cast<std::size_t>(token)];
}

}  // namespace

double TextScore::perplexity() const { return std::exp(spread(nats).mean); }

Interval TextScore::interval() const {
  const Spread s = spread(nats);
  return {std::exp(s.mean - kSigmas * s.error), std::exp(s.mean + kSigmas * s.error)};
}

ScoreDifference difference(const TextScore& a, const TextScore& b) {
  LATHE_CHECK(a.nats.size() == b.nats.size(), "scores of one text");
  std::vector<double> each(a.nats.size());
  for (std::size_t i = 0; i < each.size(); ++i) each[i] = a.nats[i] - b.nats[i];
  const Spread s = spread(each);
  return {s.mean, {s.mean - kSigmas * s.error, s.mean + kSigmas * s.error}};
}

nlohmann::ordered_json score_json(const TextScore& score) {
  const Interval i = score.interval();
  return {{"tokens", score.nats.size()},
          {"perplexity", score.perplexity()},
          {"interval_95", {i.low, i.high}}};
}

Result<void> Evaluator::check_window(std::int64_t window) const {
  const std::int64_t most = runtime_->engine().capacity();
  if (window <= most) return {};
  return Error{ErrorCode::out_of_range, "--window",
               fmt::format("at most {}, the tokens that context and cache hold", most),
               fmt::format("{}", window), "--context-length and --max-total-tokens"};
}

std::size_t Evaluator::scored_tokens(std::size_t tokens, std::int64_t window) const {
  constexpr std::int64_t kWindow = 1024;
  if (window == 0) window = std::min(kWindow, runtime_->engine().capacity());
  const std::size_t most = std::min(static_cast<std::size_t>(window), tokens);
  return tokens - std::max<std::size_t>(1, most / 2);
}

Result<TextScore> Evaluator::score(
    std::span<const std::int32_t> tokens, std::int64_t window,
    const std::function<void(std::size_t, std::span<const float>)>& on_row) {
  if (tokens.size() < 2) {
    return Error{ErrorCode::invalid_argument, "--perplexity", "a text of at least two tokens",
                 std::to_string(tokens.size()), ""};
  }
  if (const auto ok = check_window(window); !ok) return ok.error();
  const std::size_t scores = scored_tokens(tokens.size(), window);
  const std::size_t half = tokens.size() - scores;

  TextScore out;
  out.nats.assign(scores, 0);
  AnswerSet answers(*runtime_, *tokenizer_);
  std::vector<std::size_t> next;  // [windows] place of the next scored token in the text
  for (std::size_t at = half; at < tokens.size(); at += half) {
    const std::size_t n = std::min(half, tokens.size() - at);
    Request request;
    request.prompt.assign(tokens.begin() + static_cast<std::ptrdiff_t>(at - half),
                          tokens.begin() + static_cast<std::ptrdiff_t>(at));
    request.forced.assign(tokens.begin() + static_cast<std::ptrdiff_t>(at),
                          tokens.begin() + static_cast<std::ptrdiff_t>(at + n));
    request.sampling.temperature = 0;
    const auto added = answers.add(std::move(request), {});
    if (!added) return added.error();
    next.push_back(at);
  }
  on_logits_ = [&](RequestId id, std::span<const float> logits) {
    const auto i = answers.index_of(id);
    if (!i) return;
    const std::size_t at = next[*i]++;
    out.nats[at - half] = nats_of(logits, tokens[at]);
    if (on_row) on_row(at - half, logits);
  };
  Result<void> ok;
  while (ok && !answers.done()) ok = answers.step({});
  on_logits_ = nullptr;
  if (!ok) return ok.error();
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (answers.answer(i).finished.error) return *answers.answer(i).finished.error;
  }
  return out;
}

}  // namespace lathe
