#include "engine/runner.h"

#include <algorithm>

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

// A segment ends where the next item would change the route of those in it or its own (E8), or
// would not fit the step.
void Runner::cut(std::span<const BatchItem> items) {
  const Plan& plan = cache_->plan();
  cuts_.clear();
  const Route* route = nullptr;
  std::int64_t first_row = 0;  // of the open segment
  std::int64_t rows = 0;       // in the open segment
  std::int64_t longest = 0;
  std::int64_t keys = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const BatchItem& item = items[i];
    const std::int64_t n = std::ssize(item.tokens);
    const std::int64_t context = item.cached + n;
    const Route* own = plan.route(item.phase, n, context);
    const bool compact = own != nullptr && own->unit == KeyUnit::ragged_row;
    const bool joins = !cuts_.empty() && items[i - 1].phase == item.phase && own == route &&
                       plan.route(item.phase, rows + n, std::max(longest, context)) == own &&
                       rows + n <= bound_.rows &&
                       static_cast<std::int64_t>(i - cuts_.back().first) < bound_.requests &&
                       (!compact || keys + context <= bound_.gather_rows);
    if (!joins) {
      first_row += rows;
      cuts_.push_back({i, i, first_row});
      route = own;
      rows = longest = keys = 0;
    }
    cuts_.back().last = i + 1;
    rows += n;
    longest = std::max(longest, context);
    keys += context;
  }
}

Result<void> Runner::plan_steps(std::span<const BatchItem> items) {
  requests_.clear();
  for (const BatchItem& item : items) {
    StepRequest& request = requests_.emplace_back();
    request.pages = item.pages;
    request.cached = item.cached;
    request.rows = static_cast<std::int32_t>(item.tokens.size());
  }
  while (steps_.size() < cuts_.size()) {
    if (auto ok = add_step(); !ok) return ok;
  }
  segments_.clear();
  for (std::size_t s = 0; s < cuts_.size(); ++s) {
    const Cut& c = cuts_[s];
    const auto part = std::span(requests_).subspan(c.first, c.last - c.first);
    if (auto ok = steps_[s].plan({items[c.first].phase, part}); !ok) return ok;
    segments_.push_back({&steps_[s].view(), c.first_row});
  }
  return {};
}

Result<void> Runner::run(std::span<const BatchItem> items, const OpsContext& ops,
                         bool find_non_finite) {
  non_finite_.clear();
  cut(items);
  if (auto ok = plan_steps(items); !ok) return ok;
  tokens_.clear();
  row_item_.clear();
  logit_rows_.clear();
  logit_of_.clear();
  for (std::size_t i = 0; i < items.size(); ++i) {
    tokens_.insert(tokens_.end(), items[i].tokens.begin(), items[i].tokens.end());
    row_item_.resize(tokens_.size(), static_cast<std::int32_t>(i));
    logit_of_.push_back(items[i].logits ? std::ssize(logit_rows_) : -1);
    if (items[i].logits) logit_rows_.push_back(static_cast<std::int32_t>(tokens_.size()) - 1);
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
