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
