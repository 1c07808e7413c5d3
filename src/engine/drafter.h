// Drafter: guesses the next tokens of requests, so that one step can check several of them.
//
// A guess costs a row of a forward pass and changes no token: the engine accepts a draft when its
// own draw at that position is the same token (docs/engine.md, E1). So a drafter may be wrong, late
// or silent, and it need not know the parameters of a request.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/request.h"

namespace lathe {

/// Most drafts of a request in one step.
inline constexpr std::int64_t kMaxDraftTokens = 15;

struct DraftRequest {
  RequestId id;
  std::span<const std::int32_t> tokens;   // prompt and answer, at least two
  std::int64_t most = 0;                  // drafts that are of use, at least one
  std::vector<std::int32_t> drafts = {};  // the answer: those that may follow, in order
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  /// Fills in `drafts`, up to `most` of each; none is legal. The tokens of a request only grow from
  /// call to call. A step that failed is repeated, so the same tokens must give the same drafts.
  virtual void propose(std::span<DraftRequest> requests) = 0;
  /// The request has ended, or was preempted: then it may come again.
  virtual void forget(RequestId) {}
};

}  // namespace lathe
