// The CUDA backend's sampler against the CPU's, bit for bit.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "ops/sampling.h"
#include "ops/test/gpu_test_util.h"

namespace lathe::ops_test {

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
      // Some logits are equal.
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
    GpuContext gpu;
    Context cpu(1);
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

}  // namespace lathe::ops_test
