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
#include "model/cache.h"
#include "model/layers/hidden_rows.h"
#include "model/model.h"
#include "ops/sampling.h"
#include "step/step.h"

namespace lathe {

/// Rows of one request in a batch.
struct BatchItem {
  Phase phase = Phase::decode;  // decode: one row; verify: a known token and drafts after it
  // [layer groups] lists of pages that cover cached + rows tokens; holes before a window.
  std::span<const std::vector<PageId>> pages;
  std::int32_t cached = 0;               // tokens before the rows
  std::span<const std::int32_t> tokens;  // [rows], at least one
  std::int64_t logits = 0;               // the last rows, whose logits are computed
  // [groups with a state] The state's slot after the cached tokens, and the lists of slots that it
  // moves to, as in StepRequest.
  std::span<const PageId> states_before = {};
  std::span<const std::vector<PageId>> states = {};
  // [groups with compressed entries] Lists of pages of the entries that all these tokens complete.
  std::span<const std::vector<PageId>> entries = {};
  // Tokens to score: the log-probability of scored[k] after row first_scored + k, with those of the
  // scored_top likeliest tokens. Not for rows counted in `logits`.
  std::int64_t first_scored = 0;
  std::span<const std::int32_t> scored = {};
  std::int32_t scored_top = 0;
  std::span<const std::int32_t> scored_ids = {};  // further tokens to score at each row
  // [logits] Draws from each row's logits, which the runner fills in; empty: none.
  std::span<const SampleArgs> samples = {};
  // [rows] For RunnerPass::draft: index into HiddenRows of the state that each row's token was
  // drawn from, possibly by the last draft pass.
  std::span<const std::int32_t> before = {};
  // [rows] Likewise of a draft layer that shares a choice of keys: the row of an earlier pass with
  // logits (Runner::choice()) whose keys each row takes; -1: the first ones of its request. Empty:
  // rows choose. Items of a pass agree.
  std::span<const std::int32_t> choices = {};
};

/// forward           the model's pass
/// forward_hidden    likewise, and keeps the head's input of every row
/// draft             the draft layer's pass, in its group alone; keeps it for rows with logits
#define LATHE_RUNNER_PASSES(X) X(forward) X(forward_hidden) X(draft)
LATHE_ENUM(RunnerPass, LATHE_RUNNER_PASSES)

/// An item's row with NaN or Inf, and after which layer it appeared (as NonFinite).
struct NonFiniteItem {
  std::size_t item = 0;
  std::int64_t row = 0;
  std::int32_t layer = 0;
};

class Runner {
 public:
  /// Model and cache must outlive it. `replays`: whether the backend replays recordings; decode and
  /// verify steps are padded to few sizes then. A pass other than `forward` writes to `hidden`,
  /// which outlives it. Errors: Step::make()'s.
  static Result<Runner> create(const Model& model, KvCache& cache, bool replays = false,
                               RunnerPass pass = RunnerPass::forward, HiddenRows* hidden = nullptr);

  /// Starts the items, grouped by phase, and the draws from their logits. What items and ops point
  /// to must not change until collect(). Precondition: nothing is in flight. Errors: a step's (the
  /// items do not fit the plan), the model's; then nothing is in flight, and nothing has changed
  /// but the rows' cache slots. `find_non_finite` waits for the forward pass.
  Result<void> launch(std::span<const BatchItem> items, const OpsContext& ops,
                      bool find_non_finite);
  /// Likewise behind the step in flight, whose draws a row's token may be (drawn()); a row of each
  /// item gives logits. Its collect() returns the errors. Precondition: a backend that overlaps;
  /// one step in flight, which has as many rows with logits.
  void launch_ahead(std::span<const BatchItem> items, const OpsContext& ops);
  /// Waits for the older step in flight and ends it. Errors: the device's; then as for launch().
  Result<void> collect();
  /// Seconds that collect() has waited for the device.
  double waited() const { return waited_; }
  bool in_flight() const { return flight_ != nullptr; }
  bool in_flight_ahead() const { return ahead_ != nullptr; }
  /// What stands for the token that the last launched step draws from an item's k-th row of logits.
  std::int32_t drawn(std::size_t item, std::int64_t k) const {
    return token_of_draw(launched().sampled_of[item] + k);
  }

  /// From the last collected step, on the host: the logits [vocab] of the k-th row whose logits the
  /// item asked for. Valid until the next launch or call. Errors: the device's.
  Result<std::span<const float>> logits(std::size_t item, std::int64_t k, const OpsContext& ops);
  /// The token drawn from them; nullopt if one is NaN or infinite.
  std::optional<SampledToken>& sampled(std::size_t item, std::int64_t k);
  /// The log-probabilities of BatchItem::scored; nullopt for rows whose logits are NaN or infinite.
  std::span<const std::optional<SampledToken>> scored(std::size_t item) const;
  std::span<const NonFiniteItem> non_finite() const { return non_finite_; }
  /// Index into HiddenRows of the head's input of an item's k-th row; for a draft pass, of its k-th
  /// row with logits. Valid until the next launch.
  std::int32_t hidden(std::size_t item, std::int64_t k) const;
  /// Of a draft pass whose rows have chosen keys: where HiddenRows::choices() has those of an
  /// item's k-th row with logits, until the next such pass.
  std::int32_t choice(std::size_t item, std::int64_t k) const {
    return static_cast<std::int32_t>(logit_of(item, k));
  }
  /// Segments of the last launch.
  std::int64_t segments() const { return std::ssize(cuts_); }

