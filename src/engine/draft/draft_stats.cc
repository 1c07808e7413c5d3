#include "engine/draft/draft_stats.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace lathe {

std::size_t DraftStats::places() const {
  std::size_t n = 0;
  while (n < drafted.size() && drafted[n] > 0) ++n;
  return n;
}

DraftStats DraftStats::since(const DraftStats& before) const {
  DraftStats out = *this;
  out.checks -= before.checks;
  for (std::size_t i = 0; i < drafted.size(); ++i) {
    out.drafted[i] -= before.drafted[i];
    out.accepted[i] -= before.accepted[i];
  }
  return out;
}

std::string describe(const DraftStats& stats) {
  if (stats.checks == 0) return "none were made";
  std::string out = fmt::format("{:.2f} tokens in each of {} checks, accepted by place",
                                stats.acceptance_length(), stats.checks);
  for (std::size_t p = 1; p <= stats.places(); ++p) out += fmt::format(" {:.2f}", stats.rate(p));
  return out;
}

nlohmann::ordered_json to_json(const DraftStats& stats) {
  nlohmann::ordered_json drafted = nlohmann::ordered_json::array();
  nlohmann::ordered_json accepted = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < stats.places(); ++i) {
    drafted.push_back(stats.drafted[i]);
    accepted.push_back(stats.accepted[i]);
  }
  return {{"checks", stats.checks},
          {"drafted", std::move(drafted)},
          {"accepted", std::move(accepted)},
          {"acceptance_length", stats.acceptance_length()}};
}

}  // namespace lathe
