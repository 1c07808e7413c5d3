// DraftStats: how far drafts were right, by their place.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

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
  /// The last place that had a draft.
  std::size_t places() const;
  /// Of all checks, the share in which the drafts up to a place, from 1, were accepted.
  double rate(std::size_t place) const { return share(accepted[place - 1], checks); }
  /// Accepted drafts of all.
  double acceptance_rate() const { return share(all_accepted(), all_drafted()); }
  /// Tokens that a check brings on average, the target's own included: 1 + the sum of rates.
  double acceptance_length() const { return 1 + share(all_accepted(), checks); }
  /// What has been counted since `before`.
  DraftStats since(const DraftStats& before) const;

 private:
  static double share(std::int64_t part, std::int64_t whole) {
    return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
  }
  static std::int64_t sum(const std::array<std::int64_t, kMaxDraftTokens>& counts) {
    std::int64_t out = 0;
    for (const std::int64_t n : counts) out += n;
    return out;
  }
};

/// "4.10 tokens in each of 370 checks, accepted by place 0.95 0.90 0.82".
std::string describe(const DraftStats& stats);

/// {"checks", "drafted": [by place], "accepted": [by place], "acceptance_length"}
nlohmann::ordered_json to_json(const DraftStats& stats);

}  // namespace lathe
