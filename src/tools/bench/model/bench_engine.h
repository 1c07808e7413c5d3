// lathe bench engine: tokens per second of a whole model, over prompt lengths, depths and batches.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/flags/model_flags.h"

namespace lathe {

struct BenchEngineOptions {
  ModelFlags model;
  std::vector<std::int64_t> prompts = {512};  // tokens of prefill rows; 0: none
  std::vector<std::int64_t> answers = {64};   // tokens of decode rows; 0: none
  std::vector<std::int64_t> depths = {0};     // tokens in the cache before
  std::vector<std::int64_t> batches = {1};
  std::vector<std::string> tests;         // of parse_engine_test(); instead of these four
  std::int64_t shared_prefix_tokens = 0;  // of the depth: equal in all requests of a batch
  int repeats = 3;
  // Makes this share of the drafter's guesses right, whatever it guesses; 0: leaves them alone.
  float draft_acceptance = 0;
  bool json = false;
};

/// Runs and prints; returns the exit code.
int bench_engine_command(const BenchEngineOptions& options);

}  // namespace lathe
