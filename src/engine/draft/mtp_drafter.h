// MtpDrafter: drafts by the model's draft layer (multi-token prediction, arXiv 2412.19437).
//
// The layer has keys of its own in the pools of the model's layers. It reads every row that a step
// has computed, with the token after it, and so its keys are there for whatever comes. Its last row
// of a request guesses the token after those that are known. Further guesses use the layer again,
// with its own hidden state in place of the model's; the keys of those are provisional, and are
// written once more when the model has computed the position.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/draft/draft_chain.h"
#include "engine/draft/drafter.h"
#include "engine/runner/runner.h"

namespace lathe {

class MtpDrafter : public Drafter {
 public:
  /// Model, cache and what `ops` points to must outlive it; the engine's own. Errors: Runner's; no
  /// memory.
  static Result<MtpDrafter> create(const Model& model, KvCache& cache, const OpsContext& ops);

  HiddenRows* hidden() override { return hidden_.get(); }
  double cost() const override { return cost_; }
  Result<void> read(std::span<const ComputedRows> rows) override;
  void propose(std::span<DraftRequest> requests) override;
  void forget(RequestId id) override { drafts_.erase(id.value); }

 private:
  // A request with drafts to come.
  struct Chain : DraftChain {
    explicit Chain(const ComputedRows& r) : DraftChain(r.sampling), rows(&r) {}
    const ComputedRows* rows;
    std::size_t item = 0;     // of the last pass
    std::int32_t before = 0;  // of the next pass
    // Of all passes behind the first, where they share its choice of keys: whose keys they take.
    std::int32_t choice = -1;
  };
  MtpDrafter(const Model& model, const KvCache& cache, const OpsContext& ops,
             std::unique_ptr<HiddenRows> hidden, Runner runner);
  Result<void> read_and_draft(std::span<const ComputedRows> rows);
  Result<void> read_rows(std::span<const ComputedRows> rows);
  Result<void> go_on();
  void share_choices();
  bool take(Chain& chain);

  const KvCache* cache_;
  OpsContext ops_;
  double cost_;
  std::int64_t most_rows_;    // of a pass
  std::int64_t verify_rows_;  // of a request that runs as phase verify
  std::int64_t shared_keys_;  // ModelConfig::shared_choice_width()
  std::vector<BatchItem> items_;
  std::vector<Chain> chains_;
  struct Drafts {
    std::size_t known = 0;  // tokens that they follow
    std::vector<std::int32_t> tokens;
  };
  std::unordered_map<std::uint64_t, Drafts> drafts_;  // by request
  std::unique_ptr<HiddenRows> hidden_;                // the runner points to it
  Runner runner_;                                     // the last member, as it waits for a pass
};

}  // namespace lathe
