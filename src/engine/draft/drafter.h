// Drafter: guesses the next tokens of requests, so that one step can check several of them.
//
// A guess costs a row of a forward pass and changes no token: the engine accepts a draft when its
// own draw at that position is the same token (docs/engine.md, E1). So a drafter may be wrong, late
// or silent, and it need not know the parameters of a request.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/request/request.h"
#include "kernels/sampling.h"
#include "layout/pages/page_ledger.h"
#include "model/layers/hidden_rows.h"

namespace lathe {

/// Most drafts of a request in one step.
inline constexpr std::int64_t kMaxDraftTokens = 15;

/// Rows of a request that steps have computed, and what a draft layer needs to go on from there.
struct ComputedRows {
  RequestId id;
  std::span<const std::int32_t> tokens;        // that are known: the one after the last row, too
  std::int64_t first = 0;                      // position of the first row
  std::vector<std::int32_t> hidden;            // [rows] places in Drafter::hidden()
  std::span<const std::vector<PageId>> pages;  // [layer groups] of all rows
  bool prefill = false;
  // Drafts that are of use behind `tokens`, and how the first of them is drawn; 0: none.
  std::int64_t most = 0;
  SampleArgs sampling;
};

struct DraftRequest {
  RequestId id;
  std::span<const std::int32_t> tokens;  // prompt and answer
  // Drafts that are of use. 0: none, as the prompt is being computed; a drafter that needs time to
  // read it takes it from here.
  std::int64_t most = 0;
  std::vector<std::int32_t> drafts = {};  // the answer: those that may follow, in order
  SampleArgs sampling = {};               // of the token after `tokens`, where one is wanted
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  /// Fills in `drafts`, up to `most` of each; none is legal. Older requests come first, and the
  /// tokens of each only grow from call to call. A step that failed is repeated, with the same.
  virtual void propose(std::span<DraftRequest> requests) = 0;
  /// Where steps leave what the model's head reads of their rows; null: they do not.
  virtual HiddenRows* hidden() { return nullptr; }
  /// A drafter with hidden() gets all rows that steps compute, in time to draft behind them: those
  /// of prompts at once, those of an answer that has no drafts in runs of up to kUnreadRows. Each
  /// request's follow one another, but for what the prefix cache had. Errors: those of a pass; the
  /// requests then have no drafts from it.
  virtual Result<void> read(std::span<const ComputedRows>) { return {}; }
  /// What a guess takes, as a share of a row of the model.
  virtual double cost() const { return 0; }
  /// The request has ended, or was preempted: then it may come again.
  virtual void forget(RequestId) {}
};

}  // namespace lathe
