// Gemma 4's configurations: published values of 26B-A4B and 31B, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/config/split_sizes.h"
#include "model/config/test/config_test_util.h"

namespace lathe {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// google/gemma-4-26B-A4B, with twelve layers.
Json gemma4_26b() {
  std::vector<std::string> types(12, "sliding_attention");
  types[5] = types[11] = "full_attention";
  const Json text = {
      {"attention_bias", false},
      {"attention_k_eq_v", true},
      {"bos_token_id", 2},
      {"enable_moe_block", true},
      {"eos_token_id", 1},
      {"final_logit_softcapping", 30.0},
      {"global_head_dim", 512},
      {"head_dim", 256},
      {"hidden_activation", "gelu_pytorch_tanh"},
      {"hidden_size", 2816},
      {"hidden_size_per_layer_input", 0},
      {"intermediate_size", 2112},
      {"layer_types", types},
      {"max_position_embeddings", 262144},
      {"model_type", "gemma4_text"},
      {"moe_intermediate_size", 704},
      {"num_attention_heads", 16},
      {"num_experts", 128},
      {"num_global_key_value_heads", 2},
      {"num_hidden_layers", 12},
      {"num_key_value_heads", 8},
      {"num_kv_shared_layers", 0},
      {"rms_norm_eps", 1e-6},
      {"rope_parameters",
       {{"full_attention",
         {{"partial_rotary_factor", 0.25}, {"rope_theta", 1e6}, {"rope_type", "proportional"}}},
        {"sliding_attention", {{"rope_theta", 1e4}, {"rope_type", "default"}}}}},
      {"sliding_window", 1024},
      {"top_k_experts", 8},
      {"use_bidirectional_attention", "vision"},
      {"use_double_wide_mlp", false},
      {"vocab_size", 262144}};
  return {{"architectures", {"Gemma4ForConditionalGeneration"}},
          {"model_type", "gemma4"},
          {"tie_word_embeddings", true},
          {"text_config", text}};
}

TEST(ConfigGemma4, LayersWithoutAWindowHaveHeadsOfTheirOwn) {
  const ModelConfig c = parsed(gemma4_26b());
  EXPECT_TRUE(c.text_tower && c.tied_embeddings);
  ASSERT_EQ(c.groups.size(), 2u);
  AttentionProblem window = gqa_problem(16, 8, 256);
  window.window = 1024;
  window.scale = 1;
  EXPECT_EQ(c.groups[0].problem, window);
  EXPECT_EQ(c.groups[0].rope.theta, 1e4);
  EXPECT_FALSE(c.groups[0].rope.pairs);
  EXPECT_FALSE(c.groups[0].values_are_keys);
  AttentionProblem full = gqa_problem(16, 2, 512);
  full.scale = 1;
  EXPECT_EQ(c.groups[1].problem, full);
  EXPECT_THAT(c.groups[1].layers, ElementsAre(5, 11));
  EXPECT_TRUE(c.groups[1].values_are_keys);
  EXPECT_EQ(c.groups[1].rope.theta, 1e6);
  EXPECT_EQ(c.groups[1].rope.dim, 512);
  EXPECT_EQ(c.groups[1].rope.pairs, 64);
  EXPECT_EQ(c.qk_norm, QkNorm::heads);
  EXPECT_TRUE(c.value_norm);
  EXPECT_EQ(c.norm_offset, 0);
  const SplitSizes sizes = split_sizes(c);
  EXPECT_EQ(sizes.kv_heads, 8);
  EXPECT_EQ(sizes.other_kv_heads, 2);
  EXPECT_EQ(sizes.ffn, 2112);
  EXPECT_EQ(sizes.expert_width, 704);
}

TEST(ConfigGemma4, ExpertsAreNextToADensePart) {
  const ModelConfig c = parsed(gemma4_26b());
  EXPECT_EQ(c.ffn, 2112);
  EXPECT_EQ(c.moe.experts, 128);
  EXPECT_EQ(c.moe.ffn, 704);
  EXPECT_EQ(c.moe.top_k, 8);
  EXPECT_TRUE(c.moe.normalize);
  EXPECT_EQ(c.moe.names.dense, "mlp.");
  EXPECT_EQ(c.norms.experts, "pre_feedforward_layernorm_2");
  EXPECT_EQ(c.layer_scale, "layer_scalar");
  EXPECT_EQ(c.logit_cap, 30);
  EXPECT_EQ(c.embedding_scale, std::sqrt(2816.0f));
  EXPECT_EQ(c.activation.kind, ActivationKind::gelu_tanh);
}

// 31B: its other keys are null.
TEST(ConfigGemma4, DenseModels) {
  Json j = gemma4_26b();
  Json& text = j["text_config"];
  text["enable_moe_block"] = false;
  for (const char* key : {"num_experts", "top_k_experts", "moe_intermediate_size"}) {
    text[key] = nullptr;
  }
  const ModelConfig c = parsed(j);
  EXPECT_EQ(c.moe.experts, 0);
  EXPECT_TRUE(c.norms.experts.empty());
  text["attention_k_eq_v"] = false;  // then all layers have as many key heads
  EXPECT_EQ(parsed(j).groups[1].problem.kv_heads, 8);
  EXPECT_FALSE(parsed(j).groups[1].values_are_keys);
}

// As transformers saves it.
TEST(ConfigGemma4, HeadsOfEachLayer) {
  Json j = gemma4_26b();
  Json& text = j["text_config"];
  text.erase("global_head_dim");
  text.erase("num_global_key_value_heads");
  const Json own = {{"head_dim", 512}, {"num_key_value_heads", 2}};
  text["per_layer_config"] = {{"5", own}, {"11", own}};
  EXPECT_EQ(parsed(j).groups[1].problem, parsed(gemma4_26b()).groups[1].problem);
  text["per_layer_config"]["11"]["head_dim"] = 256;
  EXPECT_THAT(refusal(j), AllOf(HasSubstr("per_layer_config: 11"), HasSubstr("head_dim 512"),
                                HasSubstr("got 256 and 2")));
  text["per_layer_config"] = {{"0", own}};
  EXPECT_THAT(refusal(j), HasSubstr("per_layer_config: 0"));
}

TEST(ConfigGemma4, DefaultsOfTheClass) {
  Json j = gemma4_26b();
  Json& text = j["text_config"];
  for (const char* key : {"rope_parameters", "global_head_dim", "layer_types", "sliding_window",
                          "final_logit_softcapping"}) {
    text.erase(key);
  }
  const ModelConfig c = parsed(j);
  EXPECT_EQ(c.groups[0].problem.window, 512);
  EXPECT_EQ(c.groups[0].rope.theta, 1e4);
  EXPECT_THAT(c.groups[1].layers, ElementsAre(5, 11));
  EXPECT_EQ(c.groups[1].rope.theta, 1e6);
  EXPECT_EQ(c.groups[1].rope.pairs, 64);
  EXPECT_EQ(c.logit_cap, 0);
  text["num_hidden_layers"] = 10;  // the last layer has no window
  EXPECT_THAT(parsed(j).groups[1].layers, ElementsAre(5, 9));
}

// The keys of gemma-4-E2B's text_config that differ.
Json gemma4_e2b() {
  Json j = gemma4_26b();
  Json& text = j["text_config"];
  text["hidden_size"] = 1536;
  text["intermediate_size"] = 6144;
  text["num_hidden_layers"] = 35;
  text["num_attention_heads"] = 8;
  text["num_key_value_heads"] = 1;
  text["num_global_key_value_heads"] = nullptr;
  text["attention_k_eq_v"] = false;
  text["hidden_size_per_layer_input"] = 256;
  text["vocab_size_per_layer_input"] = 262144;
  text["num_kv_shared_layers"] = 20;
  text["use_double_wide_mlp"] = true;
  text["enable_moe_block"] = false;
  text["layer_types"] = Json::array();
  for (int l = 0; l < 35; ++l) {
    text["layer_types"].push_back(l % 5 == 4 ? "full_attention" : "sliding_attention");
  }
  return j;
}

TEST(ConfigGemma4, LayersThatReadOthersKeys) {
  const ModelConfig c = parsed(gemma4_e2b());
  ASSERT_EQ(c.groups.size(), 2u);
  EXPECT_EQ(c.groups[0].layers.size(), 12u);
  EXPECT_EQ(c.groups[0].layers.back(), 13);
  EXPECT_EQ(c.groups[0].readers.size(), 16u);
  EXPECT_EQ(c.groups[0].readers.front(), 15);
  EXPECT_THAT(c.groups[1].layers, ElementsAre(4, 9, 14));
  EXPECT_THAT(c.groups[1].readers, ElementsAre(19, 24, 29, 34));
  EXPECT_FALSE(c.is_reader(14));
  EXPECT_TRUE(c.is_reader(15));
  EXPECT_EQ(c.group_of(19), 1u);
  EXPECT_EQ(c.reader_ffn, 2);
  EXPECT_EQ(c.layer_inputs.width, 256);
  EXPECT_EQ(c.layer_inputs.vocab, 262144);
  // Their keys are in the cache once.
  EXPECT_EQ(c.layer_groups()[1].layers.size(), 3u);
  EXPECT_EQ(c.layer_groups()[1].readers.size(), 4u);
}

TEST(ConfigGemma4, SmallModelsRefuse) {
  Json j = gemma4_e2b();
  Json& text = j["text_config"];
  text["num_kv_shared_layers"] = 31;  // no layer without a window has keys
  EXPECT_THAT(refusal(j), AllOf(HasSubstr("num_kv_shared_layers"), HasSubstr("layer 4")));
  text["num_kv_shared_layers"] = 35;
  EXPECT_THAT(refusal(j), HasSubstr("num_kv_shared_layers"));
  text["num_kv_shared_layers"] = 20;
  text["vocab_size_per_layer_input"] = 1000;
  EXPECT_THAT(refusal(j), HasSubstr("vocab_size_per_layer_input"));
}

TEST(ConfigGemma4, RefusesPartsByName) {
  Json j = gemma4_26b();
  Json& text = j["text_config"];
  text.erase("hidden_size_per_layer_input");  // 256 in the class; the experts' layers have none
  EXPECT_THAT(refusal(j), HasSubstr("layer_inputs"));
  text["hidden_size_per_layer_input"] = 0;
  text["use_bidirectional_attention"] = "all";
  EXPECT_THAT(refusal(j), HasSubstr("use_bidirectional_attention: wanted vision"));
  text["use_bidirectional_attention"] = nullptr;
  text["attention_bias"] = true;
  EXPECT_THAT(refusal(j), HasSubstr("values_are_keys"));
}

}  // namespace
}  // namespace lathe
