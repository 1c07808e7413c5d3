// DraftStats: how far drafts were right, by their place.
#pragma once

#include <array>
#include <cstdint>

#include "engine/drafter.h"

namespace lathe {

struct DraftStats {
  std::int64_t checks = 0;  // steps of a request with drafts
  // [place - 1] Checks with at least so many drafts, and those in which so many were accepted.
  std::array<std::int64_t, kMaxDraftTokens> drafted{};
  std::array<std::int64_t, kMaxDraftTokens> accepted{};

  void record(std::int64_t d, std::int64_t a) {
    ++checks;
    for (std::int64_t i = 0; i < d; ++i) ++drafted[static_cast<std::size_t>(i)];
    for (std::int64_t i = 0; i < a; ++i) ++accepted[static_cast<std::size_t>(i)];
  }
  std::int64_t all_drafted() const { return sum(drafted); }
  std::int64_t all_accepted() const { return sum(accepted); }
  /// Tokens that a check brings on average, the target's own included.
  double acceptance_length() const {
    return checks == 0 ? 1 : 1 + static_cast<double>(all_accepted()) / static_cast<double>(checks);
  }

 private:
  static std::int64_t sum(const std::array<std::int64_t, kMaxDraftTokens>& counts) {
    std::int64_t out = 0;
    for (const std::int64_t n : counts) out += n;
    return out;
  }
};

}  // namespace lathe
