#include "model/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/config/test/config_test_util.h"

namespace lathe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// The keys of the published config.json files that affect the computation.
Json deepseek_v3() {
  return {{"architectures", {"DeepseekV3ForCausalLM"}},
          {"model_type", "deepseek_v3"},
          {"vocab_size", 129280},
          {"hidden_size", 7168},
          {"intermediate_size", 18432},
          {"moe_intermediate_size", 2048},
          {"num_hidden_layers", 61},
          {"num_nextn_predict_layers", 1},
          {"num_attention_heads", 128},
          {"num_key_value_heads", 128},
          {"n_shared_experts", 1},
          {"n_routed_experts", 256},
          {"routed_scaling_factor", 2.5},
          {"kv_lora_rank", 512},
          {"q_lora_rank", 1536},
          {"qk_rope_head_dim", 64},
          {"v_head_dim", 128},
          {"qk_nope_head_dim", 128},
          {"topk_method", "noaux_tc"},
          {"scoring_func", "sigmoid"},
          {"n_group", 8},
          {"topk_group", 4},
          {"num_experts_per_tok", 8},
          {"moe_layer_freq", 1},
          {"first_k_dense_replace", 3},
          {"norm_topk_prob", true},
          {"hidden_act", "silu"},
          {"max_position_embeddings", 163840},
          {"rms_norm_eps", 1e-6},
          {"bos_token_id", 0},
          {"eos_token_id", 1},
          {"tie_word_embeddings", false},
          {"attention_bias", false},
          {"rope_theta", 10000},
          {"rope_scaling",
           {{"type", "yarn"},
            {"factor", 40},
            {"original_max_position_embeddings", 4096},
            {"beta_fast", 32},
            {"beta_slow", 1},
            {"mscale", 1.0},
            {"mscale_all_dim", 1.0}}},
          {"quantization_config",
           {{"quant_method", "fp8"},
            {"fmt", "e4m3"},
            {"activation_scheme", "dynamic"},
            {"weight_block_size", {128, 128}}}}};
}

Json glm() {
  Json j = deepseek_v3();
  j["architectures"] = {"GlmMoeDsaForCausalLM"};
  j["num_hidden_layers"] = 6;
  j["n_group"] = 1;
  j["topk_group"] = 1;
  j["index_n_heads"] = 32;
  j["index_head_dim"] = 128;
  j["index_topk"] = 2048;
  j.erase("quantization_config");
  return j;
}

Json qwen3() {
  return {{"architectures", {"Qwen3ForCausalLM"}},
          {"vocab_size", 151936},
          {"hidden_size", 1024},
          {"intermediate_size", 3072},
          {"num_hidden_layers", 28},
          {"num_attention_heads", 16},
          {"num_key_value_heads", 8},
          {"head_dim", 128},
          {"hidden_act", "silu"},
          {"max_position_embeddings", 40960},
          {"max_window_layers", 28},
          {"rms_norm_eps", 1e-6},
          {"rope_scaling", nullptr},
          {"rope_theta", 1000000},
          {"sliding_window", nullptr},
          {"use_sliding_window", false},
          {"tie_word_embeddings", true}};
}

TEST(ModelConfig, DeepSeekV3) {
  const ModelConfig c = parsed(deepseek_v3());
  // attn/problem.cc has the same problem, from the paper's numbers.
  AttentionProblem want = deepseek_v3_problem();
  EXPECT_FLOAT_EQ(c.groups.front().problem.scale, want.scale);
  want.scale = c.groups.front().problem.scale;
  EXPECT_EQ(c.groups.front().problem, want);
  EXPECT_EQ(c.mla.q_lora, 1536);
  EXPECT_TRUE(c.block_fp8);
  EXPECT_FALSE(c.fp8_pow2);
  EXPECT_EQ(c.draft_layers, 1);
  Json v32 = deepseek_v3();
  v32["quantization_config"]["scale_fmt"] = "ue8m0";
  EXPECT_TRUE(parsed(v32).fp8_pow2);
  EXPECT_EQ(c.groups.front().rope.pairing, RopePairing::interleaved);
  ASSERT_TRUE(c.groups.front().rope.yarn);
  EXPECT_EQ(c.groups.front().rope.yarn->factor, 40);
  EXPECT_EQ(rope_magnitude(c.groups.front().rope), 1);
  EXPECT_EQ(c.moe.experts, 256);
  EXPECT_EQ(c.moe.groups, 8);
  EXPECT_EQ(c.moe.top_groups, 4);
  EXPECT_EQ(c.moe.scoring, RouterScoring::sigmoid);
  EXPECT_FLOAT_EQ(c.moe.scale, 2.5f);
  ASSERT_EQ(c.moe.layer_has_experts.size(), 61u);
  EXPECT_EQ(c.moe.layer_has_experts[2], 0);
  EXPECT_EQ(c.moe.layer_has_experts[3], 1);
  EXPECT_TRUE(c.mla.own_indexer.empty());
  EXPECT_THAT(c.eos, ElementsAre(1));
}

