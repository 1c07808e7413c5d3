// Times prefill and decode of random prompts by a runtime's engine.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "engine/runtime.h"
#include "tools/bench/model/oracle_drafter.h"

namespace lathe {

// The gain of drafts with a given share of right guesses: measured, and predicted from step times
// as tokens of a check * T(rows) / (T(rows with drafts) + T(drafter)).
struct DraftGain {
  std::string test;
  std::int64_t depth = 0, batch = 1, drafts = 0;
  double plain = 0, drafted = 0;           // tokens/s, medians
  double step = 0, wide = 0, drafter = 0;  // seconds, medians
  double length = 0, expected = 0;  // tokens of a check: measured, and by the acceptance asked for

  double measured() const { return drafted / plain; }
  double formula() const { return expected * step / (wide + drafter); }
};

class EngineBench {
 public:
  /// oracle: null where drafts are the drafter's own, or there are none. shared: tokens with which
  /// all prompts of a batch begin, where they have as many.
  EngineBench(Runtime& runtime, OracleDrafter* oracle, std::int64_t shared)
      : runtime_(runtime), oracle_(oracle), shared_(shared) {}

  /// Tokens per second of prefill after `depth` tokens that are in the prefix cache.
  Result<double> prefill(std::int64_t tokens, std::int64_t depth, std::int64_t batch);

  /// Steps in which all of `batch` requests decode.
  struct Decoded {
    double seconds = 0;
    std::int64_t made = 0;
    std::vector<double> steps, host, drafter;        // seconds of each
    std::vector<double> idle;                        // of those that follow another
    std::vector<std::vector<std::int32_t>> answers;  // [batch]
    double shared = 0;  // share of the keys that was not read, as other requests' reads served
    double rate() const { return static_cast<double>(made) / seconds; }
  };
  /// `known`: the answers to the same prompts, for the oracle drafter; null turns it off.
  Result<Decoded> decode(std::int64_t tokens, std::int64_t depth, std::int64_t batch,
                         const Decoded* known = nullptr);

  /// Alternates runs without and with drafts, and times steps that have a request for each row of a
  /// check.
  Result<DraftGain> gain(std::int64_t tokens, std::int64_t depth, std::int64_t batch, double right,
                         int repeats);

 private:
  void append(std::vector<std::int32_t>& prompt, std::int64_t n);
  std::vector<std::vector<std::int32_t>> make_prompts(std::int64_t depth, std::int64_t batch);
  Result<std::vector<RequestId>> submit(const std::vector<std::vector<std::int32_t>>& prompts,
                                        std::int64_t answer);
  Result<void> warm(const std::vector<std::vector<std::int32_t>>& prompts);
  Result<void> run(const std::vector<std::vector<std::int32_t>>& prompts);
  Result<StepReport> timed_step(double& seconds);

  Runtime& runtime_;
  OracleDrafter* oracle_;
  std::int64_t shared_;
  std::mt19937 random_{1};
};

}  // namespace lathe
