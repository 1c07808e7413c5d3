// Configurations of models with delta-rule layers, with published values.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "model/config/split_sizes.h"
#include "model/config/test/config_test_util.h"

namespace lathe {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// The keys of Qwen3.5-35B-A3B's config.json.
Json qwen3_5_moe() {
  std::vector<std::string> types(40, "linear_attention");
  for (std::size_t l = 3; l < types.size(); l += 4) types[l] = "full_attention";
  return {{"architectures", {"Qwen3_5MoeForConditionalGeneration"}},
          {"model_type", "qwen3_5_moe"},
          {"tie_word_embeddings", false},
          {"text_config",
           {{"attn_output_gate", true},
            {"eos_token_id", 248044},
            {"full_attention_interval", 4},
            {"head_dim", 256},
            {"hidden_act", "silu"},
            {"hidden_size", 2048},
            {"layer_types", types},
            {"linear_conv_kernel_dim", 4},
            {"linear_key_head_dim", 128},
            {"linear_num_key_heads", 16},
            {"linear_num_value_heads", 32},
            {"linear_value_head_dim", 128},
            {"max_position_embeddings", 262144},
            {"mlp_only_layers", Json::array()},
            {"model_type", "qwen3_5_moe_text"},
            {"moe_intermediate_size", 512},
            {"mtp_num_hidden_layers", 1},
            {"num_attention_heads", 16},
            {"num_experts", 256},
            {"num_experts_per_tok", 8},
            {"num_hidden_layers", 40},
            {"num_key_value_heads", 2},
            {"rms_norm_eps", 1e-6},
            {"shared_expert_intermediate_size", 512},
            {"vocab_size", 248320},
            {"rope_parameters",
             {{"mrope_interleaved", true},
              {"mrope_section", {11, 11, 10}},
              {"rope_type", "default"},
              {"rope_theta", 10000000},
              {"partial_rotary_factor", 0.25}}}}}};
}

// The text_config of Qwen3.5-27B, as a model of its own.
Json qwen3_5() {
  Json j = qwen3_5_moe()["text_config"];
  j["architectures"] = {"Qwen3_5ForCausalLM"};
  j["model_type"] = "qwen3_5_text";
  j["hidden_size"] = 5120;
  j["intermediate_size"] = 17408;
  j["num_attention_heads"] = 24;
  j["num_key_value_heads"] = 4;
  j["num_hidden_layers"] = 64;
  j["linear_num_value_heads"] = 48;
  j.erase("layer_types");
  return j;
}

TEST(ConfigDelta, Qwen35MoeHasThreeStatesForEachAttention) {
  const ModelConfig c = parsed(qwen3_5_moe());
  EXPECT_TRUE(c.text_tower);
  ASSERT_EQ(c.groups.size(), 1u);
  EXPECT_EQ(c.groups[0].problem, gqa_problem(16, 2, 256));
  EXPECT_EQ(c.groups[0].rope.dim, 64);
  EXPECT_EQ(c.groups[0].rope.theta, 1e7);
  EXPECT_EQ(c.groups[0].rope.pairing, RopePairing::split_half);
  EXPECT_THAT(c.groups[0].layers, ElementsAre(3, 7, 11, 15, 19, 23, 27, 31, 35, 39));
  EXPECT_EQ(c.delta.layers.size(), 30u);
  EXPECT_TRUE(c.is_delta(0));
  EXPECT_FALSE(c.is_delta(3));
  EXPECT_EQ(c.group_of(0), 0u);
  EXPECT_EQ(c.delta.problem,
            (DeltaRuleProblem{.heads = 32, .key_heads = 16, .dk = 128, .dv = 128}));
  EXPECT_EQ(c.output_gate, OutputGate::with_q);
  EXPECT_EQ(c.qk_norm, QkNorm::heads);
  EXPECT_EQ(c.norm_offset, 1);
  EXPECT_EQ(c.moe.experts, 256);
  EXPECT_EQ(c.moe.top_k, 8);
  EXPECT_TRUE(c.moe.normalize);
  EXPECT_TRUE(c.moe.shared_gate);
  EXPECT_EQ(c.moe.shared_width(), 512);
  EXPECT_EQ(c.draft_layers, 1);
  const std::vector<LayerGroup> groups = c.layer_groups();
  ASSERT_TRUE(groups[0].delta);
  EXPECT_EQ(groups[0].delta->layers, c.delta.layers);
  EXPECT_EQ(groups[0].state_bytes, 4 * (32 * 128 * 128 + 3 * 8192));
}

TEST(ConfigDelta, Qwen35SaysItsLayersByAnInterval) {
  Json j = qwen3_5();
  const ModelConfig c = parsed(j);
  EXPECT_EQ(c.delta.layers.size(), 48u);
  EXPECT_EQ(c.groups[0].problem, gqa_problem(24, 4, 256));
  EXPECT_EQ(c.delta.problem.heads, 48);
  EXPECT_EQ(c.moe.experts, 0);
  j["full_attention_interval"] = 8;
  EXPECT_EQ(parsed(j).delta.layers.size(), 56u);
}

TEST(ConfigDelta, Qwen3NextHasHeadsInOneProjection) {
  Json j = qwen3_5();
  j["architectures"] = {"Qwen3NextForCausalLM"};
  j["num_experts"] = 512;
  j["num_experts_per_tok"] = 10;
  j["norm_topk_prob"] = true;
  j["partial_rotary_factor"] = 0.25;
  j["rope_theta"] = 1e7;
  j.erase("rope_parameters");
  const ModelConfig c = parsed(j);
  EXPECT_EQ(c.delta.tensors, DeltaTensors::key_heads);
  EXPECT_EQ(c.groups[0].rope.dim, 64);
  EXPECT_EQ(c.moe.experts, 512);
  EXPECT_EQ(c.moe.top_k, 10);
}

TEST(ConfigDelta, WhatIsNotComputedIsNamed) {
  Json j = qwen3_5();
  j["layer_types"] = std::vector<std::string>(64, "linear_attention");
  EXPECT_THAT(refusal(j), HasSubstr("layer_types: wanted at least one full_attention"));
  j["layer_types"][5] = "chunked_attention";
  EXPECT_THAT(refusal(j), AllOf(HasSubstr("layer_types[5]"), HasSubstr("linear_attention"),
                                HasSubstr("chunked_attention")));
  j["layer_types"] = {"full_attention"};
  EXPECT_THAT(refusal(j), HasSubstr("layer_types: wanted 64 entries, got 1"));
  j = qwen3_5();
  j["linear_num_key_heads"] = 7;
  EXPECT_THAT(refusal(j), HasSubstr("linear_attention"));
}

// The keys of Kimi-Linear-48B-A3B's config.json.
Json kimi_linear() {
  return {{"architectures", {"KimiLinearForCausalLM"}},
          {"model_type", "kimi_linear"},
          {"first_k_dense_replace", 1},
          {"hidden_act", "silu"},
          {"hidden_size", 2304},
          {"intermediate_size", 9216},
          {"kv_lora_rank", 512},
          {"linear_attn_config",
           {{"full_attn_layers", {4, 8}},
            {"head_dim", 128},
            {"kda_layers", {1, 2, 3, 5, 6, 7, 9}},
            {"num_heads", 32},
            {"short_conv_kernel_size", 4}}},
          {"mla_use_nope", true},
          {"model_max_length", 1048576},
          {"moe_intermediate_size", 1024},
          {"moe_renormalize", true},
          {"moe_router_activation_func", "sigmoid"},
          {"num_attention_heads", 32},
          {"num_expert_group", 1},
          {"num_experts", 256},
          {"num_experts_per_token", 8},
          {"num_hidden_layers", 9},
          {"num_key_value_heads", 32},
          {"num_shared_experts", 1},
          {"q_lora_rank", nullptr},
          {"qk_nope_head_dim", 128},
          {"qk_rope_head_dim", 64},
          {"rms_norm_eps", 1e-5},
          {"routed_scaling_factor", 2.446},
          {"topk_group", 1},
          {"v_head_dim", 128},
          {"vocab_size", 163840}};
}

TEST(ConfigDelta, KimiLinearKnowsNoPositions) {
  Json j = kimi_linear();
  const ModelConfig c = parsed(j);
  EXPECT_TRUE(c.is_mla());
  EXPECT_EQ(c.max_context, 1048576);
  EXPECT_THAT(c.groups[0].layers, ElementsAre(3, 7));
  EXPECT_THAT(c.delta.layers, ElementsAre(0, 1, 2, 4, 5, 6, 8));
  EXPECT_EQ(c.groups[0].rope.pairs, 0);
  EXPECT_FLOAT_EQ(c.groups[0].problem.scale, 1 / std::sqrt(192.0f));
  EXPECT_EQ(c.delta.problem, (DeltaRuleProblem{.heads = 32,
                                               .key_heads = 32,
                                               .dk = 128,
                                               .dv = 128,
                                               .decay = DeltaDecay::per_channel,
                                               .output = DeltaOutput::sigmoid}));
  EXPECT_EQ(c.mla.q_lora, 0);
  EXPECT_EQ(c.moe.scoring, RouterScoring::sigmoid);
  EXPECT_EQ(c.moe.groups, 1);
  EXPECT_EQ(c.moe.top_k, 8);
  EXPECT_EQ(c.moe.shared, 1);
  EXPECT_FLOAT_EQ(c.moe.scale, 2.446f);
  EXPECT_EQ(c.moe.layer_has_experts[0], 0);
  EXPECT_EQ(c.moe.names.part, "block_sparse_moe.");
  EXPECT_EQ(c.moe.names.alone, "mlp.");
  j["linear_attn_config"]["kda_layers"] = {0};
  EXPECT_THAT(refusal(j), HasSubstr("kda_layers: wanted layers from 1 to 9, got 0"));
  j = kimi_linear();
  j["mla_use_nope"] = false;
  EXPECT_THAT(refusal(j), HasSubstr("mla_use_nope"));
}

TEST(ConfigDelta, Ling3BoundsItsDecay) {
  Json j = kimi_linear();
  j["architectures"] = {"BailingMoeV3ForCausalLM"};
  j["max_position_embeddings"] = 262144;
  j["num_experts_per_tok"] = 8;
  j["n_group"] = 8;
  j["topk_group"] = 4;
  j["num_hidden_layers"] = 12;
  j["head_dim"] = 128;
  j["kda_lower_bound"] = -5.0;
  for (const char* key : {"linear_attn_config", "model_max_length", "num_expert_group"})
    j.erase(key);
  const ModelConfig c = parsed(j);
  EXPECT_THAT(c.groups[0].layers, ElementsAre(5, 11));
  EXPECT_EQ(c.groups[0].rope.theta, 6e6);
  EXPECT_FALSE(c.groups[0].rope.pairs);
  EXPECT_EQ(c.delta.problem.gate, DeltaGate::bounded);
  EXPECT_EQ(c.delta.problem.gate_bound, -5);
  EXPECT_EQ(c.delta.problem.heads, 32);
  EXPECT_EQ(c.output_gate, OutputGate::heads);
  EXPECT_EQ(c.moe.groups, 8);
  j["kda_safe_gate"] = false;
  EXPECT_EQ(parsed(j).delta.problem.gate, DeltaGate::softplus);
  j["kda_safe_gate"] = true;
  j["kda_lower_bound"] = 1.0;
  EXPECT_THAT(refusal(j), HasSubstr("kda_lower_bound: wanted a finite number from -10000"));
}

TEST(ConfigDelta, RanksHaveWholeKeyHeads) {
  const SplitSizes sizes = split_sizes(parsed(qwen3_5()));
  EXPECT_EQ(sizes.delta_keys, 16);
  EXPECT_EQ(sizes.delta_values, 3);
  const Share share = share_of(sizes, {.tp = 4, .expert_width = 4}, 1);
  EXPECT_EQ(share.delta_keys, (Range{4, 4}));
  EXPECT_EQ(share.delta_values, (Range{12, 12}));
  const ModelConfig rank = rank_config(parsed(qwen3_5()), 4);
  EXPECT_EQ(rank.delta.problem.key_heads, 4);
  EXPECT_EQ(rank.delta.problem.heads, 12);
}

}  // namespace
}  // namespace lathe
