// Runner: runs a batch and samples its tokens. It cuts the batch into segments, plans a Step for
// each segment and layer group, and runs the model once over all rows.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "attn/phase.h"
#include "base/enum.h"
#include "base/result.h"
#include "engine/runner/batch_item.h"
#include "engine/runner/cached_copies.h"
#include "model/cache.h"
#include "model/layers/hidden_rows.h"
#include "model/model.h"
#include "ops/sampling.h"
#include "step/step.h"

namespace lathe {

/// forward           the model's pass
/// forward_hidden    the model's pass; writes the head's input of every row to HiddenRows
/// draft             the draft layer's pass, in its group only; writes it for rows with logits
#define LATHE_RUNNER_PASSES(X) X(forward) X(forward_hidden) X(draft)
LATHE_ENUM(RunnerPass, LATHE_RUNNER_PASSES)

/// An item's row with NaN or Inf, and the layer after which it appeared (as in NonFinite).
struct NonFiniteItem {
  std::size_t item = 0;
  std::int64_t row = 0;
  std::int32_t layer = 0;
};

/// Keys that requests attend to, counted for each request and layer, and how many of them were not
/// read because the read of another request served (attn/shared_prefixes.h).
struct KeyReads {
  std::int64_t attended = 0;
  std::int64_t shared = 0;
};

class Runner {
 public:
  /// Model, cache and `hidden` must outlive it. `replays`: the backend replays recordings; decode
  /// and verify steps are then padded to a few sizes. `hidden`: required by passes other than
  /// `forward`, which write to it. Errors: Step::make()'s.
  static Result<Runner> create(const Model& model, KvCache& cache, bool replays = false,
                               RunnerPass pass = RunnerPass::forward, HiddenRows* hidden = nullptr);

  /// Starts the forward pass of the items, which are grouped by phase, and the sampling from their
  /// logits. What items and ops point to must not change until collect(). `find_non_finite` waits
  /// for the forward pass. Precondition: nothing is in flight. Errors: a step's (the items do not
  /// fit the plan), the model's; then nothing is in flight, and only the rows' cache slots have
  /// changed.
  Result<void> launch(std::span<const BatchItem> items, const OpsContext& ops,
                      bool find_non_finite);
  /// Launches the next step before the current one is collected. An input token may be one that the
  /// current step is still sampling (see drawn()). Every item must have one row with logits. Errors
  /// come from the collect() of this step. Precondition: a backend that overlaps; one step in
  /// flight, with at least as many rows with logits.
  void launch_ahead(std::span<const BatchItem> items, const OpsContext& ops);

  // The parts of both for several ranks. Rank 0's runner describes the step for all ranks.
  // Otherwise each would compute the same from lists that the engine has just changed, which
  // another core has in its cache.

  /// What every rank does in this step: its rows, segments and page tables. Errors: as launch().
  Result<void> describe(std::span<const BatchItem> items, bool find_non_finite);
  /// launch() on a rank, of what `leader`, rank 0's runner, has described. All ranks' runners are
  /// in this call at once.
  Result<void> launch_described(std::span<const BatchItem> items, const OpsContext& ops,
                                bool find_non_finite, const Runner& leader);
  /// Begins launch_ahead(). On rank 0 call it before describe().
  Result<void> begin_ahead(const OpsContext& ops);
  /// Ends it as launch_described(). ready: what begin_ahead() and describe() have returned. An
  /// error on one rank fails the step on all ranks.
  void launch_described_ahead(std::span<const BatchItem> items, const OpsContext& ops,
                              const Runner& leader, const Result<void>& ready);

  /// Waits for the older step in flight and ends it. Errors: the device's, with the state of a
  /// failed launch().
  Result<void> collect();
  /// Seconds that collect() has spent waiting for the device.
  double waited() const { return waited_; }
  /// Keys of all steps with decode or verify rows, over all layers.
  const KeyReads& key_reads() const { return key_reads_; }
  bool in_flight() const { return flight_ != nullptr; }
  bool in_flight_ahead() const { return ahead_ != nullptr; }
  /// A placeholder for the token that the last launched step samples from an item's k-th row of
  /// logits, as an input of launch_ahead().
  std::int32_t drawn(std::size_t item, std::int64_t k) const;

