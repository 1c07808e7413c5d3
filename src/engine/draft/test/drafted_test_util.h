// Answers with a draft layer, and requests to compare them with answers without one.
#pragma once

#include <cstdio>
#include <random>
#include <span>

#include "engine/draft/mtp_drafter.h"
#include "engine/test/real_model_test_util.h"

namespace lathe {

struct Drafted {
  std::vector<RealAnswer> answers;  // of the last time
  EngineStats stats;
};

/// Serves the requests `times` times in one engine with the model's draft layer, a step apart.
inline Drafted serve_drafted(const Model& model, const RealSetup::Options& setup_options,
                             EngineOptions options, const std::vector<Request>& requests,
                             int times = 1) {
  RealSetup setup(model, setup_options);
  auto drafter = MtpDrafter::create(model, setup.cache(), setup.ops());
  EXPECT_TRUE(drafter);
  options.drafter = &*drafter;
  Engine engine = setup.engine(options);
  Drafted out;
  for (int i = 0; i < times; ++i) out.answers = serve_real(engine, requests, 1);
  out.stats = engine.stats();
  return out;
}

/// The requests, and a copy of each with sampling, a filter and a penalty. Each has a seed, because
/// the default depends on the request's number in its engine.
inline std::vector<Request> and_drawn(std::vector<Request> requests) {
  const std::size_t greedy_ones = requests.size();
  for (std::size_t i = 0; i < greedy_ones; ++i) {
    Request r = requests[i];
    SamplingParams& p = r.sampling;
    p.temperature = 0.7f + 0.1f * static_cast<float>(i);
    p.seed = 90 + i;
    if (i % 4 == 1) p.top_p = 0.8f;
    if (i % 4 == 2) p.top_k = 12;
    if (i % 4 == 3) p.min_p = 0.1f;
    if (i % 3 == 1) p.repetition_penalty = 1.2f;
    if (i % 3 == 2) p.presence_penalty = 0.4f;
    requests.push_back(std::move(r));
  }
  return requests;
}

/// Ten requests with the same beginning, one of them nothing else; some greedy. Prints the seed.
inline std::vector<Request> company_of(std::span<const std::int32_t> words, std::uint32_t seed) {
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  const auto pick = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % n); };
  std::vector<Request> requests;
  for (int i = 0; i < 10; ++i) {
    const std::int64_t longest = i == 4 ? std::ssize(words) : 60;
    std::vector<std::int32_t> prompt(words.begin(), words.begin() + 1 + pick(longest));
    Request r = greedy(std::move(prompt), static_cast<std::int32_t>(30 + pick(40)));
    r.sampling.temperature = pick(2) == 0 ? 0.0f : 0.9f;
    r.sampling.seed = random();
    requests.push_back(std::move(r));
  }
  return requests;
}

/// Expects equal answers, bit by bit, although requests were preempted and drafts accepted.
inline void expect_company_changed_nothing(const Drafted& got,
                                           const std::vector<RealAnswer>& want) {
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(same(got.answers[i], want[i])) << "request " << i;
  }
  EXPECT_GT(got.stats.preemptions, 0);
  EXPECT_GT(got.stats.drafts.all_accepted(), 0);
  EXPECT_EQ(got.stats.held_pages, 0);
}

}  // namespace lathe
