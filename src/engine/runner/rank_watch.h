// RankWatch: decides when the ranks of a step have stopped. It knows no thread and no clock, so a
// test says what time it is.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace lathe {

class RankWatch {
 public:
  using Time = std::chrono::nanoseconds;  // since any moment
  struct Limits {
    // Without a finished exchange on any rank. A slow step is not a stopped one: it goes on
    // exchanging. A CPU may compute for minutes between two exchanges, a GPU does not: 20 s.
    Time exchange = std::chrono::seconds(600);
    // The same in the first steps, in which a rank may load or compile code.
    Time first = std::chrono::seconds(600);
    std::uint64_t first_steps = 40;
    // From the abort of the group until no rank computes.
    Time leave = std::chrono::seconds(2);
  };
  enum class Verdict {
    fine,
    stopped,  // abort the group
    stuck,    // the group was aborted, and a rank does not come back
  };

  explicit RankWatch(const Limits& limits) : limits_(limits) {}

  /// step: the number of the step that runs, from 1; 0: none does. finished: exchanges of each rank
  /// so far. Says `stuck` once a step.
  Verdict look(Time now, std::uint64_t step, std::span<const std::uint64_t> finished, bool aborted);

 private:
  Limits limits_;
  std::uint64_t step_ = 0;
  std::vector<std::uint64_t> finished_;
  Time since_{};                 // when the step began or an exchange ended
  std::optional<Time> aborted_;  // when it was first seen
  bool told_ = false;
};

}  // namespace lathe
