#include "engine/runner.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "base/check.h"

namespace lathe {

Result<Runner> Runner::create(const Model& model, KvCache& cache) {
  Runner out(model, cache);
  std::size_t states = 0;
  for (std::size_t g = 0; g < cache.groups(); ++g) {
    out.bounds_.push_back(step_bound(cache.plan(g)));
    out.state_of_.push_back(cache.state(g) != nullptr ? std::optional(states++) : std::nullopt);
  }
  const Budget* activations = cache.plan().budget(BudgetKind::activations);
  if (activations != nullptr && activations->tile_rows > 0) out.tile_ = activations->tile_rows;
  // Steps for decode rows and for prefill chunks, which most batches make do with.
  for (int i = 0; i < 2; ++i) {
    if (auto ok = out.add_steps(); !ok) return ok.error();
  }
  return out;
}

Result<void> Runner::add_steps() {
  for (std::size_t g = 0; g < groups(); ++g) {
    StepOptions options;
    options.main_pages = cache_->pools(g).pages();
    if (const StatePool* state = cache_->state(g)) options.state = state->shape();
    auto step = Step::make(cache_->plan(g), options, bounds_[g]);
    if (!step) return step.error();
    steps_.push_back(std::move(*step));
  }
  return {};
}

// Rows of one segment whose routes these are: absorbed queries are tiled to the activations'
// budget.
std::int64_t Runner::most_rows(std::span<const Route* const> routes) const {
  for (std::size_t g = 0; g < routes.size(); ++g) {
    const bool absorbed = cache_->plan(g).problem.kind != ProblemKind::grouped_query &&
                          routes[g] != nullptr && routes[g]->kind != KernelKind::ragged;
    if (absorbed) return tile_;
  }
  return kNoTile;
}

// A row's routes follow from its own position (E8): an item with rows on both sides of a route's
// bound, in any group, is cut there, and where a tile of absorbed queries ends. Parts of a phase
// are put in the order of its routes, so that those of equal routes share a segment; a request's
// own parts stay in order, as their positions rise.
void Runner::split(std::span<const BatchItem> items) {
  parts_.clear();
  routes_.clear();
  std::size_t phase_begin = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0 && items[i].phase != items[i - 1].phase) phase_begin = parts_.size();
    BatchItem rest = items[i];
    while (!rest.tokens.empty()) {
      const std::int64_t n = std::ssize(rest.tokens);
      std::int64_t fit = n;
      Part part{rest, i, routes_.size(), rest.cached > items[i].cached, false};
      for (std::size_t g = 0; g < groups(); ++g) {
        const Route* route = cache_->plan(g).route(rest.phase, n, rest.cached + std::int64_t{1});
        const bool bounded = route != nullptr && route->max_context > 0;
        if (bounded) fit = std::min(fit, route->max_context - rest.cached);
        routes_.push_back(route);
      }
      fit = std::min(fit, most_rows(routes_of(part)));
      part.rows.tokens = rest.tokens.first(static_cast<std::size_t>(fit));
      part.rows.logits = rest.logits && fit == n;
      part.cut_after = fit < n;
      parts_.push_back(part);
      rest.tokens = rest.tokens.subspan(static_cast<std::size_t>(fit));
      rest.cached += static_cast<std::int32_t>(fit);
    }
    const bool phase_ends = i + 1 == items.size() || items[i + 1].phase != items[i].phase;
    if (!phase_ends) continue;
    // Routes of a phase lie in one array, in order of preference.
    std::stable_sort(parts_.begin() + static_cast<std::ptrdiff_t>(phase_begin), parts_.end(),
                     [this](const Part& a, const Part& b) {
                       const auto x = routes_of(a), y = routes_of(b);
                       return std::lexicographical_compare(x.begin(), x.end(), y.begin(), y.end(),
                                                           std::less<>());
                     });
  }
}

