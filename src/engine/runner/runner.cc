#include "engine/runner/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <utility>

#include "attn/draft_rows.h"
#include "base/check.h"
#include "base/rows.h"
#include "engine/runner/or_out_of_memory.h"
#include "kernels/communicator.h"

namespace lathe {
namespace {

constexpr std::int32_t kNoToken = -1;  // of padding rows

std::int64_t rows_in(std::span<const BatchItem> items) {
  std::int64_t sum = 0;
  for (const BatchItem& item : items) sum += std::ssize(item.tokens);
  return sum;
}

Error of_rank(std::int64_t rank, Error error) {
  error.field = fmt::format("rank {}: {}", rank, error.field);
  return error;
}

}  // namespace

Result<Runner> Runner::create(const Model& model, KvCache& cache, bool replays, RunnerPass pass,
                              HiddenRows* hidden) {
  LATHE_CHECK((pass == RunnerPass::forward) == (hidden == nullptr), "a place for hidden states");
  Runner out(model, cache, replays, pass, hidden);
  std::size_t states = 0, entries = 0;
  const ModelConfig& config = model.config();
  for (std::size_t g = 0; g < cache.groups(); ++g) {
    if (pass == RunnerPass::draft && g != config.group_of(config.layers)) continue;
    out.groups_.push_back(g);
    StepBound& bound = out.bounds_.emplace_back(step_bound(cache.plan(g)));
    if (replays) {
      const std::int64_t drafted = recorded_verify_rows(bound.requests, cache.plan(g).draft_tokens);
      bound.requests = std::max(bound.requests, drafted);
      bound.rows = std::max(bound.rows, drafted);
    }
    // A draft layer has attention alone.
    const bool has_state = pass != RunnerPass::draft && cache.state(g) != nullptr;
    out.state_of_.push_back(has_state ? std::optional(states++) : std::nullopt);
    out.entries_of_.push_back(cache.entries(g) != nullptr ? std::optional(entries++)
                                                          : std::nullopt);
  }
  const Budget* activations = cache.plan().budget(BudgetKind::activations);
  if (activations != nullptr && activations->tile_rows > 0) out.tile_ = activations->tile_rows;
  // One for decode rows and one for prefill chunks: enough for most batches.
  for (int i = 0; i < 2; ++i) {
    if (auto ok = out.add_steps(); !ok) return ok.error();
  }
  return out;
}

Result<void> Runner::add_steps() {
  for (std::size_t i = 0; i < groups(); ++i) {
    const std::size_t g = groups_[i];
    StepOptions options;
    options.main_pages = cache_->pools(g).pages();
    if (const PoolGroup* entries = cache_->entries(g)) options.compressed_pages = entries->pages();
    options.fixed_strides = replays_;
    if (state_of_[i]) options.state = cache_->state(g)->shape();
    auto step = Step::make(cache_->plan(g), options, bounds_[i]);
    if (!step) return step.error();
    steps_.push_back(std::move(*step));
  }
  return {};
}

// Most rows of a segment with these routes: absorbed queries are tiled to the activations' budget.
std::int64_t Runner::most_rows(std::span<const Route* const> routes) const {
  for (std::size_t g = 0; g < routes.size(); ++g) {
    const bool absorbed = plan(g).problem.kind != ProblemKind::grouped_query &&
                          routes[g] != nullptr && routes[g]->kind != KernelKind::ragged;
    if (absorbed) return tile_;
  }
  return kNoTile;
}

// A row's routes depend on its own position only (E8). So items are cut where the route of any
// group changes, and at the ends of tiles of absorbed queries. Parts of a phase are sorted by
// route, so that equal routes share a segment. A request's parts stay in order, because later
// positions never prefer an earlier route.
void Runner::split(std::span<const BatchItem> items) {
  parts_.clear();
  routes_.clear();
  std::size_t phase_begin = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0 && items[i].phase != items[i - 1].phase) phase_begin = parts_.size();
    const BatchItem& item = items[i];
    RoutedRows part{.of = &item, .item = i, .cached = item.cached};
    for (std::span<const std::int32_t> rest = item.tokens; !rest.empty();) {
      const std::int64_t n = std::ssize(rest);
      std::int64_t fit = n;
      part.routes = routes_.size();
      for (std::size_t g = 0; g < groups(); ++g) {
        const Route* route = plan(g).route(item.phase, n, part.cached + std::int64_t{1});
        const bool bounded = route != nullptr && route->max_context > 0;
        if (bounded) fit = std::min(fit, route->max_context - part.cached);
        routes_.push_back(route);
      }
      fit = std::min(fit, most_rows(routes_of(part)));
      part.tokens = rest.first(static_cast<std::size_t>(fit));
      part.cut_after = fit < n;
      parts_.push_back(part);
      rest = rest.subspan(static_cast<std::size_t>(fit));
      part.cached += static_cast<std::int32_t>(fit);
      part.cut_before = true;
    }
    const bool phase_ends = i + 1 == items.size() || items[i + 1].phase != items[i].phase;
    if (!phase_ends) continue;
    // A phase's routes are in one array, in order of preference, so addresses can be compared.
    const auto before = [this](const RoutedRows& a, const RoutedRows& b) {
      const auto x = routes_of(a), y = routes_of(b);
      return std::lexicographical_compare(x.begin(), x.end(), y.begin(), y.end(), std::less<>());
    };
    const std::span phase = std::span(parts_).subspan(phase_begin);
    // Most often all have one route; stable_sort would allocate and copy the large parts.
    if (!std::ranges::is_sorted(phase, before)) {
      std::stable_sort(phase.begin(), phase.end(), before);
    }
  }
}

