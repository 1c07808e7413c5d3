// DraftStats: how many drafts were accepted, by position in the draft.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/draft/drafter.h"

namespace lathe {

struct DraftStats {
  std::int64_t checks = 0;  // verification steps, counted per request
  // [place - 1] Checks with at least `place` drafts, and those that accepted at least `place`.
  std::array<std::int64_t, kMaxDraftTokens> drafted{};
  std::array<std::int64_t, kMaxDraftTokens> accepted{};

  void record(std::int64_t d, std::int64_t a) {
    ++checks;
    for (std::int64_t i = 0; i < d; ++i) ++drafted[static_cast<std::size_t>(i)];
    for (std::int64_t i = 0; i < a; ++i) ++accepted[static_cast<std::size_t>(i)];
  }
  std::int64_t all_drafted() const { return sum(drafted); }
  std::int64_t all_accepted() const { return sum(accepted); }
  /// The last position that had a draft.
  std::size_t places() const;
  /// Share of checks in which all drafts up to `place`, from 1, were accepted.
  double rate(std::size_t place) const { return share(accepted[place - 1], checks); }
  /// Accepted share of all drafts.
  double acceptance_rate() const { return share(all_accepted(), all_drafted()); }
  /// Mean tokens per check, the target's own included: 1 + the sum of rates.
  double acceptance_length() const { return 1 + share(all_accepted(), checks); }
  /// Counts since `before`.
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
