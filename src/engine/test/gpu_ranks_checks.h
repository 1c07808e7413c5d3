// A model on several GPUs, the fake runtime's or a machine's, against one.
#pragma once

#include <atomic>
#include <latch>
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

/// Two runs, and steps in flight or not, give the same tokens, and the first logits are one GPU's.
inline void check_ranks(const std::string& model, const GpuSetup::Sizes& sizes,
                        const std::vector<Prompt>& prompts, std::int32_t ranks,
                        cuda::ExchangeKind kind = cuda::ExchangeKind::peer) {
  const GpuRanksOptions own{.kind = kind};
  const Answers one = answers_of(model, sizes, {}, prompts);
  const Answers first = answers_of_ranks(model, sizes, {}, prompts, ranks, own);
  expect_like_one_gpu(first, one);
  const Answers again = answers_of_ranks(model, sizes, {}, prompts, ranks, own);
  EXPECT_EQ(again.tokens, first.tokens);
  EXPECT_EQ(again.logits, first.logits);
  EngineOptions apart;
  apart.overlap = false;
  const Answers waiting = answers_of_ranks(model, sizes, apart, prompts, ranks, own);
  EXPECT_EQ(waiting.tokens, first.tokens);
}

/// The same greedy requests three times in one engine have the same bits: the first step of a size
/// is run as it is, the second is captured, and later ones are replayed.
inline void check_replays(const std::string& model, const GpuSetup::Sizes& sizes,
                          const std::vector<Prompt>& prompts, std::int32_t ranks) {
  Answers run;
  EngineOptions options;
  options.prefix_cache = false;
  options.on_logits = [&](RequestId id, std::span<const float> row) {
    run.logits[id.value].emplace_back(row.begin(), row.end());
  };
  GpuRanks setup(model, sizes, options, ranks);
  for (int i = 0; i < 3; ++i) submit_and_run(setup.engine(), setup.config(), prompts, run);
  const std::size_t n = prompts.size();
  ASSERT_EQ(run.logits.size(), 3 * n);
  for (std::size_t id = 1; id <= n; ++id) {
    EXPECT_EQ(run.logits.at(id + n), run.logits.at(id)) << id;
    EXPECT_EQ(run.logits.at(id + 2 * n), run.logits.at(id)) << id;
  }
}

/// Drafts of the model's draft layer change no token.
inline void check_drafts_on_ranks(const std::string& model, GpuSetup::Sizes sizes,
                                  const std::vector<Prompt>& prompts, std::int32_t ranks) {
  sizes.draft_tokens = 3;
  const Answers plain = answers_of_ranks(model, sizes, {}, prompts, ranks);
  sizes.mtp = true;
  const Answers drafted = answers_of_ranks(model, sizes, {}, prompts, ranks);
  EXPECT_EQ(drafted.tokens, plain.tokens);
  EXPECT_GT(drafted.stats.drafts.all_drafted(), 0);
}

/// Experts by number and by width, where a width has enough blocks, have one GPU's logits.
inline void check_splits(const std::string& model, const GpuSetup::Sizes& sizes,
                         const std::vector<Prompt>& prompts, std::int32_t ranks,
                         const std::vector<std::string>& splits) {
  const Answers one = answers_of(model, sizes, {}, prompts);
  for (const std::string& split : splits) {
    SCOPED_TRACE(split);
    expect_like_one_gpu(answers_of_ranks(model, sizes, {}, prompts, ranks, {.split = split}), one);
  }
}

/// Steps until one fails; returns its message. Later steps fail, too.
inline std::string failure_of(GpuRanks& setup) {
  Request r;
  r.prompt = some_tokens(12, setup.config().vocab);
  r.sampling.max_tokens = 30;
  r.sampling.ignore_eos = true;
  EXPECT_TRUE(setup.engine().submit(std::move(r)).ok());
  for (int step = 0; step < 40; ++step) {
    const auto report = setup.engine().step();
    if (report) continue;
    EXPECT_FALSE(setup.engine().in_flight());
    EXPECT_FALSE(setup.engine().step().ok());
    return report.error().message();
  }
  return "no step failed";
}

/// A rank's thread ends in the middle of a step while its peer's GPU waits for it.
inline void check_rank_that_ends(const std::string& model, const GpuSetup::Sizes& sizes,
                                 cuda::ExchangeKind kind = cuda::ExchangeKind::peer) {
  GpuRanksOptions own{.kind = kind};
  own.change = [](std::int32_t r, Faults& f) { f.end_thread = r == 1 ? 5 : -1; };
  GpuRanks setup(model, sizes, {}, 2, own);
  EXPECT_EQ(failure_of(setup),
            "rank 1: wanted a thread that works, got a test ends this rank's thread");
}

/// A rank's thread stops: its peer's kernel waits for `limit` seconds, and then the watchdog finds
/// that the thread does not come back.
inline void check_rank_that_stalls(const std::string& model, const GpuSetup::Sizes& sizes,
                                   double limit) {
  std::latch until(1);
  std::atomic<bool> found = false;
  GpuRanksOptions own;
  own.change = [&](std::int32_t r, Faults& f) {
    if (r == 1) f.stall = 5, f.stalled = &until;
  };
  own.group.look_every = std::chrono::milliseconds(5);
  own.group.limits.leave = std::chrono::milliseconds(20);
  own.group.on_stuck = [&](const Error& error) {
    EXPECT_NE(error.message().find("rank 1 (GPU 1) in step"), std::string::npos) << error.message();
    found = true;
    until.count_down();
  };
  GpuRanks setup(model, sizes, {}, 2, own);
  ASSERT_TRUE(setup.group()
                  .run([&](std::int32_t r) -> Result<void> {
                    setup.communicator(r).set_limit(limit);
                    return {};
                  })
                  .ok());
  const std::string message = failure_of(setup);
  EXPECT_NE(message.find("rank 0 (GPU 0) waited"), std::string::npos) << message;
  EXPECT_NE(message.find("for rank 1"), std::string::npos) << message;
  EXPECT_TRUE(found);
}

/// The same through NCCL. Its calls wait for ever, so the watchdog finds that no rank finishes an
/// exchange within `limit` seconds, and aborts them.
inline void check_rank_that_stalls_nccl(const std::string& model, const GpuSetup::Sizes& sizes,
                                        int limit) {
  std::latch until(1);
  std::atomic<bool> found = false;
  GpuRanksOptions own{.kind = cuda::ExchangeKind::nccl};
  own.change = [&](std::int32_t r, Faults& f) {
    if (r == 1) f.stall = 5, f.stalled = &until;
  };
  own.group.look_every = std::chrono::milliseconds(5);
  own.group.limits.exchange = own.group.limits.first = std::chrono::seconds(limit);
  own.group.limits.leave = std::chrono::milliseconds(20);
  own.group.on_stuck = [&](const Error& error) {
    EXPECT_NE(error.message().find("rank 1 (GPU 1) in step"), std::string::npos) << error.message();
    found = true;
    until.count_down();
  };
  GpuRanks setup(model, sizes, {}, 2, own);
  const std::string message = failure_of(setup);
  EXPECT_NE(message.find("wanted an exchange in"), std::string::npos) << message;
  EXPECT_NE(message.find("rank 1 (GPU 1) after exchange"), std::string::npos) << message;
  EXPECT_TRUE(found);
}

}  // namespace lathe