// Whether part i can join the segment of the part before it. The segment would then have `rows`
// rows, at least `least` in each part, and a longest context of `longest` keys.
bool Runner::joins(std::size_t i, std::int64_t rows, std::int64_t longest,
                   std::int64_t least) const {
  const RoutedRows& part = parts_[i];
  const Phase phase = part.of->phase;
  if (cuts_.empty() || parts_[i - 1].of->phase != phase) return false;
  const auto own = routes_of(part);
  if (!std::ranges::equal(routes_of(parts_[i - 1]), own) || rows > most_rows(own)) return false;
  for (std::size_t g = 0; g < groups(); ++g) {
    const StepBound& bound = bounds_[g];
    const bool compact = own[g] != nullptr && own[g]->unit == KeyUnit::ragged_row;
    const std::int64_t keys = part.cached + std::ssize(part.tokens);
    if (plan(g).route(phase, rows, longest, least) != own[g] || rows > bound.rows ||
        static_cast<std::int64_t>(i - cuts_.back().first) >= bound.requests ||
        (compact && keys_in_cut_ + keys > bound.gather_rows)) {
      return false;
    }
  }
  return true;
}

// Ends a segment where the next part has other routes, would change the routes of the parts in the
// segment, or does not fit the plan's bounds.
void Runner::cut() {
  cuts_.clear();
  std::int64_t first_row = 0;  // of the open segment
  std::int64_t rows = 0;       // in the open segment
  std::int64_t longest = 0;
  std::int64_t least = INT64_MAX;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const std::int64_t n = std::ssize(parts_[i].tokens);
    const std::int64_t context = parts_[i].cached + n;
    if (!joins(i, rows + n, std::max(longest, context), std::min(least, n))) {
      first_row += rows;
      cuts_.push_back({i, i, first_row});
      rows = longest = keys_in_cut_ = 0;
      least = INT64_MAX;
    }
    cuts_.back().last = i + 1;
    rows += n;
    longest = std::max(longest, context);
    least = std::min(least, n);
    keys_in_cut_ += context;
  }
}

// Turns parts into requests of a group's steps. A part that is not its item's last writes the state
// to the slot of its own last row, or, if there is none, to the item's last slot, where the next
// part reads it.
void Runner::make_requests(std::size_t i) {
  const std::size_t g = groups_[i];
  requests_.clear();
  state_lists_.clear();
  // Reserve: spans point into the lists.
  state_lists_.reserve(parts_.size());
  for (const RoutedRows& part : parts_) {
    const BatchItem& item = *part.of;
    StepRequest& request = requests_.emplace_back();
    request.pages = item.pages[g];
    request.cached = part.cached;
    request.rows = static_cast<std::int32_t>(part.tokens.size());
    if (entries_of_[i]) request.compressed_pages = item.entries[*entries_of_[i]];
    if (!state_of_[i]) continue;
    request.state_slots = item.states[*state_of_[i]];
    request.state_before = item.states_before[*state_of_[i]];
    const std::int64_t slot_tokens = cache_->state(g)->shape().page_size;
    const auto place = [&](std::int64_t position) {
      return static_cast<std::size_t>(position / slot_tokens);
    };
    const auto slot_of = [&](std::int64_t position) {
      const PageId own = request.state_slots[place(position)];
      return own.is_hole() ? request.state_slots.back() : own;
    };
    if (part.cut_before) request.state_before = slot_of(part.cached - 1);
    if (!part.cut_after) continue;
    const std::int64_t last = std::int64_t{part.cached} + request.rows - 1;
    const PageId left = slot_of(last);
    state_lists_.emplace_back(request.state_slots.begin(), request.state_slots.end());
    state_lists_.back()[place(last)] = left;
    request.state_slots = state_lists_.back();
  }
}

