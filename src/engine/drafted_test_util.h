// Answers with a draft layer, and requests to compare with answers without one.
#pragma once

#include "engine/mtp_drafter.h"
#include "engine/real_model_test_util.h"

namespace lathe {

struct Served {
  std::vector<RealAnswer> answers;  // of the last time
  EngineStats stats;
};

/// Serves the requests `times` times in one engine with the model's draft layer, a step apart.
inline Served serve_drafted(const Model& model, const RealSetup::Options& setup_options,
                            EngineOptions options, const std::vector<Request>& requests,
                            int times = 1) {
  RealSetup setup(model, setup_options);
  auto drafter = MtpDrafter::create(model, setup.cache(), setup.ops());
  EXPECT_TRUE(drafter);
  options.drafter = &*drafter;
  Engine engine = setup.engine(options);
  Served out;
  for (int i = 0; i < times; ++i) out.answers = serve(engine, requests, 1);
  out.stats = engine.stats();
  return out;
}

/// The requests, and each of them drawn with a filter and a penalty. A seed each, as requests count
/// from 1 in each engine.
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

}  // namespace lathe
