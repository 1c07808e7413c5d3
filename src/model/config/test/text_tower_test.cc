#include "model/config/text_tower.h"

#include <gmock/gmock.h>

#include "model/config/test/config_test_util.h"

namespace lathe {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// The keys of gemma-3-4b-it's config.json: its text_config gives few.
Json gemma3_4b() {
  return {{"architectures", {"Gemma3ForConditionalGeneration"}},
          {"model_type", "gemma3"},
          {"eos_token_id", {1, 106}},
          {"mm_tokens_per_image", 256},
          {"text_config",
           {{"hidden_size", 2560},
            {"intermediate_size", 10240},
            {"model_type", "gemma3_text"},
            {"num_hidden_layers", 34},
            {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
            {"sliding_window", 1024}}},
          {"vision_config", {{"hidden_size", 1152}, {"model_type", "siglip_vision_model"}}}};
}

Json mistral3() {
  return {{"architectures", {"Mistral3ForConditionalGeneration"}},
          {"model_type", "mistral3"},
          {"text_config",
           {{"head_dim", 128},
            {"hidden_act", "silu"},
            {"hidden_size", 5120},
            {"intermediate_size", 32768},
            {"max_position_embeddings", 131072},
            {"model_type", "mistral"},
            {"num_attention_heads", 32},
            {"num_hidden_layers", 40},
            {"num_key_value_heads", 8},
            {"rms_norm_eps", 1e-5},
            {"rope_theta", 1e9},
            {"sliding_window", nullptr},
            {"vocab_size", 131072}}}};
}

// Gemma3TextConfig's values where the file has none.
TEST(TextTower, Gemma3HasTheClasssSizes) {
  const ModelConfig c = parsed(gemma3_4b());
  EXPECT_EQ(c.architecture, "Gemma3ForConditionalGeneration");
  EXPECT_TRUE(c.text_tower);
  EXPECT_EQ(c.hidden, 2560);
  EXPECT_EQ(c.layers, 34);
  EXPECT_EQ(c.vocab, 262208);
  EXPECT_EQ(c.max_context, 131072);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_THAT(c.eos, ElementsAre(1, 106));
  ASSERT_EQ(c.groups.size(), 2u);
  AttentionProblem window = gqa_problem(8, 4, 256);
  window.window = 1024;
  EXPECT_EQ(c.groups[0].problem, window);
  EXPECT_EQ(c.groups[0].rope.theta, 10000);
  EXPECT_EQ(c.groups[0].rope.linear_factor, 1);
  EXPECT_EQ(c.groups[1].problem, gqa_problem(8, 4, 256));
  EXPECT_EQ(c.groups[1].rope.theta, 1e6);
  EXPECT_EQ(c.groups[1].rope.linear_factor, 8);
  EXPECT_EQ(c.groups[1].layers.size(), 5u);
  Json j = gemma3_4b();
  j["text_config"]["num_attention_heads"] = 16;
  j["text_config"]["num_key_value_heads"] = 8;
  EXPECT_EQ(parsed(j).groups[1].problem, gqa_problem(16, 8, 256));
}

TEST(TextTower, TheWholeModelsKeysReachTheText) {
  Json j = mistral3();
  EXPECT_TRUE(parsed(j).tied_embeddings);  // Mistral3Config
  EXPECT_FALSE(parsed(j).block_fp8);
  EXPECT_EQ(parsed(j).attention(0).window, 0);
  EXPECT_EQ(parsed(j).groups.front().rope.theta, 1e9);
  j["tie_word_embeddings"] = false;
  j["text_config"]["tie_word_embeddings"] = true;
  j["eos_token_id"] = 2;
  j["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  EXPECT_FALSE(parsed(j).tied_embeddings);
  EXPECT_TRUE(parsed(j).block_fp8);
  EXPECT_THAT(parsed(j).eos, ElementsAre(2));
  j["text_config"]["eos_token_id"] = 3;
  EXPECT_THAT(parsed(j).eos, ElementsAre(3));
}

// Llama-4-Scout's published file, and Llama4TextConfig's values where it has none.
TEST(TextTower, Llama4AttendsInChunks) {
  Json j = {{"architectures", {"Llama4ForConditionalGeneration"}},
            {"model_type", "llama4"},
            {"text_config",
             {{"attention_chunk_size", 8192},
              {"hidden_size", 5120},
              {"interleave_moe_layer_step", 1},
              {"intermediate_size", 8192},
              {"intermediate_size_mlp", 16384},
              {"max_position_embeddings", 10485760},
              {"model_type", "llama4_text"},
              {"num_attention_heads", 40},
              {"num_hidden_layers", 48},
              {"rope_theta", 500000.0},
              {"rope_scaling",
               {{"factor", 16.0},
                {"high_freq_factor", 1.0},
                {"low_freq_factor", 1.0},
                {"original_max_position_embeddings", 8192},
                {"rope_type", "llama3"}}},
              {"vocab_size", 202048}}}};
  Json& text = j["text_config"];
  const ModelConfig c = parsed(j);
  EXPECT_EQ(c.max_context, 10485760);
  EXPECT_EQ(c.norm_eps, 1e-5f);
  EXPECT_FALSE(c.tied_embeddings);
  ASSERT_EQ(c.groups.size(), 2u);
  AttentionProblem chunked = gqa_problem(40, 8, 128);
  chunked.window = 8192;
  chunked.chunked = true;
  EXPECT_EQ(c.groups[0].problem, chunked);
  EXPECT_EQ(c.groups[1].problem, gqa_problem(40, 8, 128));
  EXPECT_EQ(c.groups[0].rope.pairing, RopePairing::interleaved);
  EXPECT_TRUE(c.groups[0].unit_qk_norm && c.groups[0].rope.llama3);
  EXPECT_FALSE(c.groups[0].query_growth);
  EXPECT_EQ(c.groups[1].layers.size(), 12u);
  EXPECT_EQ(c.groups[1].layers.front(), 3);
  EXPECT_EQ(c.groups[1].rope.pairs, 0);
  EXPECT_EQ(c.groups[1].query_growth, (RopeGrowth{0.1, 8192, 1}));
  EXPECT_FALSE(c.groups[1].unit_qk_norm);
  EXPECT_EQ(c.moe.experts, 16);
  EXPECT_EQ(c.moe.top_k, 1);
  EXPECT_EQ(c.moe.ffn, 8192);
  EXPECT_EQ(c.moe.shared_width(), 8192);
  EXPECT_EQ(c.ffn, 16384);
  EXPECT_EQ(c.moe.scoring, RouterScoring::sigmoid);
  EXPECT_TRUE(c.moe.weighs_inputs && c.moe.stacked && c.moe.halves && !c.moe.normalize);
  // Maverick: experts in every other layer, no norm of heads.
  text["interleave_moe_layer_step"] = 2;
  text["use_qk_norm"] = false;
  EXPECT_THAT(parsed(j).moe.layer_has_experts[0], 0);
  EXPECT_THAT(parsed(j).moe.layer_has_experts[1], 1);
  EXPECT_FALSE(parsed(j).groups[0].unit_qk_norm);
  text["moe_layers"] = {0, 2};
  EXPECT_THAT(parsed(j).moe.layer_has_experts[0], 1);
  EXPECT_THAT(parsed(j).moe.layer_has_experts[1], 0);
  text["attn_scale"] = -0.1;
  EXPECT_THAT(refusal(j), HasSubstr("attn_scale: wanted a finite number from 1e-06"));
  text.erase("attn_scale");
  text["attn_temperature_tuning"] = false;
  EXPECT_FALSE(parsed(j).groups[1].query_growth);
  text["attention_chunk_size"] = nullptr;
  EXPECT_EQ(parsed(j).groups[0].problem, gqa_problem(40, 8, 128));
  text["attention_chunk_size"] = 8192;
  text["layer_types"] = std::vector<std::string>(48, "full_attention");
  EXPECT_EQ(parsed(j).groups[0].problem, gqa_problem(40, 8, 128));
  EXPECT_EQ(parsed(j).max_context, 10485760);
  // Chunks in other layers than those with RoPE: the context ends with the first one.
  text["layer_types"][7] = "chunked_attention";
  EXPECT_EQ(parsed(j).groups[0].problem, gqa_problem(40, 8, 128));
  EXPECT_EQ(parsed(j).max_context, 8192);
  for (int l = 0; l < 48; ++l) {
    text["layer_types"][l] = l % 4 == 3 ? "full_attention" : "chunked_attention";
  }
  EXPECT_EQ(parsed(j).groups[0].problem, chunked);
  EXPECT_EQ(parsed(j).max_context, 10485760);
  text["layer_types"][7] = "sliding_attention";
  EXPECT_THAT(refusal(j), HasSubstr("layer_types: wanted chunked_attention"));
  text.erase("layer_types");
  text["no_rope_layers"] = {1, 0};
  EXPECT_THAT(refusal(j), HasSubstr("no_rope_layers: wanted 48 entries, got 2"));
}

// Ministral3Config; queries grow from the original context on, so the context ends there.
TEST(TextTower, Ministral3EndsBeforeItsQueriesGrow) {
  Json j = mistral3();
  Json& text = j["text_config"];
  text["model_type"] = "ministral3";
  for (const char* key : {"rope_theta", "head_dim", "num_key_value_heads", "rms_norm_eps"}) {
    text.erase(key);
  }
  const ModelConfig c = parsed(j);
  EXPECT_EQ(c.max_context, 262144);
  EXPECT_EQ(c.groups.front().query_growth, (RopeGrowth{0.1, 16384}));
  EXPECT_EQ(c.attention(0), gqa_problem(32, 8, 128));
  EXPECT_EQ(c.norm_eps, 1e-5f);
  EXPECT_EQ(c.groups.front().rope.theta, 1e6);
  ASSERT_TRUE(c.groups.front().rope.yarn);
  EXPECT_EQ(c.groups.front().rope.yarn->factor, 16);
  EXPECT_EQ(rope_magnitude(c.groups.front().rope), 1);
  text["rope_parameters"] = {{"rope_type", "yarn"},
                             {"rope_theta", 1e6},
                             {"factor", 48.0},
                             {"original_max_position_embeddings", 8192},
                             {"llama_4_scaling_beta", 0.1}};
  EXPECT_EQ(parsed(j).max_context, 48 * 8192);
  EXPECT_EQ(parsed(j).groups.front().query_growth, (RopeGrowth{0.1, 8192}));
  text["rope_parameters"]["llama_4_scaling_beta"] = -1;
  EXPECT_THAT(
      refusal(j),
      HasSubstr(
          "llama_4_scaling_beta: wanted a finite number from 1e-06 to 1000000, or 0, got -1"));
  text["rope_parameters"]["llama_4_scaling_beta"] = 0;
  EXPECT_FALSE(parsed(j).groups.front().query_growth);
  text["partial_rotary_factor"] = 0.5;
  EXPECT_THAT(refusal(j), HasSubstr("partial_rotary_factor: wanted 1"));
  text.erase("partial_rotary_factor");
  text["rope_parameters"] = {{"rope_type", "default"}, {"llama_4_scaling_beta", 0.1}};
  EXPECT_THAT(refusal(j), HasSubstr("yarn with llama_4_scaling_beta"));
  Json alone = mistral3()["text_config"];
  alone["architectures"] = {"Ministral3ForCausalLM"};
  EXPECT_FALSE(parsed(alone).text_tower);
  EXPECT_EQ(parsed(alone).max_context, 262144);
}

TEST(TextTower, Qwen3Vl) {
  Json j = mistral3();
  j["architectures"] = {"Qwen3VLForConditionalGeneration"};
  Json& text = j["text_config"];
  text["model_type"] = "qwen3_vl_text";
  text.erase("rope_theta");
  text["rope_scaling"] = {
      {"mrope_interleaved", true}, {"mrope_section", {24, 20, 20}}, {"rope_type", "default"}};
  const ModelConfig c = parsed(j);
  EXPECT_EQ(c.qk_norm, QkNorm::heads);
  EXPECT_FALSE(c.tied_embeddings);
  EXPECT_EQ(c.groups.front().rope.theta, 500000);  // Qwen3VLTextConfig
  EXPECT_EQ(c.groups.front().problem, gqa_problem(32, 8, 128));

  j["architectures"] = {"Qwen3VLMoeForConditionalGeneration"};
  text["model_type"] = "qwen3_vl_moe_text";
  text["num_experts"] = 128;
  text["num_experts_per_tok"] = 8;
  text["moe_intermediate_size"] = 768;
  text.erase("num_key_value_heads");
  const ModelConfig moe = parsed(j);
  EXPECT_EQ(moe.groups.front().problem, gqa_problem(32, 16, 128));
  EXPECT_TRUE(moe.moe.stacked && moe.moe.halves && moe.moe.normalize);
  EXPECT_EQ(moe.groups.front().rope.theta, 500000);
}

TEST(TextTower, RefusesByName) {
  Json j = mistral3();
  j["text_config"]["model_type"] = "mistral9";
  EXPECT_THAT(refusal(j),
              HasSubstr("text_config: model_type: wanted mistral or ministral3 or mistral4, a text "
                        "model of Mistral3ForConditionalGeneration, got \"mistral9\""));
  j = mistral3();
  j["text_config"]["hidden_act"] = "gelu";
  EXPECT_THAT(refusal(j), HasSubstr("config.json: text_config: hidden_act: wanted silu"));
  j["text_config"] = 3;
  EXPECT_THAT(refusal(j), HasSubstr("text_config: wanted an object, got 3"));
  j.erase("text_config");
  EXPECT_THAT(refusal(j), HasSubstr("text_config: wanted an object, got nothing"));
  j["architectures"] = {"LlavaForConditionalGeneration"};
  EXPECT_THAT(refusal(j), AllOf(HasSubstr("Mistral3ForConditionalGeneration"),
                                HasSubstr("LlavaForConditionalGeneration")));
  j["text_config"] = {{"model_type", "mpt"}};
  EXPECT_THAT(refusal(j), HasSubstr("got \"LlavaForConditionalGeneration\" around a text model of "
                                    "type \"mpt\""));
  j["text_config"] = Json::object();
  EXPECT_THAT(refusal(j), HasSubstr("of type \"unknown\""));
}

// A text model of a type of its own is the same in every wrapper.
TEST(TextTower, WrappersOfOtherNames) {
  Json j = mistral3();
  j["architectures"] = {"LlavaForConditionalGeneration"};
  const ModelConfig mistral = parsed(j);
  EXPECT_EQ(mistral.architecture, "LlavaForConditionalGeneration");
  EXPECT_TRUE(mistral.text_tower);
  EXPECT_FALSE(mistral.tied_embeddings);
  EXPECT_EQ(mistral.attention(0), parsed(mistral3()).attention(0));
  j["text_config"]["model_type"] = "qwen3";
  EXPECT_EQ(parsed(j).qk_norm, QkNorm::heads);
  j["text_config"]["model_type"] = "qwen2";
  EXPECT_TRUE(parsed(j).attention_bias);
  EXPECT_EQ(parsed(j).qk_norm, QkNorm::none);
}

TEST(TextTower, TensorNames) {
  const std::string q = "layers.0.self_attn.q_proj.weight";
  EXPECT_EQ(text_tensor_name("language_model.model." + q), "model." + q);
  EXPECT_EQ(text_tensor_name("model.language_model." + q), "model." + q);
  EXPECT_EQ(text_tensor_name("language_model.lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(text_tensor_name("lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(text_tensor_name("vision_tower.encoder.weight"), "");
  EXPECT_EQ(text_tensor_name("model.visual.blocks.0.attn.qkv.weight"), "");
  EXPECT_EQ(text_tensor_name("model.text_model." + q), "model." + q);
  EXPECT_EQ(text_tensor_name("audio_tower.layers.0.weight"), "");
  EXPECT_EQ(text_tensor_name("model.connector.proj.weight"), "");
  EXPECT_EQ(text_tensor_name("other.weight"), "other.weight");
}

}  // namespace
}  // namespace lathe
