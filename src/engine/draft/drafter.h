// Drafter: guesses the next tokens of requests, so that one step can check several of them.
//
// A draft costs a row of a forward pass and changes no token: the engine accepts it if it samples
// the same token at that position (docs/engine.md, E1). So a drafter may be wrong, late or silent,
// and it need not know a request's parameters.
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

/// Rows of a request that steps have computed, and what a draft layer needs to draft after them.
struct ComputedRows {
  RequestId id;
  std::span<const std::int32_t> tokens;        // prompt and answer; one more than the rows so far
  std::int64_t first = 0;                      // position of the first row
  std::vector<std::int32_t> hidden;            // [rows] places in Drafter::hidden()
  std::span<const std::vector<PageId>> pages;  // [layer groups] of all rows
  bool prefill = false;
  // Most drafts after `tokens` that the engine can use, and how to sample the first; 0: none.
  std::int64_t most = 0;
  SampleArgs sampling;
};

struct DraftRequest {
  RequestId id;
  std::span<const std::int32_t> tokens;  // prompt and answer
  // Most drafts that the engine can use. 0 while the prompt is being prefilled: a slow drafter may
  // start reading it.
  std::int64_t most = 0;
  std::vector<std::int32_t> drafts = {};  // filled in by the drafter, in order
  SampleArgs sampling = {};               // with most > 0: of the token after `tokens`
  std::uint64_t cache_salt = 0;           // only requests with an equal one share cached keys
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  /// Fills in up to `most` drafts of each request; none is legal. Older requests come first, and
  /// the tokens of a request only grow from call to call. After a failed step the call is repeated.
  virtual void propose(std::span<DraftRequest> requests) = 0;
  /// Where steps write the hidden states that the model's head reads; null: this drafter needs
  /// none.
  virtual HiddenRows* hidden() { return nullptr; }
  /// The same rows on ranks 1, 2, .. of the model.
  virtual std::span<HiddenRows* const> other_hidden() { return {}; }
  /// A drafter with hidden() gets every row that steps compute, early enough to draft after it:
  /// rows of a prompt after each step, rows of an answer without drafts in runs of up to
  /// kUnreadRows. The rows of a request follow one another without gaps, except tokens from the
  /// prefix cache. Errors: the pass's; these requests then get no drafts.
  virtual Result<void> read(std::span<const ComputedRows>) { return {}; }
  /// Cost of a draft, as a share of a row of the model.
  virtual double cost() const { return 0; }
  /// The request has ended or was preempted. A preempted one may appear again.
  virtual void forget(RequestId) {}
};

}  // namespace lathe
