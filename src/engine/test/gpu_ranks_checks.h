// A model on several GPUs, the fake runtime's or a machine's, against one.
#pragma once

#include <string>
#include <vector>

#include "engine/test/gpu_ranks_test_util.h"

namespace lathe {

/// Logits of an answer's first token have this error at most between different numbers of ranks: a
/// sublayer's output is rounded to bf16 once more.
inline constexpr double kRankError = 2e-2;

inline void expect_like_one_gpu(const Answers& ranks, const Answers& one) {
  ASSERT_EQ(ranks.tokens.size(), one.tokens.size());
  for (const auto& [id, rows] : one.logits) {
    const Logits& others = ranks.logits.at(id);
    ASSERT_EQ(others.size(), rows.size());
    EXPECT_LT(relative_error(others.front(), rows.front()), kRankError) << id;
    for (const auto& row : others) {
      for (const float v : row) ASSERT_TRUE(std::isfinite(v)) << id;
    }
  }
}

/// Steps with and without graphs, and with steps in flight or not, give the same bits.
inline void check_ranks(const std::string& model, const GpuSetup::Sizes& sizes,
                        const std::vector<Prompt>& prompts, std::int32_t ranks) {
  const Answers one = answers_of(model, sizes, {}, prompts);
  const Answers first = answers_of_ranks(model, sizes, {}, prompts, ranks);
  expect_like_one_gpu(first, one);
  const Answers again = answers_of_ranks(model, sizes, {}, prompts, ranks);
  EXPECT_EQ(again.tokens, first.tokens);
  EXPECT_EQ(again.logits, first.logits);
  EngineOptions apart;
  apart.overlap = false;
  const Answers waiting = answers_of_ranks(model, sizes, apart, prompts, ranks);
  EXPECT_EQ(waiting.tokens, first.tokens);
}

}  // namespace lathe