TEST(ModelConfig, TheNewerSpellingMeansTheSame) {
  Json j = deepseek_v3();
  const ModelConfig old = parsed(j);
  Json rope = j["rope_scaling"];
  rope["rope_type"] = rope["type"];
  rope.erase("type");
  rope["rope_theta"] = j["rope_theta"];
  j.erase("rope_scaling");
  j.erase("rope_theta");
  j["rope_parameters"] = rope;
  j["num_local_experts"] = j["n_routed_experts"];
  j.erase("n_routed_experts");
  j.erase("first_k_dense_replace");
  Json types = Json::array();
  for (int l = 0; l < 61; ++l) types.push_back(l < 3 ? "dense" : "sparse");
  j["mlp_layer_types"] = types;
  const ModelConfig c = parsed(j);
  EXPECT_EQ(c.groups.front().problem, old.groups.front().problem);
  EXPECT_EQ(rope_frequencies(c.groups.front().rope), rope_frequencies(old.groups.front().rope));
  EXPECT_EQ(c.moe.layer_has_experts, old.moe.layer_has_experts);
  EXPECT_EQ(c.moe.experts, 256);
}

TEST(ModelConfig, IndexerPairingFollowsTheArchitectureOrTheConfig) {
  Json j = glm();
  EXPECT_EQ(parsed(j).mla.index_pairing, RopePairing::interleaved);
  EXPECT_EQ(parsed(j).groups.front().problem.top_k, 2048);
  j["architectures"] = {"DeepseekV32ForCausalLM"};
  EXPECT_EQ(parsed(j).mla.index_pairing, RopePairing::split_half);
  EXPECT_THAT(parsed(j).mla.own_indexer, ElementsAre(1, 1, 1, 1, 1, 1));
  j["indexer_rope_interleave"] = true;
  EXPECT_EQ(parsed(j).mla.index_pairing, RopePairing::interleaved);
}

TEST(ModelConfig, GlmSharesSelections) {
  Json j = glm();
  EXPECT_THAT(parsed(j).mla.own_indexer, ElementsAre(1, 1, 1, 1, 1, 1));
  j["index_topk_freq"] = 4;  // full where max(l - 2 + 1, 0) % 4 == 0
  EXPECT_THAT(parsed(j).mla.own_indexer, ElementsAre(1, 1, 0, 0, 0, 1));
  j["index_topk_pattern"] = "FSFSSS";
  EXPECT_THAT(parsed(j).mla.own_indexer, ElementsAre(1, 0, 1, 0, 0, 0));
  j["indexer_types"] = {"full", "full", "shared", "shared", "full", "shared"};
  EXPECT_THAT(parsed(j).mla.own_indexer, ElementsAre(1, 1, 0, 0, 1, 0));
  j["indexer_types"] = {"shared", "full", "full", "full", "full", "full"};
  EXPECT_THAT(refusal(j), HasSubstr("an indexer in the first layer"));
  j["indexer_types"] = {"full"};
  EXPECT_THAT(refusal(j), HasSubstr("6 entries"));
}

TEST(ModelConfig, Qwen3HasItsOwnHeadDim) {
  const ModelConfig c = parsed(qwen3());
  EXPECT_EQ(c.groups.front().problem, gqa_problem(16, 8, 128));
  EXPECT_TRUE(c.qk_norm);
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
  EXPECT_FALSE(parsed(j).qk_norm);
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
  EXPECT_FALSE(parsed(j).qk_norm);
}

// The keys of gemma-3-1b-it's config.json, in the older and the newer spelling.
Json gemma3() {
  return {{"architectures", {"Gemma3ForCausalLM"}},
          {"attention_bias", false},
          {"attn_logit_softcapping", nullptr},
          {"final_logit_softcapping", nullptr},
          {"head_dim", 256},
          {"hidden_activation", "gelu_pytorch_tanh"},
          {"hidden_size", 1152},
          {"intermediate_size", 6912},
          {"max_position_embeddings", 32768},
          {"model_type", "gemma3_text"},
          {"num_attention_heads", 4},
          {"num_hidden_layers", 26},
          {"num_key_value_heads", 1},
          {"query_pre_attn_scalar", 144},
          {"rms_norm_eps", 1e-6},
          {"rope_local_base_freq", 10000},
          {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}},
          {"rope_theta", 1000000},
          {"sliding_window", 512},
          {"sliding_window_pattern", 6},
          {"vocab_size", 262144}};
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
  EXPECT_TRUE(c.post_norms);
  EXPECT_TRUE(c.scaled_embeddings);
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

