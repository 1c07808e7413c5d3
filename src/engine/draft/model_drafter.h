// ModelDrafter: drafts by a model of its own, which has the target's tokens and is smaller.
//
// It knows tokens alone, so it can compute their keys at any time: those of a prompt chunk by chunk
// beside the target's, those of an answer when drafts are wanted. Its first draft comes from the
// row of the last token, the others from a row of the draft before. Keys of drafts that became
// tokens stay. Pages and prefix cache are its own; a request that finds no pages has no drafts.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/draft/draft_chain.h"
#include "engine/draft/drafter.h"
#include "engine/runner/runner.h"
#include "engine/schedule/page_allocator.h"

namespace lathe {

/// Drafts that a draft model's plan is made for: a request that took all drafts has the last of
/// them and one token more to compute, and both run as one step that checks drafts.
inline constexpr std::int32_t kDraftModelDrafts = 1;

struct ModelDrafterOptions {
  std::int64_t prefill_rows = 0;  // of one call; 0: the plan's largest step
  bool prefix_cache = true;
  double cost = 0;  // of a row, as a share of the target's
};

class ModelDrafter : public Drafter {
 public:
  /// Plan and pools are the cache's, whose free pages it takes over. Model, cache and what `ops`
  /// points to must outlive it. Errors: the plan has no kernel for phase verify, or layers that
  /// carry a state from token to token, as a rejected draft would spoil it; Runner's.
  static Result<ModelDrafter> create(const Model& model, KvCache& cache,
                                     const ModelDrafterOptions& options, const OpsContext& ops);

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
    std::vector<std::int32_t> keys;  // tokens whose keys are in `pages`; the last may be drafts
    std::int64_t sure = 0;           // of those, the ones that are tokens of the request
    std::int64_t trimmed = 0;        // for which what windows have left behind was given back
    std::int64_t waited = 0;  // steps that wanted drafts and did not read the prompt for them
    RequestPages pages;
  };
  // A request's rows of the pass to come.
  struct Job {
    DraftRequest* request;
    Known* known;
    std::int64_t rows = 0;
    std::int64_t most = 0;  // drafts behind them
  };
  struct Chain : DraftChain {
    Chain(const Job& job, std::size_t place)
        : DraftChain(job.request->sampling), of(&job), item(place) {}
    const Job* of;
    std::size_t item;  // of the last pass
  };
  ModelDrafter(KvCache& cache, const ModelDrafterOptions& options, const OpsContext& ops,
               PageAllocator pages, Runner runner);
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
  // Of the current call.
  double row_share_ = 0;  // draft_row_share()
  std::vector<Job> jobs_;
  std::vector<BatchItem> items_;
  std::vector<Chain> chains_;

  Runner runner_;  // the last member, as it waits for a pass
};

}  // namespace lathe