// Fills views_ from the parts.
Result<void> Runner::plan_steps() {
  while (steps_.size() < cuts_.size() * groups()) {
    if (auto ok = add_steps(); !ok) return ok;
  }
  views_.resize(cuts_.size() * groups());
  for (std::size_t g = 0; g < groups(); ++g) {
    make_requests(g);
    for (std::size_t s = 0; s < cuts_.size(); ++s) {
      const SegmentRange& c = cuts_[s];
      const std::size_t at = s * groups() + g;
      Step& step = steps_[at];
      if (replay_) {
        StepRequest filler;
        filler.padding = true;
        requests_.resize(c.last + static_cast<std::size_t>(fillers_), filler);
        for (std::int64_t i = 0; i < padding_; ++i) {
          requests_[c.last + static_cast<std::size_t>(i)].rows = 1;
        }
      }
      const std::size_t last = replay_ ? requests_.size() : c.last;
      const auto part = std::span(requests_).subspan(c.first, last - c.first);
      if (auto ok = step.plan({parts_[c.first].of->phase, part}); !ok) return ok;
      views_[at] = step.view();
      count_keys(views_[at], plan(g));
      if (replay_) even_out(views_[at]);
    }
  }
  return {};
}

// Gives the views to this rank's backend.
Result<void> Runner::prepare_steps(const Runner& leader, const OpsContext& ops) {
  while (prepared_.size() < leader.views_.size()) prepared_.emplace_back(ops.backend->memory());
  segments_.clear();
  for (std::size_t g = 0; g < groups(); ++g) {
    const std::int32_t layer = cache_->plan().groups[groups_[g]].group.layers.front();
    for (std::size_t s = 0; s < leader.cuts_.size(); ++s) {
      const std::size_t at = s * groups() + g;
      if (auto ok = ops.backend->prepare_step(ops, plan(g), cache_->keys(layer), leader.views_[at],
                                              prepared_[at]);
          !ok) {
        return ok;
      }
      segments_.push_back({&prepared_[at].view, leader.cuts_[s].first_row});
    }
  }
  return {};
}

Result<void> Runner::launch(std::span<const BatchItem> items, const OpsContext& ops,
                            bool find_non_finite) {
  LATHE_CHECK(!in_flight(), "launch_ahead() follows a step in flight");
  return launched_as(start(items, ops, find_non_finite), ops);
}

Result<void> Runner::launch_described(std::span<const BatchItem> items, const OpsContext& ops,
                                      bool find_non_finite, const Runner& leader) {
  LATHE_CHECK(!in_flight(), "launch_ahead() follows a step in flight");
  return launched_as(start_described(items, ops, find_non_finite, leader, {}), ops);
}

Result<void> Runner::launched_as(const Result<void>& started, const OpsContext& ops) {
  if (!started) {
    (void)ops.backend->wait();  // for the work that has been started
    return started;
  }
  launched().started = {};
  current_ = newest_;
  flight_.reset(ops.backend);
  return {};
}

void Runner::launch_ahead(std::span<const BatchItem> items, const OpsContext& ops) {
  const Result<void> ready = begin_ahead(ops);
  launched().started = ready ? start(items, ops, false) : ready;
}

Result<void> Runner::begin_ahead(const OpsContext& ops) {
  LATHE_CHECK(in_flight() && !in_flight_ahead(), "a step ahead follows one in flight");
  Result<void> ready = ops.backend->begin_next_step();
  newest_ = 1 - newest_;
  ahead_.reset(ops.backend);
  return ready;
}

