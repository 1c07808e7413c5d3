// Configurations of grouped-query families with other parts than Llama's, with published values.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/config/test/config_test_util.h"

namespace lathe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Json family(const char* architecture, std::int32_t layers, std::int32_t heads, std::int32_t kv) {
  return {{"architectures", {architecture}},
          {"vocab_size", 151552},
          {"hidden_size", 4096},
          {"intermediate_size", 1536},
          {"num_hidden_layers", layers},
          {"num_attention_heads", heads},
          {"num_key_value_heads", kv},
          {"max_position_embeddings", 8192}};
}

TEST(ConfigParts, NumbersThatNoModelHasAreRefusedByTheirKey) {
  Json j = family("LlamaForCausalLM", 2, 32, 8);
  for (const double eps : {-1.0, -1e-6, 0.0, 1.5, 1e300}) {
    j["rms_norm_eps"] = eps;
    EXPECT_THAT(
        refusal(j),
        HasSubstr("config.json: rms_norm_eps: wanted a finite number from 1e-30 to 1, got"));
  }
  j["rms_norm_eps"] = 1e-5;
  for (const double theta : {0.0, 1.0, -10000.0}) {
    j["rope_theta"] = theta;
    EXPECT_THAT(refusal(j), HasSubstr("rope_theta: wanted a finite number from 1.01 to"));
    EXPECT_THAT(refusal(j), testing::Not(HasSubstr("rope_parameters")));
  }
  j["rope_theta"] = 10000;
  j["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 0}};
  EXPECT_THAT(refusal(j),
              HasSubstr("rope_parameters: rope_theta: wanted a finite number from 1.01"));
}

TEST(ConfigParts, MixtralNamesItsExpertsItsOwnWay) {
  Json j = family("MixtralForCausalLM", 32, 32, 8);
  j["num_local_experts"] = 8;
  j["num_experts_per_tok"] = 2;
  const ModelConfig c = parsed(j);
  EXPECT_EQ(c.moe.experts, 8);
  EXPECT_EQ(c.moe.ffn, 1536);
  EXPECT_TRUE(c.moe.normalize);
  EXPECT_EQ(c.moe.names.part, "block_sparse_moe.");
  EXPECT_EQ(c.moe.names.up, "w3");
  EXPECT_EQ(c.groups.front().rope.theta, 1e6);
  EXPECT_EQ(c.attention(0).window, 0);
  j["sliding_window"] = 4096;
  EXPECT_EQ(parsed(j).attention(0).window, 4096);
}

TEST(ConfigParts, MiniMaxM2NormsAllHeadsTogether) {
  Json j = family("MiniMaxM2ForCausalLM", 62, 48, 8);
  j["head_dim"] = 128;
  j["rotary_dim"] = 64;
  j["num_local_experts"] = 256;
  j["num_experts_per_tok"] = 8;
  j["scoring_func"] = "sigmoid";
  j["use_routing_bias"] = true;
  j["qk_norm_type"] = "per_layer";
  const ModelConfig c = parsed(j);
  EXPECT_EQ(c.qk_norm, QkNorm::whole);
  EXPECT_EQ(c.groups.front().rope.dim, 64);
  EXPECT_EQ(c.moe.scoring, RouterScoring::sigmoid);
  EXPECT_TRUE(c.moe.correction_bias);
  EXPECT_EQ(c.moe.names.correction_bias, "e_score_correction_bias");
  j["attn_type_list"] = {1, 0};
  EXPECT_THAT(refusal(j), HasSubstr("attn_type_list: wanted 1: softmax attention, got 0"));
}

TEST(ConfigParts, Glm4MoeHasV3sRouter) {
  Json j = family("Glm4MoeForCausalLM", 46, 96, 8);
  j["head_dim"] = 128;
  j["n_routed_experts"] = 128;
  j["moe_intermediate_size"] = 1408;
  j["num_experts_per_tok"] = 8;
  j["n_shared_experts"] = 1;
  j["attention_bias"] = true;
  j["num_nextn_predict_layers"] = 1;
  const ModelConfig c = parsed(j);
  EXPECT_EQ(c.groups.front().rope.dim, 64);
  EXPECT_EQ(c.groups.front().rope.pairing, RopePairing::split_half);
  EXPECT_EQ(c.moe.scoring, RouterScoring::sigmoid);
  EXPECT_EQ(c.moe.layer_has_experts[0], 0);
  EXPECT_EQ(c.moe.layer_has_experts[1], 1);
  EXPECT_TRUE(c.attention_bias);
  EXPECT_FALSE(c.attention_out_bias);
  EXPECT_EQ(c.qk_norm, QkNorm::none);
  EXPECT_EQ(c.draft_layers, 1);
  j["use_qk_norm"] = true;
  EXPECT_EQ(parsed(j).qk_norm, QkNorm::heads);
}

TEST(ConfigParts, SmolLm3HasLayersWithoutRope) {
  Json j = family("SmolLM3ForCausalLM", 8, 16, 4);
  for (const bool listed : {false, true}) {
    if (listed) j["no_rope_layers"] = {1, 1, 1, 0, 1, 1, 1, 0, 1, 1};  // more than layers
    const ModelConfig c = parsed(j);
    ASSERT_EQ(c.groups.size(), 2u);
    EXPECT_EQ(c.groups[0].name, "rope");
    EXPECT_FALSE(c.groups[0].rope.pairs);
    EXPECT_THAT(c.groups[1].layers, ElementsAre(3, 7));
    EXPECT_EQ(c.groups[1].rope.pairs, 0);
    EXPECT_EQ(c.groups[1].rope.dim, 256);
  }
  j["no_rope_layers"] = {1, 0};
  EXPECT_THAT(refusal(j), HasSubstr("no_rope_layers: wanted 8 entries, got 2"));
  j["no_rope_layers"] = std::vector<int>(8, 0);
  ASSERT_EQ(parsed(j).groups.size(), 1u);
  EXPECT_EQ(parsed(j).groups[0].rope.pairs, 0);
}

TEST(ConfigParts, SeedOssHasBiasesOnQKAndV) {
  Json j = family("SeedOssForCausalLM", 64, 80, 8);
  EXPECT_TRUE(parsed(j).attention_bias);
  EXPECT_FALSE(parsed(j).attention_out_bias);
  EXPECT_EQ(parsed(j).attention(0).head_dim, 128);
  j["attention_out_bias"] = true;
  EXPECT_TRUE(parsed(j).attention_out_bias);
}

TEST(ConfigParts, GraniteScalesByFourNumbers) {
  Json j = family("GraniteForCausalLM", 40, 32, 8);
  j["embedding_multiplier"] = 12.0;
  j["attention_multiplier"] = 0.0078125;
  j["residual_multiplier"] = 0.5;
  j["logits_scaling"] = 16.0;
  j["rms_norm_eps"] = 1e-5;
  const ModelConfig c = parsed(j);
  EXPECT_EQ(c.embedding_scale, 24);
  EXPECT_EQ(c.attention(0).scale, 0.0078125f);
  EXPECT_EQ(c.norm_eps, 4e-5f);
  EXPECT_EQ(c.logit_scale, 1.0f / 16);
  j["residual_multiplier"] = 0;
  EXPECT_THAT(refusal(j),
              HasSubstr("residual_multiplier: wanted a finite number from 1e-06 to 1000000"));
}

TEST(ConfigParts, OlmoNormsOnlyWhatPartsAdd) {
  Json j = family("Olmo2ForCausalLM", 8, 32, 32);
  const ModelConfig two = parsed(j);
  EXPECT_EQ(two.norms.attention, "");
  EXPECT_EQ(two.norms.ffn, "");
  EXPECT_EQ(two.norms.ffn_out, "post_feedforward_layernorm");
  EXPECT_EQ(two.qk_norm, QkNorm::whole);
  j["architectures"] = {"Olmo3ForCausalLM"};
  j["sliding_window"] = 4096;
  j["rope_theta"] = 500000;
  j["rope_scaling"] = {
      {"rope_type", "yarn"}, {"factor", 8.0}, {"original_max_position_embeddings", 8192}};
  const ModelConfig three = parsed(j);
  ASSERT_EQ(three.groups.size(), 2u);
  EXPECT_EQ(three.groups[0].problem.window, 4096);
  EXPECT_FALSE(three.groups[0].rope.yarn);
  EXPECT_THAT(three.groups[1].layers, ElementsAre(3, 7));
  EXPECT_TRUE(three.groups[1].rope.yarn);
}

TEST(ConfigParts, Exaone4RotatesInWindowsOnly) {
  Json j = family("Exaone4ForCausalLM", 8, 40, 8);
  j["head_dim"] = 128;
  j["sliding_window"] = 4096;
  j["sliding_window_pattern"] = "LLLG";
  std::vector<std::string> types(8, "sliding_attention");
  types[3] = types[7] = "full_attention";
  j["layer_types"] = types;
  const ModelConfig c = parsed(j);
  ASSERT_EQ(c.groups.size(), 2u);
  EXPECT_FALSE(c.groups[0].rope.pairs);
  EXPECT_EQ(c.groups[1].rope.pairs, 0);
  EXPECT_EQ(c.qk_norm, QkNorm::heads);
  j["sliding_window"] = nullptr;  // the 1.2B model
  j.erase("layer_types");
  ASSERT_EQ(parsed(j).groups.size(), 1u);
  EXPECT_EQ(parsed(j).attention(0).window, 0);
  EXPECT_FALSE(parsed(j).groups[0].rope.pairs);
}

TEST(ConfigParts, Glm4AndPhi3FuseProjections) {
  Json j = family("Glm4ForCausalLM", 40, 32, 2);
  const ModelConfig glm = parsed(j);
  EXPECT_TRUE(glm.fused_gate_up);
  EXPECT_FALSE(glm.fused_qkv);
  EXPECT_EQ(glm.groups.front().rope.pairing, RopePairing::interleaved);
  EXPECT_EQ(glm.groups.front().rope.dim, 64);
  EXPECT_EQ(glm.norms.attention, "input_layernorm");
  EXPECT_EQ(glm.norms.attention_out, "post_self_attn_layernorm");
  j["architectures"] = {"Phi3ForCausalLM"};
  j["sliding_window"] = 2047;
  const ModelConfig phi = parsed(j);
  EXPECT_TRUE(phi.fused_gate_up && phi.fused_qkv);
  EXPECT_EQ(phi.attention(0).window, 2047);
}

// XiaomiMiMo/MiMo-V2-Flash, with six layers.
TEST(ConfigParts, MiMoV2FlashHasWindowsOfOtherHeads) {
  Json j = family("MiMoV2FlashForCausalLM", 6, 64, 4);
  j.update(Json{{"head_dim", 192},
                {"v_head_dim", 128},
                {"intermediate_size", 16384},
                {"rope_theta", 5000000},
                {"swa_rope_theta", 10000},
                {"partial_rotary_factor", 0.334},
                {"sliding_window", 128},
                {"sliding_window_size", 128},
                {"swa_num_attention_heads", 64},
                {"swa_num_key_value_heads", 8},
                {"swa_head_dim", 192},
                {"swa_v_head_dim", 128},
                {"hybrid_layer_pattern", {0, 1, 1, 1, 1, 0}},
                {"moe_layer_freq", {0, 1, 1, 1, 1, 1}},
                {"moe_intermediate_size", 2048},
                {"n_routed_experts", 256},
                {"n_shared_experts", nullptr},
                {"num_experts_per_tok", 8},
                {"norm_topk_prob", true},
                {"scoring_func", "sigmoid"},
                {"n_group", 1},
                {"topk_group", 1},
                {"topk_method", "noaux_tc"},
                {"routed_scaling_factor", nullptr},
                {"layernorm_epsilon", 1e-5},
                {"attention_value_scale", 0.707},
                {"add_swa_attention_sink_bias", true},
                {"add_full_attention_sink_bias", false}});
  const ModelConfig c = parsed(j);
  ASSERT_EQ(c.groups.size(), 2u);
  AttentionProblem full = gqa_problem(64, 4, 192);
  full.v_head_dim = 128;
  EXPECT_EQ(c.groups[0].problem, full);
  EXPECT_EQ(c.groups[0].rope.dim, 64);
  EXPECT_EQ(c.groups[0].rope.theta, 5e6);
  AttentionProblem window = full;
  window.kv_heads = 8;
  window.window = 129;  // the row itself and 128 before it
  window.sink = true;
  EXPECT_EQ(c.groups[1].problem, window);
  EXPECT_EQ(c.groups[1].rope.theta, 1e4);
  EXPECT_THAT(c.groups[1].layers, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(c.value_scale, 0.707f);
  EXPECT_EQ(c.moe.layer_has_experts[0], 0);
  EXPECT_EQ(c.moe.layer_has_experts[5], 1);
  EXPECT_EQ(c.moe.shared, 0);
  EXPECT_EQ(c.moe.scale, 1);
  EXPECT_EQ(c.norm_eps, 1e-5f);
  j["swa_head_dim"] = 128;
  EXPECT_THAT(refusal(j), HasSubstr("swa_head_dim: wanted 192"));
  j["swa_head_dim"] = 192;
  j["moe_layer_freq"] = {0, 1};
  EXPECT_THAT(refusal(j), HasSubstr("moe_layer_freq: wanted 6 entries, got 2"));
  for (const char* key : {"hybrid_layer_pattern", "moe_layer_freq", "sliding_window_size"}) {
    j.erase(key);
  }
  j["sliding_window"] = 129;
  EXPECT_EQ(parsed(j).groups[1].problem, window);  // as the class: every sixth layer has none
}

TEST(ConfigParts, MiniCpm3ScalesByThreeNumbers) {
  Json j = family("MiniCPM3ForCausalLM", 49, 40, 40);
  j.update(Json{{"hidden_size", 2560},
                {"kv_lora_rank", 256},
                {"q_lora_rank", 768},
                {"qk_nope_head_dim", 64},
                {"qk_rope_head_dim", 32},
                {"scale_emb", 12},
                {"scale_depth", 1.4},
                {"dim_model_base", 256}});
  const ModelConfig c = parsed(j);
  EXPECT_EQ(c.attention(0).v_head, 64);
  EXPECT_EQ(c.attention(0).nope, 256);
  EXPECT_EQ(c.groups.front().rope.pairing, RopePairing::split_half);
  EXPECT_FLOAT_EQ(c.embedding_scale, 12 / 0.2f);  // 1.4 / sqrt(49) of residuals
  EXPECT_FLOAT_EQ(c.norm_eps, 1e-5f / 0.04f);
  EXPECT_FLOAT_EQ(c.logit_scale, 0.1f);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_EQ(c.moe.experts, 0);
  j["scale_depth"] = nullptr;
  j["dim_model_base"] = nullptr;
  EXPECT_FLOAT_EQ(parsed(j).embedding_scale, 12);
  EXPECT_EQ(parsed(j).logit_scale, 1);
  j["scale_emb"] = 0;
  EXPECT_THAT(refusal(j), HasSubstr("scale_emb: wanted a finite number from 1e-06 to 1000000"));
}

}  // namespace
}  // namespace lathe