// The keys of gpt-oss-20b's config.json.
Json gpt_oss() {
  return {{"architectures", {"GptOssForCausalLM"}},
          {"attention_bias", true},
          {"experts_per_token", 4},
          {"head_dim", 64},
          {"hidden_act", "silu"},
          {"hidden_size", 2880},
          {"initial_context_length", 4096},
          {"intermediate_size", 2880},
          {"max_position_embeddings", 131072},
          {"num_attention_heads", 64},
          {"num_experts_per_tok", 4},
          {"num_hidden_layers", 24},
          {"num_key_value_heads", 8},
          {"num_local_experts", 32},
          {"quantization_config", {{"quant_method", "mxfp4"}}},
          {"rms_norm_eps", 1e-5},
          {"rope_scaling",
           {{"beta_fast", 32.0},
            {"beta_slow", 1.0},
            {"factor", 32.0},
            {"original_max_position_embeddings", 4096},
            {"rope_type", "yarn"},
            {"truncate", false}}},
          {"rope_theta", 150000},
          {"sliding_window", 128},
          {"swiglu_limit", 7.0},
          {"tie_word_embeddings", false},
          {"vocab_size", 201088}};
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

TEST(ModelConfig, GenerationConfigSpeaksLast) {
  const auto c = parse_model_config(
      qwen3().dump(),
      R"({"eos_token_id": [151645, 151643], "bos_token_id": 151643, "temperature": 0.6,
          "top_k": 20, "top_p": 0.95, "transformers_version": "5.0.0"})");
  ASSERT_TRUE(c.ok());
  EXPECT_THAT(c->eos, ElementsAre(151645, 151643));
  EXPECT_EQ(c->bos, 151643);
  EXPECT_EQ(c->generation.temperature, 0.6f);
  EXPECT_EQ(c->generation.top_k, 20);
  EXPECT_FALSE(c->generation.repetition_penalty);
  EXPECT_FALSE(parse_model_config(qwen3().dump(), "{").ok());
  for (const char* all : {R"({"top_k": 0})", R"({"top_k": -1})"}) {
    const auto of = parse_model_config(qwen3().dump(), all);
    ASSERT_TRUE(of.ok()) << all;
    EXPECT_FALSE(of->generation.top_k) << all;
  }
}

// Such files also carry temperature and filters, which must not cause sampling.
TEST(ModelConfig, WithoutSamplingAnswersAreGreedy) {
  const std::string rest = R"("temperature": 0.6, "top_k": 20, "top_p": 0.9,
                              "repetition_penalty": 1.1})";
  const auto drawn = parse_model_config(qwen3().dump(), R"({"do_sample": true, )" + rest);
  ASSERT_TRUE(drawn.ok());
  EXPECT_EQ(drawn->generation.temperature, 0.6f);
  const auto greedy = parse_model_config(qwen3().dump(), R"({"do_sample": false, )" + rest);
  ASSERT_TRUE(greedy.ok());
  EXPECT_EQ(greedy->generation.temperature, 0.0f);
  EXPECT_FALSE(greedy->generation.top_k);
  EXPECT_FALSE(greedy->generation.top_p);
  EXPECT_EQ(greedy->generation.repetition_penalty, 1.1f);
}

// Both spellings in one file must agree, or are rejected.
TEST(ModelConfig, TwoSpellingsOfRopeAgreeOrAreRefused) {
  const Json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"rope_theta", 1e6}};
  Json j = qwen3();
  j["rope_parameters"] = yarn;
  j["rope_scaling"] = yarn;
  EXPECT_TRUE(parse_model_config(j.dump()).ok());
  // Older files keep theta next to it.
  j["rope_theta"] = 1e6;
  j["rope_scaling"].erase("rope_theta");
  EXPECT_TRUE(parse_model_config(j.dump()).ok());
  j["rope_scaling"]["factor"] = 8.0;
  auto refused = parse_model_config(j.dump());
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message(),
              testing::AllOf(HasSubstr("rope_scaling"), HasSubstr("rope_parameters")));
  j["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  refused = parse_model_config(j.dump());
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message(),
              testing::AllOf(HasSubstr("\"yarn\""), HasSubstr("\"linear\"")));
  j["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  EXPECT_FALSE(parse_model_config(j.dump()).ok());
  j["rope_scaling"] = nullptr;
  EXPECT_TRUE(parse_model_config(j.dump()).ok());
}

