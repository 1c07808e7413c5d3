#include "engine/runner/ranked_runner.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/runner/or_out_of_memory.h"

namespace lathe {

Result<RankedRunner> RankedRunner::create(const RankModel& first, const OtherRanks* others,
                                          RunnerPass pass, std::span<HiddenRows* const> hidden) {
  const std::span<const RankModel> rest =
      others == nullptr ? std::span<const RankModel>() : std::span(others->models);
  LATHE_CHECK(hidden.empty() || hidden.size() == rest.size() + 1, "rows of every rank");
  const auto make = [&](const RankModel& rank, std::size_t i) {
    const Communicator* communicator = rank.ops.communicator;
    const bool records = communicator == nullptr || communicator->records();
    return Runner::create(*rank.model, *rank.cache, rank.ops.backend->replays() && records, pass,
                          hidden.empty() ? nullptr : hidden[i]);
  };
  auto runner = make(first, 0);
  if (!runner) return runner.error();
  RankedRunner out(first, others, hidden, std::move(*runner));
  for (std::size_t i = 0; i < rest.size(); ++i) {
    auto other = make(rest[i], i + 1);
    if (!other) return other.error();
    out.rest_.push_back(std::move(*other));
  }
  return out;
}

Result<void> RankedRunner::launch(std::span<const BatchItem> items, bool find_non_finite) {
  if (alone()) return first_.launch(items, ops_, find_non_finite);
  if (collects_here()) others_->group->stay_awake(true);
  Result<void> ok = or_out_of_memory([&] { return first_.describe(items, find_non_finite); });
  if (ok) {
    ok = others_->group->run_step([&](std::int32_t r) {
      return runner(r).launch_described(items, ops(r), find_non_finite, first_);
    });
  }
  if (!ok) {
    wait();  // a rank that was ahead of the one that failed has its step in flight
    return ok;
  }
  for (const Runner& other : rest_) first_.add_non_finite(other.non_finite());
  return {};
}

void RankedRunner::launch_ahead(std::span<const BatchItem> items) {
  if (alone()) return first_.launch_ahead(items, ops_);
  Result<void> described = first_.begin_ahead(ops_);
  if (described) described = or_out_of_memory([&] { return first_.describe(items, false); });
  // What fails is reported by the step's collect().
  (void)others_->group->run_step([&](std::int32_t r) -> Result<void> {
    const Result<void> begun = r == 0 ? Result<void>() : runner(r).begin_ahead(ops(r));
    runner(r).launch_described_ahead(items, ops(r), first_, described ? begun : described);
    return {};
  });
}

Result<void> RankedRunner::collect() {
  if (alone()) return first_.collect();
  auto collect = [&](std::int32_t r) { return runner(r).collect(); };
  RankGroup& group = *others_->group;
  const Result<void> ok = collects_here() ? group.run_step_here(collect) : group.run_step(collect);
  if (!ok || !in_flight()) group.stay_awake(false);
  if (!ok) return ok;
  for (Runner& other : rest_) first_.take_draws(other);
  first_.take_draws(first_);
  return {};
}

// Waiting for a host's backend may run its step, with exchanges for which other ranks must come.
bool RankedRunner::collects_here() const {
  return !alone() && ops_.backend->memory().kind == MemoryKind::device;
}

double RankedRunner::waited() const {
  double sum = first_.waited();
  if (!collects_here()) return sum;  // the ranks wait at the same time
  for (const Runner& other : rest_) sum += other.waited();
  return sum;
}

Result<std::span<const float>> RankedRunner::logits(std::size_t item, std::int64_t k) {
  if (alone()) return first_.logits(item, k, ops_);
  const std::int32_t owner = first_.rank_of(item, k);
  std::span<const float> out;
  const Result<void> ok = others_->group->run_step([&](std::int32_t r) -> Result<void> {
    if (r != owner) return {};
    const auto row = runner(r).logits(item, k, ops(r));
    if (!row) return row.error();
    out = *row;
    return {};
  });
  if (!ok) return ok.error();
  return out;
}

void RankedRunner::wait() {
  if (alone()) return;
  others_->group->stay_awake(false);
  const auto flies = [](const Runner& r) { return r.in_flight(); };
  if (!flies(first_) && std::ranges::none_of(rest_, flies)) return;
  (void)others_->group->run_step([&](std::int32_t r) -> Result<void> {
    while (runner(r).in_flight()) (void)runner(r).collect();
    return {};
  });
}

std::int32_t RankedRunner::keep_hidden(std::int64_t rows) {
  if (alone()) return hidden_.front()->keep(ops_, rows);
  std::int32_t place = 0;
  (void)others_->group->run_step([&](std::int32_t r) -> Result<void> {
    const std::int32_t kept = hidden_[static_cast<std::size_t>(r)]->keep(ops(r), rows);
    if (r == 0) place = kept;
    return {};
  });
  return place;
}

}  // namespace lathe