  /// Results of the last collected step, on the host. Logits [vocab] of an item's k-th row of
  /// logits; valid until the next launch or call. Errors: the device's.
  /// Precondition: the row is this rank's (rank_of()).
  Result<std::span<const float>> logits(std::size_t item, std::int64_t k, const OpsContext& ops);
  /// The rank that has these logits, and samples from them.
  std::int32_t rank_of(std::size_t item, std::int64_t k) const {
    return static_cast<std::int32_t>(logit_of(item, k) % ranks_);
  }
  /// The token sampled from them; nullopt if one is NaN or infinite.
  std::optional<SampledToken>& sampled(std::size_t item, std::int64_t k);
  /// The log-probabilities of BatchItem::scored; nullopt for a row with NaN or infinite logits.
  std::span<const std::optional<SampledToken>> scored(std::size_t item) const;
  std::span<const NonFiniteItem> non_finite() const { return non_finite_; }
  /// Moves what a rank, this one or another, has sampled in its last collected step into this
  /// runner's results.
  void take_draws(Runner& from);
  /// Adds the rows that another rank has found, which ran the same step.
  void add_non_finite(std::span<const NonFiniteItem> others);
  /// The place in HiddenRows of the head's input of an item's k-th row (in a draft pass: of its
  /// k-th row with logits). Valid until the next launch.
  std::int32_t hidden(std::size_t item, std::int64_t k) const;
  /// The row of HiddenRows::choices() with the keys that an item's k-th row with logits selected.
  /// Valid until the next draft pass that selects keys.
  std::int32_t choice(std::size_t item, std::int64_t k) const {
    return static_cast<std::int32_t>(logit_of(item, k));
  }
  /// Segments of the last launch.
  std::int64_t segments() const { return std::ssize(cuts_); }

 private:
  // A segment: parts [first, last), and the number of rows before them.
  struct SegmentRange {
    std::size_t first = 0;
    std::size_t last = 0;
    std::int64_t first_row = 0;
  };
  Runner(const Model& model, KvCache& cache, bool replays, RunnerPass pass, HiddenRows* hidden)
      : model_(&model), cache_(&cache), replays_(replays), pass_(pass), hidden_(hidden) {}
  // What the host reads of a step after it is collected; made at its launch.
  struct Results {
    std::vector<std::int64_t> first_logit;             // [items + 1] into logit_of
    std::vector<std::int64_t> logit_of;                // [rows with logits of items] row of logits
    std::vector<std::optional<SampledToken>> sampled;  // [sampled rows]
    // With several ranks, what this one samples: [own rows], and their indices in `sampled`.
    std::vector<std::optional<SampledToken>> own;
    std::vector<std::size_t> own_of;
    std::vector<std::int64_t> sampled_of;    // [items] first index into sampled; -1: none
    std::vector<std::int64_t> scored_of;     // [items] first index into sampled
    std::vector<std::int64_t> scored_count;  // [items]
    Result<void> started;                    // by launch_ahead()
  };
  Results& launched() { return results_[newest_]; }
  const Results& launched() const { return results_[newest_]; }
  Results& current() { return results_[current_]; }
  const Results& current() const { return results_[current_]; }
  // Neighbouring rows of one item with the same route in every group.
  struct RoutedRows {
    const BatchItem* of = nullptr;
    std::size_t item = 0;    // its index
    std::size_t routes = 0;  // index into routes_
    std::span<const std::int32_t> tokens = {};
    std::int32_t cached = 0;  // tokens before these
    bool cut_before = false;
    bool cut_after = false;
  };
  std::size_t groups() const { return groups_.size(); }
  const Plan& plan(std::size_t i) const { return cache_->plan(groups_[i]); }
  // [groups] Null: the group's plan has no route, which planning the step reports.
  std::span<const Route* const> routes_of(const RoutedRows& part) const {
    return std::span(routes_).subspan(part.routes, groups());
  }
  static constexpr std::int64_t kNoTile = INT64_MAX;
  Result<void> add_steps();
  std::int64_t most_rows(std::span<const Route* const> routes) const;
  void split(std::span<const BatchItem> items);
  void add_rows(const RoutedRows& part);
  bool joins(std::size_t part, std::int64_t rows, std::int64_t longest, std::int64_t least) const;
  void cut();
  void make_requests(std::size_t i);
  Result<void> plan_steps();
  Result<void> prepare_steps(const Runner& leader, const OpsContext& ops);
  Result<void> start(std::span<const BatchItem> items, const OpsContext& ops, bool find_non_finite);
  Result<void> start_described(std::span<const BatchItem> items, const OpsContext& ops,
                               bool find_non_finite, const Runner& leader, Result<void> ready);
  Result<void> launched_as(const Result<void>& started, const OpsContext& ops);
  Result<void> prepare(const Runner& leader, std::span<const BatchItem> items,
                       const OpsContext& ops, bool find_non_finite, ForwardArgs& args);
  Result<void> run(const Runner& leader, const OpsContext& ops, const ForwardArgs& args);
  std::uint64_t step_key(const Runner& leader) const;
  std::int64_t own_rows(std::int64_t rows) const { return (rows + ranks_ - 1 - rank_) / ranks_; }
  void add_draw(SampleArgs args, std::int64_t logit);
  std::span<std::optional<SampledToken>> sampled_here();
  std::int64_t padded_rows(std::span<const BatchItem> items) const;
  void count_keys(const StepView& view, const Plan& plan);
  void even_out(StepView& view) const;
  std::uint64_t replay_key(const ForwardArgs& args) const;
  Result<void> make_room(std::int64_t logits, const Memory& memory);
  std::span<const float> own_logit_row(std::int64_t row) const;
  std::int64_t logit_of(std::size_t item, std::int64_t k) const;
  void collect_draws(const Runner& leader, std::span<const BatchItem> items);
  void add_scored_rows(const Runner& leader, std::span<const BatchItem> items);
  void place_rows(std::span<const BatchItem> items);