TEST(ModelConfig, RefusesByName) {
  const auto with = [](Json j, const std::string& key, Json value) {
    j[key] = std::move(value);
    return refusal(j);
  };
  EXPECT_THAT(with(qwen3(), "architectures", {"MambaForCausalLM"}),
              testing::AllOf(HasSubstr("MambaForCausalLM"), HasSubstr("DeepseekV3ForCausalLM"),
                             HasSubstr("Qwen3MoeForCausalLM")));
  EXPECT_THAT(with(qwen3(), "hidden_act", "gelu"), HasSubstr("hidden_act: wanted silu"));
  EXPECT_THAT(with(qwen3(), "hidden_size", "1024"), HasSubstr("hidden_size: wanted an integer"));
  EXPECT_THAT(with(qwen3(), "hidden_size", nullptr), HasSubstr("got nothing"));
  EXPECT_THAT(with(qwen3(), "num_hidden_layers", 0), HasSubstr("num_hidden_layers"));
  EXPECT_THAT(with(qwen3(), "num_hidden_layers", 1e30), HasSubstr("num_hidden_layers"));
  EXPECT_THAT(with(qwen3(), "num_key_value_heads", 5), HasSubstr("kv_heads"));
  EXPECT_THAT(with(qwen3(), "head_dim", 40), HasSubstr("head_dim"));
  EXPECT_THAT(with(qwen3(), "partial_rotary_factor", 0.5), HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(with(qwen3(), "rope_scaling", {{"rope_type", "longrope"}}), HasSubstr("longrope"));
  EXPECT_THAT(with(qwen3(), "rope_scaling", {{"rope_type", "linear"}, {"factor", 0.1}}),
              HasSubstr("linear_factor"));
  EXPECT_THAT(with(qwen3(), "rope_scaling",
                   {{"rope_type", "yarn"}, {"factor", 4.0}, {"attention_factor", 1.2}}),
              HasSubstr("attention_factor"));
  EXPECT_THAT(with(qwen3(), "quantization_config", {{"quant_method", "gptq"}}), HasSubstr("gptq"));
  EXPECT_THAT(with(qwen3(), "quantization_config",
                   {{"quant_method", "fp8"}, {"weight_block_size", {64, 64}}}),
              HasSubstr("[64, 64]"));
  EXPECT_THAT(with(qwen3(), "quantization_config", {{"quant_method", "fp8"}}),
              HasSubstr("weight_block_size"));
  Json llama = qwen3();
  llama["architectures"] = {"LlamaForCausalLM"};
  EXPECT_THAT(with(llama, "mlp_bias", true), HasSubstr("mlp_bias"));
  EXPECT_THAT(with(deepseek_v3(), "scoring_func", "softmax"), HasSubstr("scoring_func"));
  EXPECT_THAT(with(deepseek_v3(), "topk_method", "greedy"), HasSubstr("topk_method"));
  EXPECT_THAT(with(deepseek_v3(), "n_group", 7), HasSubstr("n_group"));
  EXPECT_THAT(with(deepseek_v3(), "num_experts_per_tok", 200), HasSubstr("128 experts"));
  EXPECT_THAT(with(deepseek_v3(), "num_key_value_heads", 8), HasSubstr("num_key_value_heads"));
  EXPECT_THAT(with(glm(), "q_lora_rank", nullptr), HasSubstr("q_lora_rank"));
  EXPECT_THAT(with(glm(), "index_head_dim", 32), HasSubstr("index_head_dim"));
}

// transformers 5.24 (modeling_rope_utils.py, standardize_rope_params): the value at the top of
// config.json beats the one in rope_scaling or rope_parameters, for the types that have one.
TEST(ModelConfig, A6OriginalContextAtTheTopWins) {
  Json llama = qwen3();
  llama["architectures"] = {"LlamaForCausalLM"};
  const Json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}};
  const Json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0}};
  for (const Json& object : {yarn, llama3}) {
    for (const char* spelling : {"rope_scaling", "rope_parameters"}) {
      Json inside = llama;
      inside[spelling] = object;
      inside[spelling]["original_max_position_embeddings"] = 4096;
      Json top = inside;
      top[spelling]["original_max_position_embeddings"] = 32768;
      top["original_max_position_embeddings"] = 4096;
      EXPECT_EQ(parsed(top).groups.front().rope, parsed(inside).groups.front().rope) << top;
      top[spelling].erase("original_max_position_embeddings");
      EXPECT_EQ(parsed(top).groups.front().rope, parsed(inside).groups.front().rope) << top;
    }
  }
  // Latent attention reads the same object.
  Json deepseek = deepseek_v3();
  deepseek["original_max_position_embeddings"] = 8192;
  EXPECT_EQ(parsed(deepseek).groups.front().rope.yarn->original_context, 8192);
  // Objects of one layer type each keep their own.
  Json gemma = gemma3();
  gemma["rope_scaling"] = yarn;
  gemma["original_max_position_embeddings"] = 4096;
  EXPECT_EQ(parsed(gemma).groups[1].rope.yarn->original_context, 32768);
  llama["original_max_position_embeddings"] = "4096";
  EXPECT_THAT(refusal(llama),
              HasSubstr("original_max_position_embeddings: wanted a finite number"));
}

