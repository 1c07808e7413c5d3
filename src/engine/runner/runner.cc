#include "engine/runner/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "attn/draft_rows.h"
#include "base/check.h"
#include "engine/runner/or_out_of_memory.h"
#include "kernels/communicator.h"

namespace lathe {
namespace {

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

Result<void> Runner::make_room(std::int64_t logits, const Memory& memory) {
  if (logits <= logits_size_) return {};
  auto bytes = memory.allocate(logits * static_cast<std::int64_t>(sizeof(float)));
  if (!bytes) return bytes.error();
  logits_ = std::move(*bytes);
  logits_size_ = logits;
  return {};
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

}  // namespace lathe