// Whether part i can follow the one before it in a segment that has `rows` rows and a longest
// context of `longest` keys by then.
bool Runner::joins(std::size_t i, std::int64_t rows, std::int64_t longest) const {
  const Part& part = parts_[i];
  if (cuts_.empty() || parts_[i - 1].rows.phase != part.rows.phase) return false;
  const auto own = routes_of(part);
  if (!std::ranges::equal(routes_of(parts_[i - 1]), own) || rows > most_rows(own)) return false;
  for (std::size_t g = 0; g < groups(); ++g) {
    const StepBound& bound = bounds_[g];
    const bool compact = own[g] != nullptr && own[g]->unit == KeyUnit::ragged_row;
    const std::int64_t keys = part.rows.cached + std::ssize(part.rows.tokens);
    if (cache_->plan(g).route(part.rows.phase, rows, longest) != own[g] || rows > bound.rows ||
        static_cast<std::int64_t>(i - cuts_.back().first) >= bound.requests ||
        (compact && keys_in_cut_ + keys > bound.gather_rows)) {
      return false;
    }
  }
  return true;
}

// A segment ends where the next part has other routes, would change those of the parts in it, or
// would not fit the steps.
void Runner::cut() {
  cuts_.clear();
  std::int64_t first_row = 0;  // of the open segment
  std::int64_t rows = 0;       // in the open segment
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const BatchItem& item = parts_[i].rows;
    const std::int64_t n = std::ssize(item.tokens);
    const std::int64_t context = item.cached + n;
    if (!joins(i, rows + n, std::max(longest, context))) {
      first_row += rows;
      cuts_.push_back({i, i, first_row});
      rows = longest = keys_in_cut_ = 0;
    }
    cuts_.back().last = i + 1;
    rows += n;
    longest = std::max(longest, context);
    keys_in_cut_ += context;
  }
}

// The parts as requests of a group's steps. A part that is not its item's last leaves the state
// where the last one will: in the last slot, unless it has one of its own.
void Runner::make_requests(std::size_t g) {
  requests_.clear();
  state_lists_.clear();
  // Spans point into the lists, which must not move.
  state_lists_.reserve(parts_.size());
  for (const Part& part : parts_) {
    const BatchItem& item = part.rows;
    StepRequest& request = requests_.emplace_back();
    request.pages = item.pages[g];
    request.cached = item.cached;
    request.rows = static_cast<std::int32_t>(item.tokens.size());
    if (!state_of_[g]) continue;
    request.state_slots = item.states[*state_of_[g]];
    request.state_before = item.states_before[*state_of_[g]];
    const std::int64_t slot_tokens = cache_->state(g)->shape().page_size;
    const auto place = [&](std::int64_t position) {
      return static_cast<std::size_t>(position / slot_tokens);
    };
    const auto slot_of = [&](std::int64_t position) {
      const PageId own = request.state_slots[place(position)];
      return own.is_hole() ? request.state_slots.back() : own;
    };
    if (part.cut_before) request.state_before = slot_of(item.cached - 1);
    if (!part.cut_after) continue;
    const std::int64_t last = std::int64_t{item.cached} + request.rows - 1;
    const PageId left = slot_of(last);
    state_lists_.emplace_back(request.state_slots.begin(), request.state_slots.end());
    state_lists_.back()[place(last)] = left;
    request.state_slots = state_lists_.back();
  }
}

Result<void> Runner::plan_steps(const OpsContext& ops) {
  while (steps_.size() < cuts_.size() * groups()) {
    if (auto ok = add_steps(); !ok) return ok;
  }
  while (prepared_.size() < steps_.size()) prepared_.emplace_back(ops.backend->memory());
  segments_.clear();
  for (std::size_t g = 0; g < groups(); ++g) {
    make_requests(g);
    for (std::size_t s = 0; s < cuts_.size(); ++s) {
      const Cut& c = cuts_[s];
      const std::size_t at = s * groups() + g;
      Step& step = steps_[at];
      const auto part = std::span(requests_).subspan(c.first, c.last - c.first);
      if (auto ok = step.plan({parts_[c.first].rows.phase, part}); !ok) return ok;
      const std::int32_t layer = cache_->plan().groups[g].group.layers.front();
      if (auto ok = ops.backend->prepare_step(ops, cache_->plan(g), cache_->main(layer),
                                              step.view(), prepared_[at]);
          !ok) {
        return ok;
      }
      segments_.push_back({&prepared_[at].view, c.first_row});
    }
  }
  return {};
}