Json without(Json j, std::initializer_list<const char*> keys) {
  for (const char* key : keys) j.erase(key);
  return j;
}

// Absent keys, against the fields of transformers 5.24's configuration classes. null is not absent.
TEST(ModelConfig, A7AbsentKeysHaveTheClasssValues) {
  // DeepseekV3Config, GlmMoeDsaConfig: routers.
  const auto experts = {"n_group", "topk_group", "routed_scaling_factor", "n_shared_experts"};
  const ModelConfig v3 = parsed(without(deepseek_v3(), experts));
  EXPECT_EQ(v3.moe.groups, 8);
  EXPECT_EQ(v3.moe.top_groups, 4);
  EXPECT_FLOAT_EQ(v3.moe.scale, 2.5f);
  EXPECT_EQ(v3.moe.shared, 1);
  const ModelConfig of_glm =
      parsed(without(glm(), {"n_group", "topk_group", "q_lora_rank", "rms_norm_eps"}));
  EXPECT_EQ(of_glm.moe.groups, 1);
  EXPECT_EQ(of_glm.moe.top_groups, 1);
  EXPECT_EQ(of_glm.mla.q_lora, 2048);
  EXPECT_EQ(of_glm.norm_eps, 1e-5f);
  Json null_group = deepseek_v3();
  null_group["n_group"] = nullptr;
  EXPECT_THAT(refusal(null_group),
              HasSubstr("n_group: wanted an integer from 1 to 256, got nothing"));
  // Where no layer has experts, the router's keys do not matter.
  Json dense = deepseek_v3();
  dense["n_group"] = nullptr;
  dense["first_k_dense_replace"] = 61;
  EXPECT_EQ(parsed(dense).moe.experts, 0);
  // null: q is one projection (DeepSeek V2 Lite).
  EXPECT_EQ(parsed(without(deepseek_v3(), {"q_lora_rank"})).mla.q_lora, 1536);
  Json plain_q = deepseek_v3();
  plain_q["q_lora_rank"] = nullptr;
  EXPECT_EQ(parsed(plain_q).mla.q_lora, 0);

  // MistralConfig: absent 4096, null no window.
  Json mistral = without(qwen3(), {"sliding_window", "num_key_value_heads"});
  mistral["architectures"] = {"MistralForCausalLM"};
  EXPECT_EQ(parsed(mistral).attention(27).window, 4096);
  EXPECT_EQ(parsed(mistral).attention(0).kv_heads, 8);
  mistral["sliding_window"] = nullptr;
  mistral["num_key_value_heads"] = nullptr;  // all heads
  EXPECT_EQ(parsed(mistral).attention(27).window, 0);
  EXPECT_EQ(parsed(mistral).attention(0).kv_heads, 16);

  // Qwen3Config: 32 key heads, head_dim 128, a window from layer 28 on.
  Json wide = without(qwen3(), {"num_key_value_heads", "head_dim"});
  wide["num_attention_heads"] = 64;
  EXPECT_EQ(parsed(wide).attention(0).kv_heads, 32);
  EXPECT_EQ(parsed(wide).attention(0).head_dim, 128);
  Json windowed = without(qwen3(), {"sliding_window", "max_window_layers"});
  windowed["use_sliding_window"] = true;
  windowed["num_hidden_layers"] = 30;
  EXPECT_EQ(parsed(windowed).attention(27).window, 0);
  EXPECT_EQ(parsed(windowed).attention(28).window, 4096);
  windowed["sliding_window"] = nullptr;
  EXPECT_EQ(parsed(windowed).attention(28).window, 0);

  // Gemma3TextConfig.
  const ModelConfig gemma =
      parsed(without(gemma3(), {"head_dim", "sliding_window", "num_key_value_heads"}));
  EXPECT_EQ(gemma.groups[0].problem.head_dim, 256);
  EXPECT_EQ(gemma.groups[0].problem.kv_heads, 4);
  EXPECT_EQ(gemma.groups[0].problem.window, 4096);

  // GptOssConfig scales RoPE by default.
  const ModelConfig oss = parsed(without(gpt_oss(), {"rms_norm_eps", "head_dim", "sliding_window",
                                                     "num_key_value_heads", "rope_scaling"}));
  EXPECT_EQ(oss.norm_eps, 1e-5f);
  EXPECT_EQ(oss.groups[0].problem, parsed(gpt_oss()).groups[0].problem);
  EXPECT_EQ(oss.groups[0].rope, parsed(gpt_oss()).groups[0].rope);
}

