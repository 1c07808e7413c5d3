// Configurations of architectures with latent attention.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "model/config/test/config_test_util.h"

namespace lathe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

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

TEST(ModelConfig, AXK1NormsWhatExpertsAdd) {
  Json j = without(deepseek_v3(), {"quantization_config", "num_nextn_predict_layers",
                                   "first_k_dense_replace", "bos_token_id", "eos_token_id"});
  j["architectures"] = {"AXK1ForCausalLM"};
  j["model_type"] = "axk1";
  const ModelConfig c = parsed(j);
  EXPECT_EQ(c.norms.experts_out, "post_mlp_layernorm");
  EXPECT_FALSE(c.norms.of_outputs());
  EXPECT_EQ(c.moe.layer_has_experts[0], 0);
  EXPECT_EQ(c.moe.layer_has_experts[1], 1);
  EXPECT_EQ(c.draft_layers, 0);
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
  j["rope_scaling"]["type"] = "proportional";
  EXPECT_THAT(refusal(j), HasSubstr("proportional"));
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
  // DeepSeek's code scales weights or makes their sum 1 (modeling_deepseek.py, MoEGate).
  Json normed = deepseek_v2();
  normed["norm_topk_prob"] = true;
  EXPECT_TRUE(parsed(normed).moe.normalize);
  EXPECT_EQ(parsed(normed).moe.scale, 1);
  normed["num_experts_per_tok"] = 1;
  EXPECT_FALSE(parsed(normed).moe.normalize);
  EXPECT_EQ(parsed(normed).moe.scale, parsed(deepseek_v2()).moe.scale);
  EXPECT_THAT(with("n_group", nullptr), HasSubstr("n_group: wanted an integer from 1 to 160"));
  EXPECT_THAT(with("topk_group", nullptr), HasSubstr("topk_group: wanted an integer from 1 to 8"));
  EXPECT_THAT(with("n_group", 7), HasSubstr("n_group: wanted a divisor of the 160 experts"));
  EXPECT_THAT(with("moe_layer_freq", 2), HasSubstr("moe_layer_freq"));
}

// Mistral Small 4; a share of each head rotates, all of it grows.
TEST(ConfigMla, Mistral4QueriesGrow) {
  Json j = {{"architectures", {"Mistral4ForCausalLM"}},
            {"vocab_size", 131072},
            {"hidden_size", 4096},
            {"intermediate_size", 12288},
            {"moe_intermediate_size", 2048},
            {"num_hidden_layers", 36},
            {"num_attention_heads", 32},
            {"max_position_embeddings", 1048576},
            {"n_routed_experts", 128},
            {"num_experts_per_tok", 4},
            {"kv_lora_rank", 256},
            {"q_lora_rank", 1024},
            {"qk_nope_head_dim", 64},
            {"qk_rope_head_dim", 64},
            {"v_head_dim", 128}};
  for (const bool given : {false, true}) {
    if (given) {
      j["rope_parameters"] = {{"type", "yarn"},
                              {"rope_theta", 10000.0},
                              {"factor", 128.0},
                              {"original_max_position_embeddings", 8192},
                              {"beta_fast", 32.0},
                              {"beta_slow", 1.0},
                              {"mscale", 1.0},
                              {"mscale_all_dim", 1.0},
                              {"llama_4_scaling_beta", 0.1},
                              {"partial_rotary_factor", 0.5}};
    }
    const ModelConfig c = parsed(j);
    const LayerGroupConfig& g = c.groups.front();
    EXPECT_EQ(g.problem.nope, 256);
    EXPECT_EQ(g.query_growth, (RopeGrowth{0.1, 8192}));
    EXPECT_EQ(g.rope.dim, 64);
    EXPECT_EQ(rope_magnitude(g.rope), 1);
    const double m = 0.1 * std::log(128.0) + 1;
    EXPECT_FLOAT_EQ(g.problem.scale, static_cast<float>(m * m / std::sqrt(128.0)));
    EXPECT_EQ(c.moe.scoring, RouterScoring::softmax);
    EXPECT_EQ(c.moe.shared, 1);
    EXPECT_FALSE(c.moe.correction_bias);
    EXPECT_EQ(c.moe.layer_has_experts[0], 1);
  }
  j["rope_parameters"]["partial_rotary_factor"] = 0.25;
  EXPECT_THAT(refusal(j), HasSubstr("partial_rotary_factor: wanted 0.5"));
}

}  // namespace
}  // namespace lathe
