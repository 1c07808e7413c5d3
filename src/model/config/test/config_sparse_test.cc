// Configurations of architectures with sparse latent attention and parts of their own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "model/config/test/config_test_util.h"

namespace lathe {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// The keys of Hy4-preview's config.json.
Json hy_v4() {
  return {{"architectures", {"HYV4ForCausalLM"}},
          {"model_type", "hy_v4"},
          {"vocab_size", 120832},
          {"hidden_size", 2816},
          {"intermediate_size", 6912},
          {"moe_intermediate_size", 768},
          {"num_hidden_layers", 34},
          {"num_attention_heads", 32},
          {"num_key_value_heads", 32},
          {"head_dim", 256},
          {"hidden_act", "silu"},
          {"max_position_embeddings", 262144},
          {"rms_norm_eps", 1e-5},
          {"n_routed_experts", 256},
          {"num_experts_per_tok", 8},
          {"routed_scaling_factor", 2.827},
          {"q_lora_rank", 1536},
          {"kv_lora_rank", 512},
          {"qk_nope_head_dim", 192},
          {"qk_rope_head_dim", 64},
          {"v_head_dim", 256},
          {"index_topk", 2048},
          {"index_head_dim", 128},
          {"index_n_heads", 16},
          {"hc_mult", 4},
          {"hc_magnitude", 2.0},
          {"hc_eps", 1e-6},
          {"swiglu_limit", 10.0},
          {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e7}}}};
}

// The keys of A.X-K2-Light's config.json.
Json axk2() {
  return {{"architectures", {"AXK2ForCausalLM"}},
          {"model_type", "axk2"},
          {"vocab_size", 163840},
          {"hidden_size", 2048},
          {"intermediate_size", 5120},
          {"moe_intermediate_size", 512},
          {"num_hidden_layers", 48},
          {"num_attention_heads", 32},
          {"num_key_value_heads", 32},
          {"n_routed_experts", 128},
          {"num_experts_per_tok", 8},
          {"n_group", nullptr},
          {"topk_group", nullptr},
          {"kv_lora_rank", 128},
          {"q_lora_rank", 384},
          {"qk_rope_head_dim", 32},
          {"v_head_dim", 64},
          {"qk_nope_head_dim", 64},
          {"max_position_embeddings", 131072},
          {"index_topk", 2048},
          {"index_head_dim", 128},
          {"index_n_heads", 16},
          {"gated_norm_rank", 16}};
}

TEST(ModelConfig, Hy4) {
  const ModelConfig c = parsed(hy_v4());
  const AttentionProblem& p = c.groups.front().problem;
  EXPECT_EQ(p.kind, ProblemKind::sparse_latent);
  EXPECT_TRUE(p.sink);
  EXPECT_FLOAT_EQ(p.scale, 1 / 16.0f);
  EXPECT_EQ(c.groups.front().rope.pairing, RopePairing::split_half);
  EXPECT_EQ(c.groups.front().rope.theta, 1e7);
  EXPECT_EQ(c.mla.index_pairing, RopePairing::split_half);
  EXPECT_EQ(c.mla.index_place, RopePlace::last);
  EXPECT_FLOAT_EQ(c.mla.index_norm_eps, 1e-5f);
  EXPECT_FLOAT_EQ(c.mla.norm_eps, 1e-6f);
  ASSERT_EQ(c.mla.own_indexer.size(), 34u);
  for (std::size_t l = 0; l < 34; ++l) {
    EXPECT_EQ(c.mla.own_indexer[l], l == 0 || (l - 1) % 4 == 0 ? 1 : 0) << l;
  }
  EXPECT_EQ(c.output_gate, OutputGate::elements);
  EXPECT_EQ(c.hyper.streams, 4);
  EXPECT_EQ(c.hyper.iterations, 0);
  EXPECT_EQ(c.hyper.part_columns(), 8);
  EXPECT_EQ(c.hyper.post_scale, 2);
  EXPECT_FLOAT_EQ(c.hyper.post_eps, 1e-6f);
  ASSERT_TRUE(c.moe.activation);
  EXPECT_EQ(c.moe.activation->kind, ActivationKind::clamped_silu);
  EXPECT_EQ(c.moe.activation->limit, 10);
  EXPECT_EQ(c.activation.kind, ActivationKind::silu);
  EXPECT_EQ(std::ranges::count(c.moe.layer_has_experts, 1), 33);
  EXPECT_FLOAT_EQ(c.moe.scale, 2.827f);
  EXPECT_EQ(c.bos, 120000);
}

