#include "model/weights/tensor_table.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace lathe {
namespace {

// Gemma's RMSNorms multiply by 1 + weight. Every RMSNorm of a layer has the offset, those of the
// latents too; the indexer's LayerNorm and all biases have none.
TEST(TensorTable, EveryRmsNormHasTheOffset) {
  for (const char* name : {"gemma3", "deepseek_v3", "deepseek_v32", "glm_moe_dsa"}) {
    ModelConfig config = *load_model_config(fmt::format("{}/models/{}", LATHE_TEST_DATA, name));
    config.norm_offset = 1;
    ModelWeights weights(config);
    int norms = 0;
    for (const TensorSpec& spec : tensor_table(config, weights)) {
      if (spec.vector == nullptr) continue;
      const bool rms =
          spec.name.ends_with("norm.weight") && spec.name.find(".indexer.") == std::string::npos;
      EXPECT_EQ(spec.offset, rms ? 1 : 0) << spec.name;
      norms += rms ? 1 : 0;
    }
    // Four to a layer in each of them, and the final one.
    EXPECT_GE(norms, 4 * config.layers + 1) << name;
  }
}

}  // namespace
}  // namespace lathe
