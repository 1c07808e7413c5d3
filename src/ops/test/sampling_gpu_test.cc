// The sampler on a GPU with a real vocabulary: the CPU's tokens and log-probabilities.
#include <gtest/gtest.h>

#include "base/test_scale.h"
#include "kernels/cuda/common/test/gpu_test_util.h"
#include "ops/test/gpu_sampling_checks.h"

namespace lathe {
namespace {

using ops_test::Draw;
using ops_test::GpuSampling;

TEST_F(GpuSampling, DrawsTheTokensOfTheCpu) {
  constexpr std::int64_t kVocab = 151936;
  const unsigned seed = test_seed(3);
  SCOPED_TRACE(seed);
  rng.seed(seed);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 8; ++round) {
    std::vector<Draw> draws;
    for (int i = 0; i < 12; ++i) {
      Draw& d = draws.emplace_back(random_draw(kVocab));
      const float spread = std::exp2(static_cast<float>(rng() % 12) - 5);
      for (float& v : d.logits) v = spread * normal(rng);
      SamplingParams& p = d.params;
      p.temperature = i % 6 == 0 ? 0 : static_cast<float>(1 + rng() % 15) / 10;
      if (rng() % 2 == 0) p.top_k = static_cast<std::int32_t>(1 + rng() % (rng() % 2 ? 60 : 90000));
      if (rng() % 3 != 0) p.top_p = static_cast<float>(1 + rng() % 9999) / 10000;
      if (rng() % 4 == 0) p.min_p = static_cast<float>(rng() % 100) / 1000;
      if (rng() % 4 == 0) p.repetition_penalty = 1.2f;
      if (rng() % 4 == 0) p.logprobs = static_cast<std::int32_t>(rng() % 6);
    }
    expect_the_cpu_s(draws);
  }
}

}  // namespace
}  // namespace lathe

int main(int argc, char** argv) { return lathe::cuda::gpu_test_main(argc, argv); }