void Runner::launch_described_ahead(std::span<const BatchItem> items, const OpsContext& ops,
                                    const Runner& leader, const Result<void>& ready) {
  launched().started = start_described(items, ops, false, leader, ready);
}

Result<void> Runner::start(std::span<const BatchItem> items, const OpsContext& ops,
                           bool find_non_finite) {
  ForwardArgs args;
  if (auto ok = describe(items, find_non_finite); !ok) return ok;
  if (auto ok = prepare(*this, items, ops, find_non_finite, args); !ok) return ok;
  return run(*this, ops, args);
}

// All ranks run the step or none: what can fail on a host has been done on all of them before the
// first launches an operator, because an exchange that only some reach never ends.
Result<void> Runner::start_described(std::span<const BatchItem> items, const OpsContext& ops,
                                     bool find_non_finite, const Runner& leader,
                                     Result<void> ready) {
  ForwardArgs args;
  communicator_ = ops.communicator;
  rank_ = communicator_->rank();
  ranks_ = communicator_->size();
  if (ready) {
    ready = or_out_of_memory([&] { return prepare(leader, items, ops, find_non_finite, args); });
  }
  if (auto ok = communicator_->agree(ready, step_key(leader)); !ok) return ok;
  Result<void> ok = run(leader, ops, args);
  if (!ok) communicator_->abort(of_rank(rank_, ok.error()));
  return ok;
}

// What must be equal on all ranks that launch a step.
std::uint64_t Runner::step_key(const Runner& leader) const {
  std::uint64_t key = 0;
  for (const auto v :
       {leader.tokens_.size(), leader.logit_rows_.size(), leader.cuts_.size(), segments_.size(),
        static_cast<std::size_t>(leader.replay_), static_cast<std::size_t>(pass_)}) {
    key = (key ^ v) * 0x9e3779b97f4a7c15u;
    key ^= key >> 29;
  }
  return key;
}

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

// This rank's part: its backend's lists, its rows of logits and its draws.
Result<void> Runner::prepare(const Runner& leader, std::span<const BatchItem> items,
                             const OpsContext& ops, bool find_non_finite, ForwardArgs& args) {
  non_finite_.clear();
  if (&leader != this) {
    launched().first_logit = leader.launched().first_logit;
    launched().logit_of = leader.launched().logit_of;
  }
  const bool replay = leader.replay_;
  const std::int64_t vocab = model_->config().vocab;
  const std::int64_t n = std::ssize(leader.logit_rows_);
  // Recordings hold the address of the logits, so allocate for the largest batch at once.
  const std::int64_t room = replays_ ? std::max(n, bounds_.front().requests) : n;
  if (auto ok = make_room(own_rows(room) * vocab, ops.backend->memory()); !ok) return ok;

  const auto tokens = ops.backend->prepare_list(ops, leader.tokens_);
  if (!tokens) return tokens.error();
  const auto logit_rows = ops.backend->prepare_list(ops, leader.logit_rows_);
  if (!logit_rows) return logit_rows.error();
  if (pass_ == RunnerPass::draft) {
    const auto before = ops.backend->prepare_list(ops, leader.before_);
    if (!before) return before.error();
    args.before_rows = *before;
    args.before = hidden_->all();
    args.hidden = hidden_->drafts(n);
    args.choices = hidden_->choices();
    const auto choices = ops.backend->prepare_list(ops, leader.choices_);
    if (!choices) return choices.error();
    args.choice_rows = *choices;
  } else if (hidden_ != nullptr) {
    args.hidden = hidden_->step(std::ssize(leader.tokens_));
  }
  if (auto ok = prepare_steps(leader, ops); !ok) return ok;
  // Sampling comes last: its lists vary in length, and a recording needs the other lists at the
  // same addresses.
  collect_draws(leader, items);
  if (auto ok = ops.backend->prepare_draws(ops, sample_args_, sampled_here(),
                                           replay ? own_rows(n) : std::ssize(sample_args_));
      !ok) {
    return ok;
  }
  if (auto ok = copies_.run(items, groups_, *cache_, ops); !ok) return ok;
  // Once a step has used tokens that its predecessor was still sampling, all recorded decode steps
  // read tokens that way, so that they share recordings.
  follows_ = follows_ || in_flight();
  const bool decodes = items.front().phase == Phase::decode;
  if (in_flight() || (follows_ && replay && decodes)) {
    if (auto ok = ops.backend->take_drawn(ops, *tokens); !ok) return ok;
  }
  args.tokens = *tokens;
  args.segments = segments_;
  args.logit_rows = *logit_rows;
  args.logits = {logits_.get(), DType::f32, own_rows(n), vocab, vocab};
  args.cache = cache_;
  args.find_non_finite = find_non_finite;
  return {};
}