// The keys of GLM-4.7-Flash's config.json.
Json glm4_moe_lite() {
  return {{"architectures", {"Glm4MoeLiteForCausalLM"}},
          {"model_type", "glm4_moe_lite"},
          {"attention_bias", false},
          {"eos_token_id", {154820, 154827, 154829}},
          {"first_k_dense_replace", 1},
          {"head_dim", 64},
          {"hidden_act", "silu"},
          {"hidden_size", 2048},
          {"intermediate_size", 10240},
          {"kv_lora_rank", 512},
          {"max_position_embeddings", 202752},
          {"moe_intermediate_size", 1536},
          {"n_group", 1},
          {"n_routed_experts", 64},
          {"n_shared_experts", 1},
          {"norm_topk_prob", true},
          {"num_attention_heads", 20},
          {"num_experts_per_tok", 4},
          {"num_hidden_layers", 47},
          {"num_key_value_heads", 20},
          {"num_nextn_predict_layers", 1},
          {"partial_rotary_factor", 1.0},
          {"q_lora_rank", 768},
          {"qk_nope_head_dim", 192},
          {"qk_rope_head_dim", 64},
          {"rms_norm_eps", 1e-5},
          {"rope_scaling", nullptr},
          {"rope_theta", 1000000},
          {"routed_scaling_factor", 1.8},
          {"tie_word_embeddings", false},
          {"topk_group", 1},
          {"topk_method", "noaux_tc"},
          {"v_head_dim", 256},
          {"vocab_size", 154880}};
}

TEST(ModelConfig, Glm4MoeLite) {
  const ModelConfig c = parsed(glm4_moe_lite());
  const AttentionProblem& p = c.groups.front().problem;
  EXPECT_EQ(p.kind, ProblemKind::dense_latent);
  EXPECT_EQ(p.heads, 20);
  EXPECT_EQ(p.nope, 512);
  EXPECT_EQ(p.rope, 64);
  EXPECT_EQ(p.qk_nope_head, 192);
  EXPECT_EQ(p.v_head, 256);
  EXPECT_FLOAT_EQ(p.scale, 1.0f / 16);
  EXPECT_EQ(c.groups.front().rope.theta, 1e6);
  EXPECT_EQ(c.groups.front().rope.pairing, RopePairing::interleaved);
  EXPECT_EQ(c.draft_layers, 1);
  EXPECT_EQ(c.moe.layer_has_experts[0], 0);
  EXPECT_EQ(std::ranges::count(c.moe.layer_has_experts, 1), 46);
  // Glm4MoeLiteConfig.
  const ModelConfig d = parsed(
      without(glm4_moe_lite(), {"first_k_dense_replace", "n_group", "topk_group", "q_lora_rank",
                                "n_shared_experts", "norm_topk_prob", "routed_scaling_factor",
                                "rms_norm_eps", "topk_method", "num_key_value_heads"}));
  EXPECT_EQ(d.norm_eps, 1e-5f);
  EXPECT_EQ(d.mla.q_lora, 768);
  EXPECT_EQ(d.moe.layer_has_experts, c.moe.layer_has_experts);
  EXPECT_EQ(d.moe.groups, 1);
  EXPECT_EQ(d.moe.top_groups, 1);
  EXPECT_EQ(d.moe.shared, 1);
  EXPECT_TRUE(d.moe.normalize);
  EXPECT_FLOAT_EQ(d.moe.scale, 1.8f);
  Json j = glm4_moe_lite();
  j["topk_method"] = "greedy";
  EXPECT_THAT(refusal(j), HasSubstr("topk_method: wanted noaux_tc"));
  j = glm4_moe_lite();
  j["mlp_layer_types"] = {"dense", "sparse"};
  EXPECT_THAT(refusal(j), HasSubstr("mlp_layer_types: wanted 47 entries, got 2"));
}

TEST(ModelConfig, YoutuIsDenseAndTied) {
  Json j = without(glm4_moe_lite(),
                   {"first_k_dense_replace", "n_group", "n_routed_experts", "n_shared_experts",
                    "norm_topk_prob", "num_experts_per_tok", "num_nextn_predict_layers",
                    "routed_scaling_factor", "tie_word_embeddings", "topk_group", "topk_method",
                    "moe_intermediate_size", "q_lora_rank", "rms_norm_eps"});
  j["architectures"] = {"YoutuForCausalLM"};
  const ModelConfig c = parsed(j);
  EXPECT_EQ(c.moe.experts, 0);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_EQ(c.mla.q_lora, 1536);
  EXPECT_EQ(c.norm_eps, 1e-6f);
  EXPECT_EQ(c.draft_layers, 0);
  j["tie_word_embeddings"] = false;
  EXPECT_FALSE(parsed(j).tied_embeddings);
  j["n_routed_experts"] = 64;
  EXPECT_THAT(refusal(j), HasSubstr("n_routed_experts: wanted nothing"));
}

