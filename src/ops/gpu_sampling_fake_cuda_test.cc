// The CUDA backend's sampler, emulated: the CPU's tokens and log-probabilities, bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "ops/gpu_test_util.h"
#include "ops/sampling.h"

namespace lathe {
namespace {

struct Draw {
  std::vector<float> logits;
  std::vector<std::int32_t> prompt, answer, ruled_out;
  std::vector<std::uint32_t> allowed = {};
  SamplingParams params;
  std::uint64_t seed = 0;
};

class GpuSampling : public ::testing::Test {
 protected:
  Draw random_draw(std::int64_t vocab) {
    Draw d;
    std::normal_distribution<float> normal(0, 3);
    for (std::int64_t i = 0; i < vocab; ++i) {
      // Some of them equal.
      d.logits.push_back(rng() % 4 == 0 ? static_cast<float>(rng() % 5) : normal(rng));
    }
    const auto token = [&] {
      return static_cast<std::int32_t>(rng() % static_cast<unsigned>(vocab));
    };
    for (auto i = rng() % 20; i > 0; --i) d.prompt.push_back(token());
    for (auto i = rng() % 20; i > 0; --i) d.answer.push_back(token());
    d.seed = rng();
    return d;
  }

  void expect_the_cpu_s(const std::vector<Draw>& draws) {
    ops_test::GpuContext gpu;
    ops_test::Context cpu(1);
    std::vector<SampleArgs> here, there;
    for (const Draw& d : draws) {
      here.push_back({d.logits, &d.params, d.prompt, d.answer, d.ruled_out, d.seed, d.allowed});
      there.push_back(here.back());
      there.back().logits = gpu.list(d.logits);
    }
    std::vector<std::optional<SampledToken>> wanted(draws.size()), got(draws.size());
    sample(cpu.ops, here, wanted);
    sample(gpu.ops, there, got);
    ASSERT_TRUE(gpu.backend->wait().ok());
    for (std::size_t i = 0; i < draws.size(); ++i) {
      ASSERT_EQ(got[i].has_value(), wanted[i].has_value()) << i;
      if (!wanted[i]) continue;
      EXPECT_EQ(got[i]->token, wanted[i]->token) << i;
      EXPECT_EQ(got[i]->logprob, wanted[i]->logprob) << i;
      ASSERT_EQ(got[i]->top.size(), wanted[i]->top.size()) << i;
      for (std::size_t n = 0; n < wanted[i]->top.size(); ++n) {
        EXPECT_EQ(got[i]->top[n].token, wanted[i]->top[n].token) << i << ", " << n;
        EXPECT_EQ(got[i]->top[n].logprob, wanted[i]->top[n].logprob) << i << ", " << n;
      }
      ASSERT_EQ(got[i]->asked.size(), wanted[i]->asked.size()) << i;
      for (std::size_t n = 0; n < wanted[i]->asked.size(); ++n) {
        EXPECT_EQ(got[i]->asked[n].token, wanted[i]->asked[n].token) << i << ", " << n;
        EXPECT_EQ(got[i]->asked[n].logprob, wanted[i]->asked[n].logprob) << i << ", " << n;
      }
    }
  }

  std::mt19937 rng{11};
};

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
  // All tokens alike: ranks are ids.
  draws[0].logits.assign(1100, 0.5f);
  draws[1].logits.assign(1100, 0.5f);
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
  // What scores a prompt: the bias decides.
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
