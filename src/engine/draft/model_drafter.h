// ModelDrafter: drafts by a separate, smaller model with the target's vocabulary.
//
// It needs only tokens, so it can compute their keys at any time: a prompt's chunk by chunk while
// the target computes the same prompt, an answer's when drafts are wanted. The row of the last
// token gives the first draft, and a row of each draft the next one. Keys of accepted drafts stay.
// It has pages and a prefix cache of its own; a request without pages there has no drafts.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/draft/draft_chain.h"
#include "engine/draft/drafter.h"
#include "engine/runner/ranked_runner.h"
#include "engine/schedule/page_allocator.h"

namespace lathe {

/// Drafts per step that a draft model's own plan allows for. A request that accepted all its drafts
/// has two rows to compute, the last draft's and the token's after it, and both run in one verify
/// step.
inline constexpr std::int32_t kDraftModelDrafts = 1;

struct ModelDrafterOptions {
  std::int64_t prefill_rows = 0;  // of one call; 0: the plan's largest step
  bool prefix_cache = true;
  double cost = 0;  // of a row, as a share of the target's
};

class ModelDrafter : public Drafter {
 public:
  /// Uses the cache's plan and pools, and owns all pages that are free at the call. Model, cache
  /// and what `ops` points to must outlive it. Errors: a plan without a kernel for phase verify;
  /// layers that carry a state from token to token, which a rejected draft would spoil; Runner's.
  static Result<ModelDrafter> create(const Model& model, KvCache& cache,
                                     const ModelDrafterOptions& options, const OpsContext& ops,
                                     const OtherRanks* ranks = nullptr);

  double cost() const override { return options_.cost; }
  void propose(std::span<DraftRequest> requests) override;
  void forget(RequestId id) override;

  /// Pages that requests hold.
  std::int64_t held_pages() const { return pages_.held(); }
  /// Rows that it has computed.
  std::int64_t rows() const { return rows_; }
  /// Evicts every page that no request holds.
  void clear_prefix_cache() { pages_.clear_cache(); }

 private:
  struct Known {
    std::vector<std::int32_t> keys;  // tokens with keys in `pages`; the last ones may be drafts
    std::int64_t sure = 0;           // how many of them are tokens of the request
    std::int64_t trimmed = 0;        // tokens for which pages before windows have been released
    // Where the prompt parts from a cached one, if there is no window to resume from; else 0.
    std::int64_t parting = 0;
    std::int64_t waited = 0;  // steps that wanted drafts and did not read the prompt for them
    RequestPages pages;
  };
  // A request's rows in the next pass.
  struct Job {
    DraftRequest* request;
    Known* known;
    std::int64_t rows = 0;
    std::int64_t most = 0;  // drafts to make after them
  };
  struct Chain : DraftChain {
    Chain(const Job& job, std::size_t place)
        : DraftChain(job.request->sampling), of(&job), item(place) {}
    const Job* of;
    std::size_t item;  // of the last pass
  };
  ModelDrafter(KvCache& cache, const ModelDrafterOptions& options, const OpsContext& ops,
               PageAllocator pages, RankedRunner runner);
  bool on_host() const { return ops_.backend->memory().kind == MemoryKind::host; }
  bool worth_reading(Known& known, std::int64_t missing) const;
  void follow(Known& known, std::span<const std::int32_t> tokens, std::int64_t most);
  void plan_rows(DraftRequest& request, std::int64_t& prefill_rows);
  Result<void> compute(std::span<Job> jobs);
  Result<void> draft();
  bool take(Chain& chain);
  void give_up(Known& known);

  KvCache* cache_;
  ModelDrafterOptions options_;
  OpsContext ops_;
  PageAllocator pages_;
  std::unordered_map<std::uint64_t, Known> known_;  // by request
  std::int64_t rows_ = 0;
  // The current call.
  double row_share_ = 0;  // draft_row_share()
  std::vector<Job> jobs_;
  std::vector<BatchItem> items_;
  std::vector<Chain> chains_;

  RankedRunner runner_;  // last member: its destructor waits for a pass in flight
};

}  // namespace lathe