TEST(ModelConfig, SarvamMlaHasSpellingsOfItsOwn) {
  Json j = without(deepseek_v3(),
                   {"n_group", "topk_group", "first_k_dense_replace", "routed_scaling_factor",
                    "n_routed_experts", "n_shared_experts", "num_nextn_predict_layers"});
  j["architectures"] = {"SarvamMLAForCausalLM"};
  j["q_lora_rank"] = nullptr;
  j["num_experts"] = 128;
  j["num_shared_experts"] = 2;
  j["head_dim"] = 576;
  j["q_head_dim"] = 192;
  const ModelConfig yarn = parsed(j);
  j["rope_scaling"]["type"] = "deepseek_yarn";
  const ModelConfig c = parsed(j);
  EXPECT_EQ(c.groups.front().rope, yarn.groups.front().rope);
  ASSERT_TRUE(c.groups.front().rope.yarn);
  EXPECT_EQ(c.groups.front().rope.dim, 64);
  EXPECT_EQ(c.mla.q_lora, 0);
  EXPECT_EQ(parsed(without(j, {"q_lora_rank"})).mla.q_lora, 0);
  EXPECT_EQ(c.moe.experts, 128);
  EXPECT_EQ(c.moe.shared, 2);
  EXPECT_EQ(c.moe.groups, 1);
  EXPECT_FLOAT_EQ(c.moe.scale, 2.5f);
  EXPECT_EQ(c.moe.layer_has_experts[0], 0);
  EXPECT_EQ(c.moe.layer_has_experts[1], 1);
  EXPECT_EQ(c.draft_layers, 0);
  j["rope_scaling"]["type"] = "longrope";
  EXPECT_THAT(refusal(j), HasSubstr("longrope"));
}

// The keys of DeepSeek-V2's config.json.
Json deepseek_v2() {
  Json j = without(deepseek_v3(), {"quantization_config", "num_nextn_predict_layers"});
  j["architectures"] = {"DeepseekV2ForCausalLM"};
  j["model_type"] = "deepseek_v2";
  j["first_k_dense_replace"] = 1;
  j["hidden_size"] = 5120;
  j["n_group"] = 8;
  j["n_routed_experts"] = 160;
  j["n_shared_experts"] = 2;
  j["norm_topk_prob"] = false;
  j["num_experts_per_tok"] = 6;
  j["num_hidden_layers"] = 60;
  j["rope_scaling"]["mscale"] = 0.707;
  j["rope_scaling"]["mscale_all_dim"] = 0.707;
  j["routed_scaling_factor"] = 16.0;
  j["scoring_func"] = "softmax";
  j["topk_group"] = 3;
  j["topk_method"] = "group_limited_greedy";
  return j;
}

TEST(ModelConfig, DeepSeekV2) {
  const ModelConfig c = parsed(deepseek_v2());
  EXPECT_EQ(c.moe.scoring, RouterScoring::softmax);
  EXPECT_FALSE(c.moe.correction_bias);
  EXPECT_FALSE(c.moe.normalize);
  EXPECT_FLOAT_EQ(c.moe.scale, 16);
  EXPECT_EQ(c.moe.groups, 8);
  EXPECT_EQ(c.moe.top_groups, 3);
  EXPECT_EQ(c.moe.group_best, 1);
  EXPECT_EQ(c.moe.shared, 2);
  EXPECT_EQ(c.draft_layers, 0);
  EXPECT_EQ(rope_magnitude(c.groups.front().rope), 1);
  const double m = 0.1 * 0.707 * std::log(40.0) + 1;
  EXPECT_FLOAT_EQ(c.groups.front().problem.scale, static_cast<float>(m * m / std::sqrt(192.0)));

  // V2-Lite: q in one projection, and all experts are one group.
  Json lite = deepseek_v2();
  lite["q_lora_rank"] = nullptr;
  lite["topk_method"] = "greedy";
  EXPECT_EQ(parsed(lite).mla.q_lora, 0);
  EXPECT_EQ(parsed(lite).moe.groups, 1);

  // DeepseekV2Config.
  const ModelConfig d = parsed(
      without(deepseek_v2(), {"first_k_dense_replace", "n_group", "topk_group", "n_shared_experts",
                              "norm_topk_prob", "routed_scaling_factor", "scoring_func",
                              "topk_method", "q_lora_rank", "num_key_value_heads"}));
  EXPECT_EQ(d.moe.layer_has_experts[0], 1);
  EXPECT_EQ(d.moe.groups, 1);
  EXPECT_EQ(d.moe.shared, 2);
  EXPECT_FALSE(d.moe.normalize);
  EXPECT_EQ(d.moe.scale, 1);
  EXPECT_EQ(d.mla.q_lora, 1536);

  const auto with = [](const std::string& key, Json value) {
    Json changed = deepseek_v2();
    changed[key] = std::move(value);
    return refusal(changed);
  };
  EXPECT_THAT(with("topk_method", "noaux_tc"),
              HasSubstr("topk_method: wanted greedy or group_limited_greedy, got \"noaux_tc\""));
  EXPECT_THAT(with("scoring_func", "sigmoid"), HasSubstr("scoring_func: wanted softmax"));
  EXPECT_THAT(with("norm_topk_prob", true), HasSubstr("norm_topk_prob: wanted false"));
  EXPECT_THAT(with("n_group", nullptr), HasSubstr("n_group: wanted an integer from 1 to 160"));
  EXPECT_THAT(with("topk_group", nullptr), HasSubstr("topk_group: wanted an integer from 1 to 8"));
  EXPECT_THAT(with("n_group", 7), HasSubstr("n_group: wanted a divisor of the 160 experts"));
  EXPECT_THAT(with("moe_layer_freq", 2), HasSubstr("moe_layer_freq"));
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
}

