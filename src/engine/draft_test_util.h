// Drafters for tests, and what a request has to give, for those that know it.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "engine/drafter.h"
#include "kernels/philox.h"

namespace lathe {

/// Drafts what a function says of a request: the token that follows so many.
class ScriptedDrafter : public Drafter {
 public:
  using Next = std::function<std::int32_t(const DraftRequest&, std::int64_t known)>;
  explicit ScriptedDrafter(Next next) : next_(std::move(next)) {}
  void propose(std::span<DraftRequest> requests) override {
    for (DraftRequest& r : requests) {
      for (std::int64_t i = 0; i < r.most; ++i) {
        r.drafts.push_back(next_(r, std::ssize(r.tokens) + i));
      }
      proposed += r.most;
    }
  }
  std::int64_t proposed = 0;

 private:
  Next next_;
};

/// Tokens below `vocab` at random, by request and place.
inline ScriptedDrafter random_drafter(std::uint64_t seed, std::int32_t vocab) {
  return ScriptedDrafter([seed, vocab](const DraftRequest& r, std::int64_t known) {
    const std::uint64_t bits = random_bits(seed + r.id.value, static_cast<std::uint64_t>(known));
    return static_cast<std::int32_t>(bits % static_cast<std::uint64_t>(vocab));
  });
}

}  // namespace lathe