TEST(ModelConfig, Hy4sAbsentKeysAreThoseOfTheClass) {
  const ModelConfig whole = parsed(hy_v4());
  const ModelConfig c =
      parsed(without(hy_v4(), {"q_lora_rank", "hc_mult", "hc_magnitude", "hc_eps", "swiglu_limit",
                               "routed_scaling_factor", "rms_norm_eps"}));
  EXPECT_EQ(c.mla.q_lora, whole.mla.q_lora);
  EXPECT_EQ(c.hyper.streams, 4);
  EXPECT_EQ(c.hyper.post_scale, 2);
  EXPECT_EQ(c.moe.activation->limit, 10);
  EXPECT_EQ(c.moe.scale, whole.moe.scale);
  EXPECT_EQ(c.norm_eps, whole.norm_eps);
  Json j = hy_v4();
  j["swiglu_limit"] = 0;
  EXPECT_FALSE(parsed(j).moe.activation);
}

TEST(ModelConfig, Hy4Refuses) {
  for (const auto& [key, value, wanted] : {std::tuple{"hc_mult", Json(17), "1 to 16"},
                                           {"hc_mult", Json("four"), "integer"},
                                           {"scoring_func", Json("softmax"), "sigmoid"},
                                           {"q_lora_rank", Json(nullptr), "a rank"},
                                           {"indexer_types", Json({"full"}), "34 entries"}}) {
    Json j = hy_v4();
    j[key] = value;
    EXPECT_THAT(refusal(j), AllOf(HasSubstr(key), HasSubstr(wanted)));
  }
}

// The keys of GLM-5.3-Flash's text_config.
Json glm5_next() {
  return {{"architectures", {"Glm5NextForCausalLM"}},
          {"model_type", "glm5_next_text"},
          {"vocab_size", 154880},
          {"hidden_size", 4096},
          {"intermediate_size", 12288},
          {"moe_intermediate_size", 2048},
          {"num_hidden_layers", 45},
          {"num_attention_heads", 64},
          {"num_key_value_heads", 64},
          {"n_routed_experts", 288},
          {"num_experts_per_tok", 8},
          {"q_lora_rank", 1536},
          {"kv_lora_rank", 512},
          {"qk_nope_head_dim", 256},
          {"qk_rope_head_dim", 0},
          {"v_head_dim", 256},
          {"max_position_embeddings", 1048576},
          {"rms_norm_eps", 1e-5},
          {"index_topk", 2048},
          {"index_head_dim", 128},
          {"index_n_heads", 32},
          {"index_kpool", 16},
          {"swiglu_limit", 10.0}};
}

TEST(ModelConfig, Glm53Flash) {
  const ModelConfig c = parsed(glm5_next());
  const AttentionProblem& p = c.groups.front().problem;
  EXPECT_EQ(p.kind, ProblemKind::sparse_latent);
  EXPECT_EQ(p.rope, 0);
  EXPECT_EQ(p.index_pool, 16);
  EXPECT_EQ(p.index_top_k(), 128);
  EXPECT_EQ(p.listed_keys(), 2048 + 15);
  EXPECT_FLOAT_EQ(p.scale, 1 / 16.0f);
  ASSERT_EQ(c.groups.front().layers.size(), 11u);
  EXPECT_EQ(c.groups.front().layers.front(), 3);
  EXPECT_EQ(c.delta.layers.size(), 34u);
  EXPECT_EQ(c.delta.problem.heads, 64);
  EXPECT_EQ(c.delta.problem.gate, DeltaGate::bounded);
  EXPECT_EQ(c.delta.problem.gate_bound, -5);
  EXPECT_EQ(c.delta.tensors, DeltaTensors::low_rank);
  for (std::int32_t l = 0; l < 45; ++l) {
    EXPECT_EQ(c.mla.own_indexer[static_cast<std::size_t>(l)], l % 4 == 3 ? 1 : 0) << l;
  }
  EXPECT_FLOAT_EQ(c.mla.norm_eps, 1e-5f);
  EXPECT_FLOAT_EQ(c.mla.index_norm_eps, 1e-6f);
  EXPECT_EQ(c.hyper.iterations, 20);
  EXPECT_EQ(c.hyper.part_columns(), 24);
  EXPECT_TRUE(c.hyper.head.empty());
  EXPECT_EQ(c.activation.kind, ActivationKind::clamped_silu);
  EXPECT_EQ(c.moe.layer_has_experts[2], 0);
  EXPECT_EQ(c.moe.layer_has_experts[3], 1);
  const LayerGroup group = c.layer_groups().front();
  EXPECT_EQ(group.index_layers, group.layers);
  // A fold of 128 channels after the state of a delta-rule layer.
  EXPECT_EQ(group.state_bytes, 4 * (64 * 128 * 128 + 3 * 3 * 64 * 128 + 3 * 128));
}

