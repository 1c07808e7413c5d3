#include "engine/runner.h"

#include <algorithm>
#include <functional>

#include "base/check.h"

namespace lathe {

Result<Runner> Runner::create(const Model& model, KvCache& cache) {
  Runner out(model, cache, step_bound(cache.plan()));
  // A step each for decode rows and prefill chunks, which most batches make do with.
  for (int i = 0; i < 2; ++i) {
    if (auto ok = out.add_step(); !ok) return ok.error();
  }
  return out;
}

Result<void> Runner::add_step() {
  StepOptions options;
  options.main_pages = cache_->pools().pages();
  auto step = Step::make(cache_->plan(), options, bound_);
  if (!step) return step.error();
  steps_.push_back(std::move(*step));
  return {};
}

// A row's route follows from its own position (E8): an item with rows on both sides of a route's
// bound is cut there. Parts of a phase are put in the order of its routes, so that those of one
// route share a segment; a request's own parts stay in order, as their positions rise.
void Runner::split(std::span<const BatchItem> items) {
  const Plan& plan = cache_->plan();
  parts_.clear();
  std::size_t phase_begin = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0 && items[i].phase != items[i - 1].phase) phase_begin = parts_.size();
    BatchItem rest = items[i];
    while (!rest.tokens.empty()) {
      const std::int64_t n = std::ssize(rest.tokens);
      const Route* route = plan.route(rest.phase, n, rest.cached + std::int64_t{1});
      const bool bounded = route != nullptr && route->max_context > 0;
      const std::int64_t fit = bounded ? std::min(n, route->max_context - rest.cached) : n;
      Part part{rest, i, route};
      part.rows.tokens = rest.tokens.first(static_cast<std::size_t>(fit));
      part.rows.logits = rest.logits && fit == n;
      parts_.push_back(part);
      rest.tokens = rest.tokens.subspan(static_cast<std::size_t>(fit));
      rest.cached += static_cast<std::int32_t>(fit);
    }
    const bool phase_ends = i + 1 == items.size() || items[i + 1].phase != items[i].phase;
    if (!phase_ends) continue;
    // Routes of a phase lie in one array, in order of preference.
    std::stable_sort(parts_.begin() + static_cast<std::ptrdiff_t>(phase_begin), parts_.end(),
                     [](const Part& a, const Part& b) { return std::less<>()(a.route, b.route); });
  }
}

// A segment ends where the next part has another route, would change that of those in it, or would
// not fit the step.
void Runner::cut() {
  const Plan& plan = cache_->plan();
  cuts_.clear();
  std::int64_t first_row = 0;  // of the open segment
  std::int64_t rows = 0;       // in the open segment
  std::int64_t longest = 0;
  std::int64_t keys = 0;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const BatchItem& item = parts_[i].rows;
    const Route* own = parts_[i].route;
    const std::int64_t n = std::ssize(item.tokens);
    const std::int64_t context = item.cached + n;
    const bool compact = own != nullptr && own->unit == KeyUnit::ragged_row;
    const bool joins = !cuts_.empty() && parts_[i - 1].rows.phase == item.phase &&
                       parts_[i - 1].route == own &&
                       plan.route(item.phase, rows + n, std::max(longest, context)) == own &&
                       rows + n <= bound_.rows &&
                       static_cast<std::int64_t>(i - cuts_.back().first) < bound_.requests &&
                       (!compact || keys + context <= bound_.gather_rows);
    if (!joins) {
      first_row += rows;
      cuts_.push_back({i, i, first_row});
      rows = longest = keys = 0;
    }
    cuts_.back().last = i + 1;
    rows += n;
    longest = std::max(longest, context);
    keys += context;
  }
}

Result<void> Runner::plan_steps() {
  requests_.clear();
  for (const Part& part : parts_) {
    StepRequest& request = requests_.emplace_back();
    request.pages = part.rows.pages;
    request.cached = part.rows.cached;
    request.rows = static_cast<std::int32_t>(part.rows.tokens.size());
  }
  while (steps_.size() < cuts_.size()) {
    if (auto ok = add_step(); !ok) return ok;
  }
  segments_.clear();
  for (std::size_t s = 0; s < cuts_.size(); ++s) {
    const Cut& c = cuts_[s];
    const auto part = std::span(requests_).subspan(c.first, c.last - c.first);
    if (auto ok = steps_[s].plan({parts_[c.first].rows.phase, part}); !ok) return ok;
    segments_.push_back({&steps_[s].view(), c.first_row});
  }
  return {};
}

Result<void> Runner::run(std::span<const BatchItem> items, const OpsContext& ops,
                         bool find_non_finite) {
  non_finite_.clear();
  split(items);
  cut();
  if (auto ok = plan_steps(); !ok) return ok;
  tokens_.clear();
  row_item_.clear();
  logit_rows_.clear();
  logit_of_.assign(items.size(), -1);
  for (const Part& part : parts_) {
    const auto rows = part.rows.tokens;
    tokens_.insert(tokens_.end(), rows.begin(), rows.end());
    row_item_.resize(tokens_.size(), static_cast<std::int32_t>(part.item));
    if (!part.rows.logits) continue;
    logit_of_[part.item] = std::ssize(logit_rows_);
    logit_rows_.push_back(static_cast<std::int32_t>(tokens_.size()) - 1);
  }
  const std::int64_t vocab = model_->config().vocab;
  const std::int64_t n = std::ssize(logit_rows_);
  if (std::ssize(logits_) < n * vocab) logits_.resize(static_cast<std::size_t>(n * vocab));

  ForwardArgs args;
  args.tokens = tokens_;
  args.segments = segments_;
  args.logit_rows = logit_rows_;
  args.logits = {reinterpret_cast<std::byte*>(logits_.data()), DType::f32, n, vocab, vocab};
  args.cache = cache_;
  args.find_non_finite = find_non_finite;
  const auto result = model_->forward(ops, args);
  if (!result) return result.error();
  for (const NonFinite& bad : result->non_finite) {
    const auto item = static_cast<std::size_t>(row_item_[static_cast<std::size_t>(bad.row)]);
    non_finite_.push_back({item, bad.layer});
  }
  return {};
}

std::span<const float> Runner::logits(std::size_t item) const {
  LATHE_CHECK(logit_of_[item] >= 0, "logits that were not asked for");
  const auto vocab = static_cast<std::size_t>(model_->config().vocab);
  return std::span(logits_).subspan(static_cast<std::size_t>(logit_of_[item]) * vocab, vocab);
}

}  // namespace lathe