 private:
  // The parts [first, last) of one segment, and the rows before them.
  struct Cut {
    std::size_t first = 0;
    std::size_t last = 0;
    std::int64_t first_row = 0;
  };
  Runner(const Model& model, KvCache& cache, bool replays, RunnerPass pass, HiddenRows* hidden)
      : model_(&model), cache_(&cache), replays_(replays), pass_(pass), hidden_(hidden) {}
  // Of a step, from its launch on: what the host reads after it has been collected.
  struct Results {
    std::vector<std::int64_t> first_logit;  // [items + 1] into logit_of
    // [rows whose logits were asked for] row of logits_
    std::vector<std::int64_t> logit_of;
    std::vector<std::optional<SampledToken>> sampled;  // [rows drawn from]
    std::vector<std::int64_t> sampled_of;    // [items] first index into sampled; -1: no draws
    std::vector<std::int64_t> scored_of;     // [items] first index into sampled
    std::vector<std::int64_t> scored_count;  // [items]
    Result<void> started;                    // by launch_ahead()
  };
  Results& launched() { return results_[newest_]; }
  const Results& launched() const { return results_[newest_]; }
  Results& current() { return results_[current_]; }
  const Results& current() const { return results_[current_]; }
  // Neighbouring rows of one item that share the routes of every group.
  struct Part {
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
  // [groups]; null: the group's plan has none, and planning the step reports it.
  std::span<const Route* const> routes_of(const Part& part) const {
    return std::span(routes_).subspan(part.routes, groups());
  }
  static constexpr std::int64_t kNoTile = INT64_MAX;
  Result<void> add_steps();
  std::int64_t most_rows(std::span<const Route* const> routes) const;
  void split(std::span<const BatchItem> items);
  void add_rows(const Part& part);
  bool joins(std::size_t part, std::int64_t rows, std::int64_t longest, std::int64_t least) const;
  void cut();
  void make_requests(std::size_t i);
  Result<void> plan_steps(const OpsContext& ops);
  Result<void> start(std::span<const BatchItem> items, const OpsContext& ops, bool find_non_finite);
  std::int64_t padded_rows(std::span<const BatchItem> items) const;
  void even_out(StepView& view) const;
  std::uint64_t replay_key(const ForwardArgs& args) const;
  Result<void> make_room(std::int64_t logits, const Memory& memory);
  std::span<const float> logit_row(std::int64_t row) const;
  std::int64_t logit_of(std::size_t item, std::int64_t k) const;
  void collect_draws(std::span<const BatchItem> items);
  void add_scored_rows(std::span<const BatchItem> items);
  void place_rows(std::span<const BatchItem> items);

  const Model* model_;
  KvCache* cache_;
  bool replays_;
  RunnerPass pass_;
  HiddenRows* hidden_;                                  // null: not kept
  std::vector<std::int32_t> before_;                    // [rows]
  std::vector<std::int32_t> choices_;                   // [rows], or empty
  std::vector<std::size_t> first_row_of_;               // [items] into rows_of_
  std::vector<std::int64_t> rows_of_;                   // [rows of items] row of the batch
  std::vector<std::size_t> groups_;                     // the model's groups that the pass reads
  std::vector<StepBound> bounds_;                       // [groups]
  std::vector<std::optional<std::size_t>> state_of_;    // [groups] index among groups with a state
  std::vector<std::optional<std::size_t>> entries_of_;  // [groups] likewise, with entries
  std::int64_t tile_ = kNoTile;  // most rows of a segment with absorbed queries
  // [segments, groups], as many as the largest batch so far has needed.
  std::vector<Step> steps_;
  std::vector<PreparedStep> prepared_;  // [steps]
  std::vector<Part> parts_;
  std::vector<const Route*> routes_;              // [parts, groups]
  std::vector<StepRequest> requests_;             // [parts] for one group
  std::vector<std::vector<PageId>> state_lists_;  // for items that are cut into parts
  std::vector<Cut> cuts_;
  std::int64_t keys_in_cut_ = 0;      // keys in the open segment
  std::int64_t padding_ = 0;          // padding rows of a replayed batch
  std::int64_t fillers_ = 0;          // padding requests, which have these rows
  bool replay_ = false;               // whether the batch is replayed
  bool follows_ = false;              // whether a step has been launched behind another
  std::vector<Segment> segments_;     // [groups, cuts]
  std::vector<std::int32_t> tokens_;  // [rows]
  struct RowOf {
    std::size_t item = 0;
    std::int64_t row = 0;  // of the item
  };
  std::vector<RowOf> row_of_;                      // [rows]
  std::vector<std::int32_t> logit_rows_;           // rows, ascending
  OwnedBytes logits_{nullptr, [](std::byte*) {}};  // [logit_rows, vocab] in the backend's memory
  std::int64_t logits_size_ = 0;                   // in floats
  std::vector<float> read_;                        // one row, on the host
  std::vector<SampleArgs> sample_args_;            // [rows drawn from]
  Results results_[2];
  double waited_ = 0;
  std::size_t newest_ = 0;   // those of the last launch
  std::size_t current_ = 0;  // of the step that was collected last, or is in flight alone
  // Rows that score a token, in order of items and rows.
  struct ScoredRow {
    std::size_t item;
    std::int64_t row;    // of the item
    std::int64_t logit;  // row of logits_
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