Result<void> Runner::launch(std::span<const BatchItem> items, const OpsContext& ops,
                            bool find_non_finite) {
  LATHE_CHECK(!in_flight(), "one step at a time");
  non_finite_.clear();
  split(items);
  cut();
  if (auto ok = plan_steps(ops); !ok) return ok;
  tokens_.clear();
  row_item_.clear();
  logit_rows_.clear();
  logit_of_.assign(items.size(), -1);
  scored_rows_.clear();
  for (const Part& part : parts_) {
    const auto rows = part.rows.tokens;
    const BatchItem& item = items[part.item];
    for (std::int64_t j = 0; !item.scored.empty() && j < std::ssize(rows); ++j) {
      const std::int64_t row = part.rows.cached - item.cached + j;
      if (row < item.first_scored || row >= item.first_scored + std::ssize(item.scored)) continue;
      scored_rows_.push_back({part.item, row, std::ssize(logit_rows_)});
      logit_rows_.push_back(static_cast<std::int32_t>(std::ssize(tokens_) + j));
    }
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
  if (!result) {
    (void)ops.backend->wait();  // for what it had started
    return result.error();
  }
  for (const NonFinite& bad : result->non_finite) {
    const auto item = static_cast<std::size_t>(row_item_[static_cast<std::size_t>(bad.row)]);
    non_finite_.push_back({item, bad.layer});
  }
  sample_rows(items, ops);
  flight_.reset(ops.backend);
  return {};
}

void Runner::sample_rows(std::span<const BatchItem> items, const OpsContext& ops) {
  sample_args_.clear();
  sampled_of_.assign(items.size(), -1);
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!items[i].logits || items[i].sample.params == nullptr) continue;
    sampled_of_[i] = std::ssize(sample_args_);
    sample_args_.push_back(items[i].sample);
    sample_args_.back().logits = logits(i);
  }
  add_scored_rows(items);
  sampled_.assign(sample_args_.size(), std::nullopt);
  if (!sample_args_.empty()) sample(ops, sample_args_, sampled_);
}

// A draw that a bias decides: its token is the wanted one, and log-probabilities are those of the
// model's own distribution, the same bits as an answer's.
void Runner::add_scored_rows(std::span<const BatchItem> items) {
  std::sort(scored_rows_.begin(), scored_rows_.end(), [](const ScoredRow& a, const ScoredRow& b) {
    return std::pair(a.item, a.row) < std::pair(b.item, b.row);
  });
  scored_of_.assign(items.size(), 0);
  scored_count_.assign(items.size(), 0);
  scored_params_.resize(scored_rows_.size());  // arguments point to them
  const auto vocab = static_cast<std::size_t>(model_->config().vocab);
  for (std::size_t k = 0; k < scored_rows_.size(); ++k) {
    const ScoredRow& s = scored_rows_[k];
    const BatchItem& item = items[s.item];
    SamplingParams& params = scored_params_[k];
    params.temperature = 0;
    params.logprobs = item.scored_top;
    params.logit_bias = {{item.scored[static_cast<std::size_t>(s.row - item.first_scored)],
                          std::numeric_limits<float>::max()}};
    if (scored_count_[s.item]++ == 0) scored_of_[s.item] = std::ssize(sample_args_);
    SampleArgs args;
    args.params = &params;
    args.logits = std::span(logits_).subspan(static_cast<std::size_t>(s.logit) * vocab, vocab);
    sample_args_.push_back(args);
  }
}

std::span<const std::optional<SampledToken>> Runner::scored(std::size_t item) const {
  return std::span(sampled_).subspan(static_cast<std::size_t>(scored_of_[item]),
                                     static_cast<std::size_t>(scored_count_[item]));
}

Result<void> Runner::collect() {
  LATHE_CHECK(in_flight(), "a step to collect");
  return flight_.release()->wait();
}

std::optional<SampledToken>& Runner::sampled(std::size_t item) {
  LATHE_CHECK(sampled_of_[item] >= 0, "a draw that was not asked for");
  return sampled_[static_cast<std::size_t>(sampled_of_[item])];
}

std::span<const float> Runner::logits(std::size_t item) const {
  LATHE_CHECK(logit_of_[item] >= 0, "logits that were not asked for");
  const auto vocab = static_cast<std::size_t>(model_->config().vocab);
  return std::span(logits_).subspan(static_cast<std::size_t>(logit_of_[item]) * vocab, vocab);
}

}  // namespace lathe
