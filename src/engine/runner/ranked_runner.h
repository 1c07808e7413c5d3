// RankedRunner: a Runner on every rank of a model. All run the same batches, each with its share of
// the weights, and rank 0's holds the results of all. Without other ranks it is a Runner.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/runner/rank_group.h"
#include "engine/runner/runner.h"

namespace lathe {

/// A model on one rank: what its runner computes with.
struct RankModel {
  const Model* model = nullptr;
  KvCache* cache = nullptr;
  OpsContext ops;  // with the rank's communicator
};

/// The ranks of a model after the first, which the engine has itself.
struct OtherRanks {
  RankGroup* group = nullptr;
  std::vector<RankModel> models;  // [ranks - 1]
};

class RankedRunner {
 public:
  /// As Runner::create(), with what rank 0 has; `others`, null if there are none, must outlive it.
  /// hidden: of every rank, [ranks], or empty.
  static Result<RankedRunner> create(const RankModel& first, const OtherRanks* others,
                                     RunnerPass pass = RunnerPass::forward,
                                     std::span<HiddenRows* const> hidden = {});
  RankedRunner(RankedRunner&&) = default;
  RankedRunner& operator=(RankedRunner&&) = default;
  /// Waits for steps in flight.
  ~RankedRunner() { wait(); }

  // As Runner's. A failed launch() or collect() has failed on all ranks. Errors of collect() after
  // which no step can run (a rank's device has failed) name the rank.
  Result<void> launch(std::span<const BatchItem> items, bool find_non_finite);
  void launch_ahead(std::span<const BatchItem> items);
  Result<void> collect();
  double waited() const;
  const KeyReads& key_reads() const { return first_.key_reads(); }
  bool in_flight() const { return first_.in_flight(); }
  bool in_flight_ahead() const { return first_.in_flight_ahead(); }
  std::int32_t drawn(std::size_t item, std::int64_t k) const { return first_.drawn(item, k); }
  Result<std::span<const float>> logits(std::size_t item, std::int64_t k);
  std::optional<SampledToken>& sampled(std::size_t item, std::int64_t k) {
    return first_.sampled(item, k);
  }
  std::span<const std::optional<SampledToken>> scored(std::size_t item) const {
    return first_.scored(item);
  }
  std::span<const NonFiniteItem> non_finite() const { return first_.non_finite(); }
  std::int32_t hidden(std::size_t item, std::int64_t k) const { return first_.hidden(item, k); }
  std::int32_t choice(std::size_t item, std::int64_t k) const { return first_.choice(item, k); }

  /// HiddenRows::keep() on all ranks.
  std::int32_t keep_hidden(std::int64_t rows);

 private:
  RankedRunner(const RankModel& first, const OtherRanks* others,
               std::span<HiddenRows* const> hidden, Runner runner)
      : ops_(first.ops),
        others_(others),
        hidden_(hidden.begin(), hidden.end()),
        first_(std::move(runner)) {}
  Runner& runner(std::int32_t rank) {
    return rank == 0 ? first_ : rest_[static_cast<std::size_t>(rank - 1)];
  }
  const OpsContext& ops(std::int32_t rank) const {
    return rank == 0 ? ops_ : others_->models[static_cast<std::size_t>(rank - 1)].ops;
  }
  bool alone() const { return others_ == nullptr; }
  bool collects_here() const;
  void wait();

  OpsContext ops_;
  const OtherRanks* others_;         // null: none
  std::vector<HiddenRows*> hidden_;  // [ranks], or empty
  std::vector<Runner> rest_;         // [ranks - 1]
  Runner first_;
};

}  // namespace lathe