TEST(ModelConfig, Glm53FlashReadsTheOlderKeysOfItsDeltaRule) {
  Json j = glm5_next();
  j["linear_attn_config"] = {{"head_dim", 64},
                             {"num_heads", 32},
                             {"short_conv_kernel_size", 3},
                             {"gate_lower_bound", -4.0}};
  const DeltaRuleProblem p = parsed(j).delta.problem;
  EXPECT_EQ(p.heads, 32);
  EXPECT_EQ(p.dk, 64);
  EXPECT_EQ(p.conv, 3);
  EXPECT_EQ(p.gate_bound, -4);
  j = glm5_next();
  j["linear_lower_bound"] = nullptr;
  EXPECT_NE(parsed(j).delta.problem.gate, DeltaGate::bounded);
  j["linear_attn_config"] = {{"head_dim", 128}};
  EXPECT_EQ(parsed(j).delta.problem.gate_bound, -5);
}

TEST(ModelConfig, Glm53FlashRefuses) {
  for (const auto& [key, value, wanted] : {std::tuple{"qk_rope_head_dim", Json(64), "0"},
                                           {"index_kpool", Json(15), "index_kpool"},
                                           {"index_kpool_always_select_tail", Json(false), "true"},
                                           {"index_topk_freq", Json(3), "indexer_types"},
                                           {"linear_lower_bound", Json(5.0), "from -10000"}}) {
    Json j = glm5_next();
    j[key] = value;
    EXPECT_THAT(refusal(j), HasSubstr(wanted)) << key;
  }
  Json j = glm5_next();
  j["layer_types"] = std::vector<std::string>(45, "indexed_attention");
  EXPECT_THAT(refusal(j), HasSubstr("delta-rule layers"));
}

TEST(ModelConfig, AxK2) {
  const ModelConfig c = parsed(axk2());
  EXPECT_EQ(c.groups.front().problem.kind, ProblemKind::sparse_latent);
  EXPECT_EQ(c.groups.front().rope.pairing, RopePairing::interleaved);
  EXPECT_EQ(c.mla.index_pairing, RopePairing::split_half);
  EXPECT_EQ(c.mla.index_place, RopePlace::first);
  EXPECT_EQ(c.output_gate, OutputGate::with_q_b);
  EXPECT_EQ(c.norms.gate_rank, 16);
  EXPECT_EQ(c.moe.groups, 1);
  EXPECT_EQ(c.moe.scale, 2.5f);
  EXPECT_EQ(c.moe.layer_has_experts[0], 0);
  EXPECT_EQ(c.moe.layer_has_experts[1], 1);
  EXPECT_EQ(parsed(without(axk2(), {"n_group", "topk_group", "gated_norm_rank"})).norms.gate_rank,
            16);
  Json j = axk2();
  j["n_group"] = 8, j["topk_group"] = 4;
  EXPECT_EQ(parsed(j).moe.groups, 8);
}

TEST(ModelConfig, AxK2Refuses) {
  Json j = axk2();
  j["gated_norm_rank"] = 0;
  EXPECT_THAT(refusal(j), HasSubstr("gated_norm_rank"));
  j = axk2();
  j["q_lora_rank"] = nullptr;
  EXPECT_THAT(refusal(j), HasSubstr("q_lora_rank"));
}

}  // namespace
}  // namespace lathe
