// Runner: from a batch to logits. It cuts the batch into segments, plans a Step for each, and runs
// the model once over all rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attn/phase.h"
#include "attn/step.h"
#include "base/result.h"
#include "model/cache.h"
#include "model/model.h"

namespace lathe {

/// Rows of one request in a batch.
struct BatchItem {
  Phase phase = Phase::decode;           // decode: one row
  std::span<const PageId> pages;         // cover cached + rows tokens
  std::int32_t cached = 0;               // tokens before the rows
  std::span<const std::int32_t> tokens;  // [rows], at least one
  bool logits = false;                   // of the last row
};

/// An item in whose rows NaN or Inf appeared, and after which layer (as NonFinite).
struct NonFiniteItem {
  std::size_t item = 0;
  std::int32_t layer = 0;
};

class Runner {
 public:
  /// Model and cache must outlive it. Errors: Step::make()'s.
  static Result<Runner> create(const Model& model, KvCache& cache);

  /// Runs the items, those of a phase beside each other. Errors, with nothing but the cache's
  /// slots of the rows changed: a step's (the items do not fit the plan), the model's.
  Result<void> run(std::span<const BatchItem> items, const OpsContext& ops, bool find_non_finite);

  /// Of the last run. Precondition: the item asked for logits. [vocab], until the next run.
  std::span<const float> logits(std::size_t item) const;
  std::span<const NonFiniteItem> non_finite() const { return non_finite_; }
  /// Segments of the last run.
  std::int64_t segments() const { return std::ssize(segments_); }

 private:
  // Parts [first, last) of one step, and the rows before them.
  struct Cut {
    std::size_t first = 0;
    std::size_t last = 0;
    std::int64_t first_row = 0;
  };
  Runner(const Model& model, KvCache& cache, StepBound bound)
      : model_(&model), cache_(&cache), bound_(bound) {}
  // Neighbouring rows of one item that share a route.
  struct Part {
    BatchItem rows;
    std::size_t item = 0;
    const Route* route = nullptr;  // null: the plan has none, which planning the step reports
  };
  Result<void> add_step();
  void split(std::span<const BatchItem> items);
  void cut();
  Result<void> plan_steps();

  const Model* model_;
  KvCache* cache_;
  StepBound bound_;
  // One per segment; they grow to the largest number that a batch has needed.
  std::vector<Step> steps_;
  std::vector<Part> parts_;
  std::vector<StepRequest> requests_;  // [parts]
  std::vector<Cut> cuts_;
  std::vector<Segment> segments_;
  std::vector<std::int32_t> tokens_;      // [rows]
  std::vector<std::int32_t> row_item_;    // [rows]
  std::vector<std::int32_t> logit_rows_;  // rows, ascending
  std::vector<std::int64_t> logit_of_;    // [items] row of logits_, -1: none asked for
  std::vector<float> logits_;             // [logit_rows, vocab]
  std::vector<NonFiniteItem> non_finite_;
};

}  // namespace lathe
