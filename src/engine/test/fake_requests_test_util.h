// Requests for a FakeModel, and an engine's answers to them.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "engine/test/fake_model_test_util.h"

namespace lathe {

/// A greedy request with a prompt that depends on `first`. NaN never comes up.
inline Request request(std::int32_t prompt, std::int32_t answer, std::int32_t first = 1) {
  Request r;
  for (std::int32_t i = 0; i < prompt; ++i) {
    r.prompt.push_back((first + i * 11) % FakeModel::kNanToken);
  }
  r.sampling.temperature = 0;
  r.sampling.max_tokens = answer;
  r.sampling.ignore_eos = true;
  r.sampling.logit_bias = {{FakeModel::kNanToken, -1000}};
  return r;
}

struct Served {
  std::vector<StepReport> steps;
  std::map<RequestId, Answer> answers;
  EngineStats stats;
};

/// Serves all requests at once, or one every `between` steps.
inline Served serve(Engine& engine, const std::vector<Request>& requests, std::int64_t between = 0,
                    const std::function<void()>& before_step = nullptr) {
  Served out;
  std::size_t next = 0;
  while (next < requests.size() || !engine.idle()) {
    while (next < requests.size() &&
           static_cast<std::int64_t>(next) * between <= std::ssize(out.steps)) {
      EXPECT_TRUE(engine.submit(requests[next++]));
    }
    if (before_step) before_step();
    auto report = engine.step();
    EXPECT_TRUE(report);
    if (!report) break;
    for (const TokenEvent& e : report->tokens) {
      out.answers[e.request].tokens.push_back(e.sampled.token);
    }
    for (const Finished& f : report->finished) out.answers[f.request].reason = f.reason;
    out.steps.push_back(std::move(*report));
  }
  out.stats = engine.stats();
  return out;
}

}  // namespace lathe
