// MtpDrafter: drafts by the model's draft layer (multi-token prediction, arXiv 2412.19437).
//
// The layer is one more layer in the model's pools, with keys of its own. It reads every row that a
// step has computed, together with the token after it. Its last row of a request predicts the token
// after the known ones. Further drafts run the layer again, with its own hidden state in place of
// the model's. Their keys are provisional: they are written again once the model has computed the
// position.
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
#include "engine/runner/ranked_runner.h"

namespace lathe {

class MtpDrafter : public Drafter {
 public:
  /// Model, cache, `ops` and `ranks` are the engine's; what they point to must outlive it. Errors:
  /// those of Runner::create(), and out of memory.
  static Result<MtpDrafter> create(const Model& model, KvCache& cache, const OpsContext& ops,
                                   const OtherRanks* ranks = nullptr);

  HiddenRows* hidden() override { return hidden_.front().get(); }
  std::span<HiddenRows* const> other_hidden() override { return std::span(rows_of_).subspan(1); }
  double cost() const override { return cost_; }
  Result<void> read(std::span<const ComputedRows> rows) override;
  void propose(std::span<DraftRequest> requests) override;
  void forget(RequestId id) override { drafts_.erase(id.value); }

 private:
  // A request with drafts to come.
  struct Chain : DraftChain {
    explicit Chain(const ComputedRows& r) : DraftChain(r.sampling), rows(&r) {}
    const ComputedRows* rows;
    std::size_t item = 0;     // in the last pass
    std::int32_t before = 0;  // BatchItem::before of the next pass
    // BatchItem::choices of the passes after the first, if they share its choice of keys.
    std::int32_t choice = -1;
  };
  using AllHidden = std::vector<std::unique_ptr<HiddenRows>>;
  MtpDrafter(const Model& model, const KvCache& cache, const OpsContext& ops, AllHidden hidden,
             std::vector<HiddenRows*> rows_of, RankedRunner runner);
  Result<void> read_and_draft(std::span<const ComputedRows> rows);
  Result<void> read_rows(std::span<const ComputedRows> rows);
  Result<void> go_on();
  void share_choices();
  bool take(Chain& chain);

  const KvCache* cache_;
  double cost_;
  std::int64_t most_rows_;    // in a pass
  std::int64_t verify_rows_;  // most rows of a request in phase verify
  std::int64_t shared_keys_;  // ModelConfig::shared_choice_width()
  std::vector<BatchItem> items_;
  std::vector<Chain> chains_;
  struct Drafts {
    std::size_t known = 0;  // tokens of the request when they were made
    std::vector<std::int32_t> tokens;
  };
  std::unordered_map<std::uint64_t, Drafts> drafts_;  // by request
  AllHidden hidden_;                                  // [ranks]; the runner points to them
  std::vector<HiddenRows*> rows_of_;                  // [ranks]
  RankedRunner runner_;  // last member: its destructor waits for a pass in flight
};

}  // namespace lathe
