// Runner: from a batch to tokens. It cuts the batch into segments, plans a Step for each of them
// and each layer group, and runs the model once over all rows.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "attn/phase.h"
#include "attn/step.h"
#include "base/enum.h"
#include "base/result.h"
#include "model/cache.h"
#include "model/hidden_rows.h"
#include "model/model.h"
#include "ops/sampling.h"

namespace lathe {

/// Rows of one request in a batch.
struct BatchItem {
  Phase phase = Phase::decode;  // decode: one row; verify: a known token and drafts after it
  // [layer groups] lists of pages that cover cached + rows tokens; holes before a window.
  std::span<const std::vector<PageId>> pages;
  std::int32_t cached = 0;               // tokens before the rows
  std::span<const std::int32_t> tokens;  // [rows], at least one
  std::int64_t logits = 0;               // of the last so many rows
  // [groups with a state] its slot after the cached tokens, and the lists of slots that it moves
  // to: as in StepRequest.
  std::span<const PageId> states_before = {};
  std::span<const std::vector<PageId>> states = {};
  // [groups with compressed entries] lists of pages of the entries that all those tokens complete.
  std::span<const std::vector<PageId>> entries = {};
  // Tokens whose log-probabilities are wanted: scored[k] after row first_scored + k, with those of
  // the scored_top most likely tokens. Not of rows that have logits.
  std::int64_t first_scored = 0;
  std::span<const std::int32_t> scored = {};
  std::int32_t scored_top = 0;
  std::span<const std::int32_t> scored_ids = {};  // whose log-probabilities come as well
  // [logits] What is drawn from each row's logits, which the runner fills in; empty: nothing.
  std::span<const SampleArgs> samples = {};
  // [rows] RunnerPass::draft: the place among HiddenRows of the state from which each row's token
  // came. It may be one of the last draft pass.
  std::span<const std::int32_t> before = {};
};

/// forward           the model's pass
/// forward_hidden    likewise, and it keeps what the head reads of every row
/// draft             the draft layer's pass, in its group alone; likewise, of rows with logits
#define LATHE_RUNNER_PASSES(X) X(forward) X(forward_hidden) X(draft)
LATHE_ENUM(RunnerPass, LATHE_RUNNER_PASSES)

/// A row of an item in which NaN or Inf appeared, and after which layer (as NonFinite).
struct NonFiniteItem {
  std::size_t item = 0;
  std::int64_t row = 0;
  std::int32_t layer = 0;
};

class Runner {
 public:
  /// Model and cache must outlive it. `replays`: as the backend's; steps of decode rows, and those
  /// that check drafts, are padded to few sizes then. A pass other than `forward` writes to
  /// `hidden`, which outlives it. Errors: Step::make()'s.
  static Result<Runner> create(const Model& model, KvCache& cache, bool replays = false,
                               RunnerPass pass = RunnerPass::forward, HiddenRows* hidden = nullptr);

  /// Starts the items, grouped by phase, and the draws from their logits. What items and ops point
  /// to must not change until collect(). Precondition: nothing is in flight. Errors, with nothing
  /// in flight and nothing but the cache's slots of the rows changed: a step's (the items do not
  /// fit the plan), the model's. `find_non_finite` waits for the forward pass.
  Result<void> launch(std::span<const BatchItem> items, const OpsContext& ops,
                      bool find_non_finite);
  /// Waits for what launch() started, which is then over. Errors, likewise: the device's.
  Result<void> collect();
  bool in_flight() const { return flight_ != nullptr; }

  /// Of what was collected last, on the host: of the k-th row of those whose logits the item asked
  /// for. [vocab], until the next launch or call. Errors: the device's.
  Result<std::span<const float>> logits(std::size_t item, std::int64_t k, const OpsContext& ops);
  /// What was drawn from them; nothing where one is NaN or infinite.
  std::optional<SampledToken>& sampled(std::size_t item, std::int64_t k);
  /// The log-probabilities of BatchItem::scored; nothing where a row's logits are NaN or infinite.
  std::span<const std::optional<SampledToken>> scored(std::size_t item) const;
  std::span<const NonFiniteItem> non_finite() const { return non_finite_; }
  /// The place among HiddenRows of what the head reads of an item's row; of a draft pass, of the
  /// row of its k-th logits. Until the next launch.
  std::int32_t hidden(std::size_t item, std::int64_t k) const;
  /// Segments of the last launch.
  std::int64_t segments() const { return std::ssize(cuts_); }