Result<void> Runner::run(const Runner& leader, const OpsContext& ops, const ForwardArgs& args) {
  const auto forward = [&]() -> Result<void> {
    if (pass_ == RunnerPass::draft) return model_->forward_draft(ops, args);
    const auto result = model_->forward(ops, args);
    if (!result) return result.error();
    for (const NonFinite& bad : result->non_finite) {
      const RowOf& of = leader.row_of_[static_cast<std::size_t>(bad.row)];
      non_finite_.push_back({of.item, of.row, bad.layer});
    }
    return {};
  };
  const auto work = [&]() -> Result<void> {
    if (auto ok = forward(); !ok) return ok;
    if (!sample_args_.empty()) sample(ops, sample_args_, sampled_here());
    const bool shares = ranks_ > 1 && !launched().sampled.empty();
    if (shares) ops.backend->share_draws(ops, std::ssize(args.logit_rows));
    return {};
  };
  return leader.replay_ ? ops.backend->replay(ops, replay_key(args), work) : work();
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

void Runner::count_keys(const StepView& view, const Plan& plan) {
  if (view.phase == Phase::extend) return;
  const PrefixSavings& saved = view.prefix_savings;
  key_reads_.attended += plan.layers * view.total_context;
  key_reads_.shared += plan.layers * (saved.shared_keys - saved.read_keys);
}

// Rounds up the bounds from which kernels compute their launch sizes, so that many batches share a
// recording.
void Runner::even_out(StepView& view) const {
  view.max_context = padded_context(view.max_context);
  view.total_context = 0;
  if (view.phase == Phase::verify) view.max_rows = 1 + cache_->plan().draft_tokens();
  if (view.selecting_rows > 0) view.selecting_rows = view.rows;
}

// A recording's key: a hash of everything that a forward pass and its schedules read on the host,
// and of all addresses that may change.
std::uint64_t Runner::replay_key(const ForwardArgs& args) const {
  std::uint64_t key = 0;
  const auto add = [&](std::uint64_t v) {
    key = (key ^ v) * 0x9e3779b97f4a7c15u;
    key ^= key >> 29;
  };
  const auto address = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p); };
  add(static_cast<std::uint64_t>(pass_));
  add(static_cast<std::uint64_t>(args.logits.rows));
  add(address(args.logits.data));
  add(address(args.tokens.data()));
  add(address(args.logit_rows.data()));
  add(address(args.before_rows.data()));
  add(address(args.choice_rows.data()));
  for (const Segment& s : args.segments) {
    const StepView& v = *s.step;
    add(address(v.route));
    add(static_cast<std::uint64_t>(v.rows));
    add(static_cast<std::uint64_t>(v.requests));
    add(static_cast<std::uint64_t>(v.max_rows));
    add(static_cast<std::uint64_t>(v.max_context));
    add(static_cast<std::uint64_t>(v.selecting_rows));
    add(address(v.positions.data()));
    add(address(v.page_table.data));
    add(static_cast<std::uint64_t>(v.prefixes.size));
    add(address(v.prefixes.lists.data()));
  }
  return key;
}

Result<void> Runner::make_room(std::int64_t logits, const Memory& memory) {
  if (logits <= logits_size_) return {};
  auto bytes = memory.allocate(logits * static_cast<std::int64_t>(sizeof(float)));
  if (!bytes) return bytes.error();
  logits_ = std::move(*bytes);
  logits_size_ = logits;
  return {};
}

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

Result<void> Runner::collect() {
  LATHE_CHECK(in_flight(), "collect() needs a launched step");
  current_ = in_flight_ahead() ? 1 - newest_ : newest_;
  const auto start = std::chrono::steady_clock::now();
  const Result<void> done = flight_.release()->wait();
  waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  flight_ = std::move(ahead_);
  // Other ranks wait for exchanges that this one's failed step did not reach.
  if (!done && communicator_ != nullptr) communicator_->abort(of_rank(rank_, done.error()));
  return done ? current().started : done;
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