  const Model* model_;
  KvCache* cache_;
  bool replays_;
  RunnerPass pass_;
  HiddenRows* hidden_;                    // null: hidden states are dropped
  Communicator* communicator_ = nullptr;  // of the last launch
  std::int64_t rank_ = 0, ranks_ = 1;
  std::vector<std::int32_t> before_;                    // [rows]
  std::vector<std::int32_t> choices_;                   // [rows], or empty
  std::vector<std::size_t> first_row_of_;               // [items] into rows_of_
  std::vector<std::int64_t> rows_of_;                   // [rows of items] row of the batch
  std::vector<std::size_t> groups_;                     // the model's groups that the pass reads
  std::vector<StepBound> bounds_;                       // [groups]
  std::vector<std::optional<std::size_t>> state_of_;    // [groups] index among groups with a state
  std::vector<std::optional<std::size_t>> entries_of_;  // [groups] index among those with entries
  std::int64_t tile_ = kNoTile;  // most rows of a segment with absorbed queries
  // [segments, groups] Enough for the largest batch so far.
  std::vector<Step> steps_;
  std::vector<StepView> views_;         // [segments, groups] of the last launch, of steps_
  std::vector<PreparedStep> prepared_;  // [steps]
  std::vector<RoutedRows> parts_;
  std::vector<const Route*> routes_;              // [parts, groups]
  std::vector<StepRequest> requests_;             // [parts] for one group
  std::vector<std::vector<PageId>> state_lists_;  // for items that are cut into parts
  std::vector<SegmentRange> cuts_;
  std::int64_t keys_in_cut_ = 0;      // keys in the open segment
  std::int64_t padding_ = 0;          // padding rows of a replayed batch
  std::int64_t fillers_ = 0;          // padding requests, which have the padding rows
  bool replay_ = false;               // whether the batch is replayed
  bool follows_ = false;              // whether any step was launched before its predecessor ended
  std::vector<Segment> segments_;     // [groups, cuts]
  std::vector<std::int32_t> tokens_;  // [rows]
  CachedCopies copies_;
  struct RowOf {
    std::size_t item = 0;
    std::int64_t row = 0;  // within the item
  };
  std::vector<RowOf> row_of_;             // [rows]
  std::vector<std::int32_t> logit_rows_;  // rows, ascending
  // [own_rows(logit_rows), vocab] in the backend's memory
  OwnedBytes logits_{nullptr, [](std::byte*) {}};
  std::int64_t logits_size_ = 0;         // in floats
  std::vector<float> read_;              // one row, on the host
  std::vector<SampleArgs> sample_args_;  // [sampled rows that are this rank's]
  Results results_[2];
  double waited_ = 0;
  KeyReads key_reads_;
  std::size_t newest_ = 0;   // results_ of the last launch
  std::size_t current_ = 0;  // results_ of the last collected step, or of the only one in flight
  // Rows that score a token, in order of items and rows.
  struct ScoredRow {
    std::size_t item;
    std::int64_t row;    // within the item
    std::int64_t logit;  // row of logits
  };
  std::vector<ScoredRow> scored_rows_;
  std::vector<SamplingParams> scored_params_;  // [scored_rows_]
  std::vector<NonFiniteItem> non_finite_;

  // Destroying a runner waits for steps in flight: the device still writes to its arrays.
  struct Wait {
    void operator()(Backend* backend) const { (void)backend->wait(); }
  };
  // Last members, so destroyed first.
  std::unique_ptr<Backend, Wait> flight_, ahead_;
};

}  // namespace lathe