 private:
  // Parts [first, last) of one step, and the rows before them.
  struct Cut {
    std::size_t first = 0;
    std::size_t last = 0;
    std::int64_t first_row = 0;
  };
  Runner(const Model& model, KvCache& cache, bool replays, RunnerPass pass, HiddenRows* hidden)
      : model_(&model), cache_(&cache), replays_(replays), pass_(pass), hidden_(hidden) {}
  // Neighbouring rows of one item that share the routes of every group.
  struct Part {
    BatchItem rows;
    std::size_t item = 0;
    std::size_t routes = 0;  // place in routes_
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
  void add_rows(const Part& part, const BatchItem& item);
  bool joins(std::size_t part, std::int64_t rows, std::int64_t longest, std::int64_t least) const;
  void cut();
  void make_requests(std::size_t i);
  Result<void> plan_steps(const OpsContext& ops);
  std::int64_t padded_rows(std::span<const BatchItem> items) const;
  void even_out(StepView& view) const;
  std::uint64_t replay_key(const ForwardArgs& args) const;
  Result<void> make_room(std::int64_t logits, const Memory& memory);
  std::span<const float> logit_row(std::int64_t row) const;
  std::int64_t logit_of(std::size_t item, std::int64_t k) const;
  void sample_rows(std::span<const BatchItem> items, const OpsContext& ops);
  void add_scored_rows(std::span<const BatchItem> items);
  void place_rows(std::span<const BatchItem> items);

  const Model* model_;
  KvCache* cache_;
  bool replays_;
  RunnerPass pass_;
  HiddenRows* hidden_;                                  // null: the pass keeps none
  std::vector<std::int32_t> before_;                    // [rows]
  std::vector<std::size_t> first_row_of_;               // [items] into rows_of_
  std::vector<std::int64_t> rows_of_;                   // [rows of items] row of the batch
  std::vector<std::size_t> groups_;                     // of the model, that the pass reads
  std::vector<StepBound> bounds_;                       // [groups]
  std::vector<std::optional<std::size_t>> state_of_;    // [groups] place among those with a state
  std::vector<std::optional<std::size_t>> entries_of_;  // [groups] likewise, with entries
  std::int64_t tile_ = kNoTile;                         // rows of a segment of absorbed queries
  // [segments, groups]; they grow to the largest number that a batch has needed.
  std::vector<Step> steps_;
  std::vector<PreparedStep> prepared_;  // [steps]
  std::vector<Part> parts_;
  std::vector<const Route*> routes_;              // [parts, groups]
  std::vector<StepRequest> requests_;             // [parts] of one group
  std::vector<std::vector<PageId>> state_lists_;  // of items that are cut
  std::vector<Cut> cuts_;
  std::int64_t keys_in_cut_ = 0;      // of the open one
  std::int64_t padding_ = 0;          // rows that pad a batch to be replayed
  std::int64_t fillers_ = 0;          // and requests, of which these rows are
  bool replay_ = false;               // whether it is one
  std::vector<Segment> segments_;     // [groups, cuts]
  std::vector<std::int32_t> tokens_;  // [rows]
  struct RowOf {
    std::size_t item = 0;
    std::int64_t row = 0;  // of the item
  };
  std::vector<RowOf> row_of_;              // [rows]
  std::vector<std::int32_t> logit_rows_;   // rows, ascending
  std::vector<std::int64_t> first_logit_;  // [items + 1] into logit_of_
  std::vector<std::int64_t> logit_of_;     // [rows of items that asked for logits] row of logits_
  OwnedBytes logits_{nullptr, [](std::byte*) {}};     // [logit_rows, vocab] in the backend's memory
  std::int64_t logits_size_ = 0;                      // floats of it
  std::vector<float> read_;                           // a row of them on the host
  std::vector<SampleArgs> sample_args_;               // [rows drawn from]
  std::vector<std::optional<SampledToken>> sampled_;  // [rows drawn from]
  std::vector<std::int64_t> sampled_of_;  // [items] first place in sampled_, -1: nothing is drawn
  // Rows that score a token, in the order of items and of their rows.
  struct ScoredRow {
    std::size_t item;
    std::int64_t row;    // of the item
    std::int64_t logit;  // row of logits_
  };
  std::vector<ScoredRow> scored_rows_;
  std::vector<SamplingParams> scored_params_;  // [scored_rows_]
  std::vector<std::int64_t> scored_of_;        // [items] first place in sampled_
  std::vector<std::int64_t> scored_count_;     // [items]
  std::vector<NonFiniteItem> non_finite_;

  // Destroying a runner with a step in flight waits: the device still writes to its arrays.
  struct Wait {
    void operator()(Backend* backend) const { (void)backend->wait(); }
  };
  std::unique_ptr<Backend, Wait> flight_;  // the last member, so the first that is destroyed
};

}  // namespace lathe
