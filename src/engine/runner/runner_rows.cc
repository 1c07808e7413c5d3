// The rows of a step: which tokens it has, which rows give logits, and whether it is replayed.
#include <algorithm>
#include <utility>

#include "attn/draft_rows.h"
#include "engine/runner/runner.h"

namespace lathe {
namespace {

constexpr std::int32_t kNoToken = -1;  // of padding rows

std::int64_t rows_in(std::span<const BatchItem> items) {
  std::int64_t sum = 0;
  for (const BatchItem& item : items) sum += std::ssize(item.tokens);
  return sum;
}

}  // namespace

// What every rank does in this step: rows, segments and page tables, on the host.
Result<void> Runner::describe(std::span<const BatchItem> items, bool find_non_finite) {
  Results& results = launched();
  split(items);
  cut();
  const std::int64_t padded = find_non_finite ? 0 : padded_rows(items);
  replay_ = padded > 0;
  fillers_ = replay_ ? padded - std::ssize(items) : 0;
  padding_ = replay_ ? padded - rows_in(items) : 0;
  tokens_.clear();
  row_of_.clear();
  before_.clear();
  choices_.clear();
  logit_rows_.clear();
  results.first_logit.assign(1, 0);
  for (const BatchItem& item : items) {
    results.first_logit.push_back(results.first_logit.back() + item.logits);
  }
  results.logit_of.resize(static_cast<std::size_t>(results.first_logit.back()));
  scored_rows_.clear();
  for (const RoutedRows& part : parts_) add_rows(part);
  for (std::int64_t i = 0; i < padding_; ++i) {
    logit_rows_.push_back(static_cast<std::int32_t>(tokens_.size()));
    tokens_.push_back(kNoToken);
    if (pass_ == RunnerPass::draft) before_.push_back(0);
    if (!choices_.empty()) choices_.push_back(-1);
  }
  std::sort(scored_rows_.begin(), scored_rows_.end(), [](const ScoredRow& a, const ScoredRow& b) {
    return std::pair(a.item, a.row) < std::pair(b.item, b.row);
  });
  if (pass_ == RunnerPass::forward_hidden) place_rows(items);
  return plan_steps();
}

// Adds the part's tokens, and notes which of its rows give logits.
void Runner::add_rows(const RoutedRows& part) {
  const BatchItem& item = *part.of;
  const std::int64_t before = part.cached - item.cached;  // the item's rows before the part
  const std::int64_t last = std::ssize(item.tokens) - item.logits;
  for (std::int64_t j = 0; j < std::ssize(part.tokens); ++j) {
    const std::int64_t row = before + j;
    const auto at = static_cast<std::int32_t>(std::ssize(tokens_));
    tokens_.push_back(part.tokens[static_cast<std::size_t>(j)]);
    row_of_.push_back({part.item, row});
    if (pass_ == RunnerPass::draft) before_.push_back(item.before[static_cast<std::size_t>(row)]);
    if (!item.choices.empty()) choices_.push_back(item.choices[static_cast<std::size_t>(row)]);
    if (row >= last) {
      Results& results = launched();
      results.logit_of[static_cast<std::size_t>(results.first_logit[part.item] + row - last)] =
          std::ssize(logit_rows_);
      logit_rows_.push_back(at);
    } else if (row >= item.first_scored && row < item.first_scored + std::ssize(item.scored)) {
      scored_rows_.push_back({part.item, row, std::ssize(logit_rows_)});
      logit_rows_.push_back(at);
    } else if (replay_) {
      logit_rows_.push_back(at);  // a recording computes the logits of all rows
    }
  }
}

// Finds the batch row of each item's row.
void Runner::place_rows(std::span<const BatchItem> items) {
  first_row_of_.clear();
  std::size_t rows = 0;
  for (const BatchItem& item : items) {
    first_row_of_.push_back(rows);
    rows += item.tokens.size();
  }
  rows_of_.resize(rows);
  for (std::size_t i = 0; i < row_of_.size(); ++i) {
    const RowOf& of = row_of_[i];
    rows_of_[first_row_of_[of.item] + static_cast<std::size_t>(of.row)] =
        static_cast<std::int64_t>(i);
  }
}

std::int32_t Runner::hidden(std::size_t item, std::int64_t k) const {
  if (pass_ == RunnerPass::draft) return hidden_->draft_place(logit_of(item, k));
  return hidden_->step_place(rows_of_[first_row_of_[item] + static_cast<std::size_t>(k)]);
}

// Rows of a batch after padding to one of a few sizes, if it is replayed; else 0. Only batches of
// decode rows, with or without drafts, are replayed. The batch also has this many requests: padding
// requests without rows are added, so that one recording serves any distribution of the rows among
// requests. All rows have logits, even if only a request's last one is wanted.
std::int64_t Runner::padded_rows(std::span<const BatchItem> items) const {
  if (!replays_ || cuts_.size() != 1) return 0;
  const Phase phase = items.front().phase;
  const bool decodes = std::all_of(items.begin(), items.end(), [phase](const BatchItem& item) {
    return item.phase == phase && item.phase != Phase::extend && item.scored.empty();
  });
  const auto routes = routes_of(parts_.front());
  const bool in_place = std::all_of(routes.begin(), routes.end(), [](const Route* route) {
    return route != nullptr && !route->adapter;
  });
  if (!decodes || !in_place) return 0;
  const std::int64_t n = rows_in(items);
  if (phase == Phase::verify) {
    const std::int64_t padded = padded_verify_rows(n);
    const bool fits = std::all_of(bounds_.begin(), bounds_.end(), [padded](const StepBound& b) {
      return padded <= std::min(b.requests, b.rows);
    });
    return fits ? padded : 0;
  }
  std::int64_t padded = padded_decode_rows(n);
  for (const StepBound& bound : bounds_) padded = std::min({padded, bound.requests, bound.rows});
  return padded >= n ? padded : 0;
}

}  // namespace lathe