// e4m3 under torch's name, and why other fp8 checkpoints are refused.
TEST(ModelConfig, D4Fp8FormatsAreTakenOrNamed) {
  const auto with = [](Json changes) {
    Json j = deepseek_v3();
    for (const auto& [key, value] : changes.items()) j["quantization_config"][key] = value;
    return j;
  };
  EXPECT_TRUE(parsed(with({{"fmt", "float8_e4m3fn"}})).block_fp8);
  EXPECT_THAT(refusal(with({{"fmt", "e5m2"}})),
              HasSubstr("fmt: wanted e4m3 or float8_e4m3fn, got \"e5m2\""));
  EXPECT_THAT(refusal(with({{"weight_block_size", nullptr}, {"activation_scheme", "static"}})),
              HasSubstr("got none: one scale for a whole tensor"));
  EXPECT_THAT(refusal(with({{"activation_scheme", "static"}})),
              HasSubstr("activation_scheme: wanted dynamic"));
  for (const char* number : {"Infinity", "-Infinity", "NaN"}) {
    std::string text = deepseek_v3().dump();
    text.replace(text.find("10000"), 5, number);  // rope_theta
    const auto config = parse_model_config(text);
    ASSERT_FALSE(config.ok());
    EXPECT_THAT(config.error().message(),
                testing::AllOf(HasSubstr("numbers are finite"),
                               HasSubstr(number[0] == '-' ? number + 1 : number)));
  }
}

TEST(ModelConfig, D4AFileOfWeightsIsNamedByItsFormat) {
  namespace fs = std::filesystem;
  const fs::path dir = fs::path(testing::TempDir()) / "lathe_d4_formats";
  fs::create_directories(dir);
  for (const auto& [file, format] : {std::pair{"x.gguf", "GGUF"}, std::pair{"x.pth", "pickle"},
                                     std::pair{"x.safetensors", "safetensors"}}) {
    std::ofstream(dir / file) << "GGUF";
    const auto config = load_model_config((dir / file).string());
    ASSERT_FALSE(config.ok());
    EXPECT_THAT(config.error().message(), testing::AllOf(HasSubstr(file), HasSubstr(format)));
  }
  fs::remove_all(dir);
}

// ModelOpt's checkpoints say how they are quantised in a file of their own.
TEST(ModelConfig, D1HfQuantConfigCounts) {
  namespace fs = std::filesystem;
  const fs::path dir = fs::path(testing::TempDir()) / "lathe_d1_hf_quant";
  fs::create_directories(dir);
  std::ofstream(dir / "config.json") << qwen3().dump();
  EXPECT_TRUE(load_model_config(dir.string()).ok());
  const auto with = [&](const Json& quantization) {
    std::ofstream(dir / "hf_quant_config.json") << Json{{"quantization", quantization}}.dump();
    const auto config = load_model_config(dir.string());
    return config ? "accepted" : config.error().message();
  };
  EXPECT_THAT(with({{"quant_algo", "NVFP4"}, {"kv_cache_quant_algo", "FP8"}}),
              testing::AllOf(HasSubstr("hf_quant_config.json"), HasSubstr("\"NVFP4\"")));
  EXPECT_THAT(with({{"kv_cache_quant_algo", "FP8"}}), HasSubstr("kv_cache_quant_algo"));
  EXPECT_EQ(with({{"quant_algo", nullptr}, {"kv_cache_quant_algo", nullptr}}), "accepted");
  fs::remove_all(dir);
}

TEST(ModelConfig, TextThatIsNoConfig) {
  EXPECT_FALSE(parse_model_config("").ok());
  EXPECT_FALSE(parse_model_config("[]").ok());
  EXPECT_FALSE(parse_model_config("{}").ok());
  EXPECT_FALSE(parse_model_config(R"({"architectures": [3]})").ok());
}

}  // namespace
}  // namespace lathe
