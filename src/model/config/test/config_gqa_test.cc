// Configurations of architectures with grouped-query attention.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "model/config/test/config_test_util.h"

namespace lathe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ModelConfig, Qwen3HasItsOwnHeadDim) {
  const ModelConfig c = parsed(qwen3());
  EXPECT_EQ(c.groups.front().problem, gqa_problem(16, 8, 128));
  EXPECT_EQ(c.qk_norm, QkNorm::heads);
  EXPECT_FALSE(c.attention_bias);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_EQ(c.groups.front().rope.pairing, RopePairing::split_half);
  EXPECT_EQ(c.groups.front().rope.theta, 1e6);
  EXPECT_EQ(c.moe.experts, 0);
}

TEST(ModelConfig, Qwen2HasBiasesAndLlamaNone) {
  Json j = qwen3();
  j["architectures"] = {"Qwen2ForCausalLM"};
  EXPECT_TRUE(parsed(j).attention_bias);
  EXPECT_FALSE(parsed(j).attention_out_bias);
  EXPECT_EQ(parsed(j).qk_norm, QkNorm::none);
  j["architectures"] = {"LlamaForCausalLM"};
  EXPECT_FALSE(parsed(j).attention_bias);
  j.erase("head_dim");
  EXPECT_EQ(parsed(j).groups.front().problem.head_dim, 64);
  j["rope_scaling"] = {{"rope_type", "llama3"},
                       {"factor", 32.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
  ASSERT_TRUE(parsed(j).groups.front().rope.llama3);
  EXPECT_EQ(parsed(j).groups.front().rope.llama3->factor, 32);
}

TEST(ModelConfig, AWindowIsOfAllLayersOrOfSome) {
  Json j = qwen3();
  j["use_sliding_window"] = true;
  j["sliding_window"] = 4096;
  EXPECT_EQ(parsed(j).attention(0).window, 0);  // max_window_layers is 28 of 28
  j["max_window_layers"] = 0;
  EXPECT_EQ(parsed(j).groups.size(), 1u);
  EXPECT_EQ(parsed(j).attention(0).window, 4096);
  j["max_window_layers"] = 26;
  const ModelConfig c = parsed(j);
  ASSERT_EQ(c.groups.size(), 2u);
  EXPECT_EQ(c.groups[0].name, "full");
  EXPECT_EQ(c.groups[0].problem.window, 0);
  EXPECT_EQ(c.groups[1].name, "window");
  EXPECT_EQ(c.groups[1].problem.window, 4096);
  EXPECT_THAT(c.groups[1].layers, ElementsAre(26, 27));
  EXPECT_EQ(c.groups[0].rope, c.groups[1].rope);
  j["layer_types"] = {"full_attention"};
  EXPECT_THAT(refusal(j), HasSubstr("layer_types: wanted 28 entries, got 1"));
  j["layer_types"] = {"chunked_attention"};
  EXPECT_THAT(refusal(j), HasSubstr("full_attention or sliding_attention"));
  // The message gives the layer, its type and the supported types.
  std::vector<std::string> types(28, "full_attention");
  types[3] = "linear_attention";
  j["layer_types"] = types;
  EXPECT_THAT(refusal(j), HasSubstr("layer_types[3]: wanted full_attention or sliding_attention, "
                                    "got \"linear_attention\""));
}

TEST(ModelConfig, MistralHasItsWindowInAllLayers) {
  Json j = qwen3();
  j["architectures"] = {"MistralForCausalLM"};
  EXPECT_EQ(parsed(j).attention(0).window, 0);
  j["sliding_window"] = 4096;
  EXPECT_EQ(parsed(j).groups.size(), 1u);
  EXPECT_EQ(parsed(j).attention(27).window, 4096);
  EXPECT_EQ(parsed(j).qk_norm, QkNorm::none);
}

// XiaomiMiMo's modeling_mimo.py: Qwen 2 with draft layers.
TEST(ModelConfig, MiMoIsQwen2) {
  Json j = qwen3();
  j["architectures"] = {"MiMoForCausalLM"};
  const ModelConfig mimo = parsed(j);
  EXPECT_TRUE(mimo.attention_bias);
  EXPECT_EQ(mimo.qk_norm, QkNorm::none);
  EXPECT_FALSE(mimo.attention_out_bias);
  EXPECT_EQ(mimo.attention(0), parsed(qwen3()).attention(0));
}

TEST(ModelConfig, Gemma3) {
  Json j = gemma3();
  const ModelConfig c = parsed(j);
  ASSERT_EQ(c.groups.size(), 2u);
  EXPECT_EQ(c.groups[0].name, "window");
  EXPECT_THAT(c.groups[1].layers, ElementsAre(5, 11, 17, 23));
  EXPECT_EQ(c.groups[0].layers.size(), 22u);
  EXPECT_EQ(c.groups[0].problem.window, 512);
  EXPECT_FLOAT_EQ(c.groups[0].problem.scale, 1.0f / 12);
  EXPECT_FLOAT_EQ(c.groups[1].problem.scale, 1.0f / 12);
  EXPECT_EQ(c.groups[0].rope.theta, 10000);
  EXPECT_EQ(c.groups[0].rope.linear_factor, 1);
  EXPECT_EQ(c.groups[1].rope.theta, 1000000);
  EXPECT_EQ(c.groups[1].rope.linear_factor, 8);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_EQ(c.norms.attention_out, "post_attention_layernorm");
  EXPECT_EQ(c.embedding_scale, std::sqrt(static_cast<float>(c.hidden)));
  EXPECT_TRUE(c.rounded_embedding_scale);
  EXPECT_EQ(c.norm_offset, 1);
  EXPECT_EQ(c.activation.kind, ActivationKind::gelu_tanh);

  j["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1000000}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 10000}}}};
  for (const char* old :
       {"rope_local_base_freq", "rope_scaling", "rope_theta", "sliding_window_pattern"}) {
    j.erase(old);
  }
  Json types = Json::array();
  for (int l = 0; l < 26; ++l) {
    types.push_back(l % 6 == 5 ? "full_attention" : "sliding_attention");
  }
  j["layer_types"] = types;
  const ModelConfig newer = parsed(j);
  for (std::size_t g = 0; g < 2; ++g) {
    EXPECT_EQ(newer.groups[g].rope, c.groups[g].rope);
    EXPECT_EQ(newer.groups[g].layers, c.groups[g].layers);
    EXPECT_EQ(newer.groups[g].problem, c.groups[g].problem);
  }

  const auto with = [](const std::string& key, Json value) {
    Json changed = gemma3();
    changed[key] = std::move(value);
    return refusal(changed);
  };
  EXPECT_THAT(with("attn_logit_softcapping", 50.0), HasSubstr("attn_logit_softcapping"));
  EXPECT_THAT(with("final_logit_softcapping", 30.0), HasSubstr("final_logit_softcapping"));
  EXPECT_THAT(with("use_bidirectional_attention", true), HasSubstr("use_bidirectional_attention"));
  EXPECT_THAT(with("hidden_activation", "gelu"), HasSubstr("hidden_activation: wanted gelu_pyt"));
  EXPECT_THAT(with("quantization_config", {{"quant_method", "mxfp4"}}), HasSubstr("quant_method"));
}

TEST(ModelConfig, GptOss) {
  const ModelConfig c = parsed(gpt_oss());
  ASSERT_EQ(c.groups.size(), 2u);
  EXPECT_EQ(c.groups[0].name, "window");
  EXPECT_EQ(c.groups[0].problem.window, 128);
  EXPECT_EQ(c.groups[0].layers.front(), 0);
  EXPECT_EQ(c.groups[1].layers.front(), 1);
  EXPECT_EQ(c.groups[1].layers.size(), 12u);
  for (const LayerGroupConfig& g : c.groups) {
    EXPECT_TRUE(g.problem.sink);
    EXPECT_FLOAT_EQ(g.problem.scale, 0.125f);
    ASSERT_TRUE(g.rope.yarn);
    EXPECT_FALSE(g.rope.yarn->truncate);
    EXPECT_NEAR(rope_magnitude(g.rope), 0.1 * std::log(32.0) + 1, 1e-12);
  }
  EXPECT_TRUE(c.attention_bias && c.attention_out_bias);
  EXPECT_TRUE(c.mxfp4);
  EXPECT_FALSE(c.block_fp8);
  EXPECT_EQ(c.moe.experts, 32);
  EXPECT_EQ(c.moe.top_k, 4);
  EXPECT_EQ(c.moe.ffn, 2880);
  EXPECT_TRUE(c.moe.normalize);
  EXPECT_EQ(c.activation.kind, ActivationKind::clamped_swiglu);
  EXPECT_EQ(c.activation.limit, 7);
  EXPECT_FLOAT_EQ(c.activation.alpha, 1.702f);

  const auto with = [](const std::string& key, Json value) {
    Json changed = gpt_oss();
    changed[key] = std::move(value);
    return refusal(changed);
  };
  EXPECT_THAT(with("quantization_config", {{"quant_method", "fp8"}}),
              HasSubstr("quant_method: wanted mxfp4, got \"fp8\""));
  EXPECT_THAT(with("intermediate_size", 2000), HasSubstr("intermediate_size: wanted a multiple"));
  EXPECT_THAT(with("num_experts_per_tok", 40), HasSubstr("num_experts_per_tok"));
  Json plain = gpt_oss();
  plain.erase("quantization_config");
  EXPECT_FALSE(parsed(plain).mxfp4);
}

TEST(ModelConfig, Qwen3Moe) {
  Json j = qwen3();
  j["architectures"] = {"Qwen3MoeForCausalLM"};
  j["num_experts"] = 128;
  j["num_experts_per_tok"] = 8;
  j["moe_intermediate_size"] = 768;
  j["norm_topk_prob"] = true;
  j["decoder_sparse_step"] = 2;
  j["mlp_only_layers"] = {3};
  const ModelConfig c = parsed(j);
  EXPECT_EQ(c.moe.scoring, RouterScoring::softmax);
  EXPECT_EQ(c.moe.groups, 1);
  EXPECT_FALSE(c.moe.correction_bias);
  EXPECT_EQ(c.moe.layer_has_experts[0], 0);
  EXPECT_EQ(c.moe.layer_has_experts[1], 1);
  EXPECT_EQ(c.moe.layer_has_experts[3], 0);
}

// Qwen3MoeConfig has 4 key heads and no max_window_layers: use_sliding_window is for all layers.
TEST(ModelConfig, A7Qwen3MoeHasDefaultsOfItsOwn) {
  Json j = without(qwen3(), {"num_key_value_heads", "head_dim", "sliding_window"});
  j["architectures"] = {"Qwen3MoeForCausalLM"};
  j["num_experts"] = 8;
  j["num_experts_per_tok"] = 2;
  j["moe_intermediate_size"] = 768;
  EXPECT_EQ(parsed(j).attention(0).kv_heads, 4);
  EXPECT_EQ(parsed(j).attention(0).head_dim, 64);  // hidden_size / num_attention_heads
  EXPECT_EQ(parsed(j).attention(0).window, 0);
  j["use_sliding_window"] = true;
  EXPECT_EQ(parsed(j).attention(0).window, 4096);
  // One window for all layers: layer_types may only say the same.
  j["layer_types"] = std::vector<std::string>(28, "sliding_attention");
  EXPECT_EQ(parsed(j).attention(0).window, 4096);
  j["layer_types"][3] = "full_attention";
  EXPECT_THAT(refusal(j), HasSubstr("layer_types[3]: wanted"));
  j["use_sliding_window"] = false;
  EXPECT_THAT(refusal(j), HasSubstr("layer_types[0]: wanted"));
}

// Qwen 2 and 3 have no window without use_sliding_window, whatever sliding_window says, and
// transformers raises an error for a layer that slides without one.
TEST(ModelConfig, SlidingLayersNeedAWindowThatIsUsed) {
  for (const char* architecture : {"Qwen3ForCausalLM", "Qwen2ForCausalLM"}) {
    Json j = qwen3();
    j["architectures"] = {architecture};
    j["sliding_window"] = 4096;
    j["layer_types"] = std::vector<std::string>(28, "full_attention");
    EXPECT_EQ(parsed(j).attention(0).window, 0);
    j["layer_types"][27] = "sliding_attention";
    EXPECT_THAT(refusal(j), HasSubstr("use_sliding_window: wanted"));
    j = without(j, {"use_sliding_window"});
    EXPECT_THAT(refusal(j), HasSubstr("use_sliding_window: wanted"));
    j["use_sliding_window"] = true;
    EXPECT_EQ(parsed(j).attention(0).window, 0);
    EXPECT_EQ(parsed(j).attention(27).window, 4096);
    j["sliding_window"] = nullptr;
    EXPECT_THAT(refusal(j), HasSubstr("sliding_window: wanted"));
  }
}

}  // namespace
}  // namespace lathe
