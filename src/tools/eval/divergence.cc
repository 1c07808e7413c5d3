#include "tools/eval/divergence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace lathe {
namespace {

std::ptrdiff_t most_likely(std::span<const float> logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

// log of the sum of exp(logit), in double.
double log_sum(std::span<const float> logits) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float v : logits) sum += std::exp(v - most);
  return std::log(sum) + most;
}

}  // namespace

Result<void> Divergence::fits(std::size_t rows, std::int32_t vocab) const {
  const std::size_t kept = kept_.size() / vocab_;
  if (static_cast<std::size_t>(vocab) == vocab_ && rows == kept) return {};
  return Error{ErrorCode::invalid_argument, "--reference",
               fmt::format("a model with a vocabulary of {} and {} scored tokens", vocab, rows),
               fmt::format("{} and {}", vocab_, kept), ""};
}

void Divergence::keep(std::size_t row, std::span<const float> logits) {
  std::ranges::copy(logits, kept_.begin() + static_cast<std::ptrdiff_t>(row * vocab_));
}

void Divergence::compare(std::size_t row, std::span<const float> logits) {
  const std::span<const float> wanted = std::span(kept_).subspan(row * vocab_, vocab_);
  const double p_sum = log_sum(wanted), q_sum = log_sum(logits);
  double kl = 0;
  for (std::size_t i = 0; i < vocab_; ++i) {
    const double log_p = wanted[i] - p_sum, log_q = logits[i] - q_sum;
    kl += std::exp(log_p) * (log_p - log_q);
    const double difference = std::abs(double{wanted[i]} - double{logits[i]});
    difference_ += difference;
    most_difference_ = std::max(most_difference_, difference);
  }
  kl_ += kl;
  most_kl_ = std::max(most_kl_, kl);
  same_ += most_likely(wanted) == most_likely(logits);
  ++rows_;
}

Divergence::Figures Divergence::figures() const {
  const auto rows = static_cast<double>(rows_);
  return {kl_ / rows, difference_ / (rows * static_cast<double>(vocab_))};
}

std::string Divergence::text() const {
  const Figures f = figures();
  return fmt::format(
      "{:<11} KL {:.6f} nats (at most {:.4f}), logits differ by {:.4f} (at most {:.4f}), same most "
      "likely token {:.1f} %\n",
      "reference", f.mean_kl, most_kl_, f.mean_difference, most_difference_,
      100 * static_cast<double>(same_) / static_cast<double>(rows_));
}

nlohmann::ordered_json Divergence::json() const {
  const Figures f = figures();
  return {{"tokens", rows_},
          {"kl_mean", f.mean_kl},
          {"kl_max", most_kl_},
          {"logit_difference_mean", f.mean_difference},
          {"logit_difference_max", most_difference_},
          {"same_most_likely", static_cast<double>(same_) / static_cast<double>(rows_)}};
}

}  // namespace lathe
