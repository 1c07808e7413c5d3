// The emulated CUDA backend's sampler: the CPU's tokens and log-probabilities, bit for bit.
#include <gtest/gtest.h>

#include <limits>

#include "ops/test/gpu_sampling_checks.h"

namespace lathe {
namespace {

using ops_test::Draw;
using ops_test::GpuSampling;

TEST_F(GpuSampling, GreedyAndTemperature) {
  std::vector<Draw> draws;
  for (const float temperature : {0.0f, 1.0f, 0.3f, 2.5f}) {
    for (int i = 0; i < 3; ++i) {
      draws.push_back(random_draw(1500));
      draws.back().params.temperature = temperature;
    }
  }
  expect_the_cpu_s(draws);
}

TEST_F(GpuSampling, Filters) {
  std::vector<Draw> draws;
  for (int i = 0; i < 24; ++i) {
    draws.push_back(random_draw(1100));
    SamplingParams& p = draws.back().params;
    if (i % 3 != 0) p.top_k = static_cast<std::int32_t>(1 + rng() % 60);
    if (i % 2 != 0) p.top_p = static_cast<float>(1 + rng() % 99) / 100;
    if (i % 5 == 0) p.min_p = static_cast<float>(rng() % 100) / 300;
    p.temperature = static_cast<float>(1 + rng() % 20) / 10;
  }
  // All logits are equal, so tokens rank by id.
  draws[0].logits.assign(1100, 0.5f);
  draws[1].logits.assign(1100, 0.5f);
  expect_the_cpu_s(draws);
}

// A cut among many tokens: dense and sparse weights, hundreds of equal weights, a cut in a tail of
// weights below 2^-63.
TEST_F(GpuSampling, FiltersOfLargeVocabularies) {
  std::vector<Draw> draws;
  std::normal_distribution<float> normal;
  for (const float spread : {0.0f, 1e-6f, 0.3f, 3.0f, 12.0f, 200.0f}) {
    for (const auto& [k, share] : {std::pair{-1, 0.95f},
                                   {5000, 1.0f},
                                   {800, 0.9f},
                                   {-1, 0.99999994f},
                                   {20, 0.8f},
                                   {-1, 1e-4f},
                                   {11999, 0.5f}}) {
      Draw& d = draws.emplace_back(random_draw(12000));
      for (float& v : d.logits) v = spread * normal(rng);
      if (k == 800) {  // in groups
        for (std::size_t i = 0; i < d.logits.size(); ++i) d.logits[i] = d.logits[i % 13];
      }
      d.params.top_k = k;
      d.params.top_p = share;
      if (k == 11999) d.params.min_p = 1e-3f;
    }
  }
  expect_the_cpu_s(draws);
}

TEST_F(GpuSampling, PenaltiesBiasAndLogprobs) {
  std::vector<Draw> draws;
  for (int i = 0; i < 16; ++i) {
    draws.push_back(random_draw(700));
    Draw& d = draws.back();
    SamplingParams& p = d.params;
    p.temperature = i % 4 == 0 ? 0 : 0.8f;
    if (i % 2 == 0) p.repetition_penalty = 1.3f;
    if (i % 3 == 0) p.frequency_penalty = 0.7f;
    if (i % 3 == 1) p.presence_penalty = -0.4f;
    if (i % 5 == 0) p.logit_bias = {{3, 4.5f}, {9, -2.0f}, {3, 0.25f}};
    if (i % 4 == 1) d.ruled_out = {0, 5, 6};
    if (i % 5 == 1) d.allowed.assign(22, 0x10011u);
    if (i % 5 == 3) d.allowed.assign(22, ~0u);
    if (i % 2 == 1) p.logprobs = i % 8;
    if (i % 3 != 0) p.logprob_ids = {17, 699, static_cast<std::int32_t>(i)};
  }
  // As when scoring a prompt: the bias decides the token.
  draws[3].params.logit_bias = {{77, std::numeric_limits<float>::max()}};
  draws[3].params.temperature = 0;
  expect_the_cpu_s(draws);
}

TEST_F(GpuSampling, NothingIsDrawnFromWhatIsNotFinite) {
  std::vector<Draw> draws = {random_draw(300), random_draw(300), random_draw(300)};
  draws[0].logits[299] = INFINITY;
  draws[2].logits[17] = NAN;
  expect_the_cpu_s(draws);
}

}  // namespace
}  // namespace lathe
