#include "model/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <utility>

#include "model/config/test/config_test_util.h"
#include "model/layers/draft_layer.h"

namespace lathe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// DeepSeek-V4-Flash as it was published, with fewer layers.
Json deepseek_v4() {
  return {{"architectures", {"DeepseekV4ForCausalLM"}},
          {"model_type", "deepseek_v4"},
          {"vocab_size", 129280},
          {"hidden_size", 4096},
          {"moe_intermediate_size", 2048},
          {"num_hidden_layers", 7},
          {"num_nextn_predict_layers", 1},
          {"compress_ratios", {0, 0, 4, 128, 4, 128, 4, 0}},
          {"num_attention_heads", 64},
          {"num_key_value_heads", 1},
          {"head_dim", 512},
          {"qk_rope_head_dim", 64},
          {"q_lora_rank", 1024},
          {"o_lora_rank", 1024},
          {"o_groups", 8},
          {"sliding_window", 128},
          {"index_n_heads", 64},
          {"index_head_dim", 128},
          {"index_topk", 512},
          {"n_routed_experts", 256},
          {"n_shared_experts", 1},
          {"num_experts_per_tok", 6},
          {"num_hash_layers", 3},
          {"norm_topk_prob", true},
          {"routed_scaling_factor", 1.5},
          {"scoring_func", "sqrtsoftplus"},
          {"topk_method", "noaux_tc"},
          {"swiglu_limit", 10.0},
          {"hc_mult", 4},
          {"hc_sinkhorn_iters", 20},
          {"hc_eps", 1e-6},
          {"rms_norm_eps", 1e-6},
          {"hidden_act", "silu"},
          {"max_position_embeddings", 1048576},
          {"rope_theta", 10000},
          {"compress_rope_theta", 160000},
          {"rope_scaling",
           {{"type", "yarn"},
            {"factor", 16},
            {"original_max_position_embeddings", 65536},
            {"beta_fast", 32},
            {"beta_slow", 1}}},
          {"tie_word_embeddings", false},
          {"attention_bias", false},
          {"bos_token_id", 0},
          {"eos_token_id", 1},
          {"expert_dtype", "fp4"},
          {"quantization_config",
           {{"quant_method", "fp8"},
            {"fmt", "e4m3"},
            {"activation_scheme", "dynamic"},
            {"scale_fmt", "ue8m0"},
            {"weight_block_size", {128, 128}}}}};
}

// The same model in transformers' form.
Json folded_v4() {
  Json j = deepseek_v4();
  for (const char* key : {"compress_ratios", "num_hash_layers", "qk_rope_head_dim", "rope_scaling",
                          "topk_method", "expert_dtype"}) {
    j.erase(key);
  }
  j["layer_types"] = {"sliding_attention",           "sliding_attention",
                      "compressed_sparse_attention", "heavily_compressed_attention",
                      "compressed_sparse_attention", "heavily_compressed_attention",
                      "compressed_sparse_attention"};
  j["compress_rates"] = {{"compressed_sparse_attention", 4}, {"heavily_compressed_attention", 128}};
  j["mlp_layer_types"] = {"hash_moe", "hash_moe", "hash_moe", "moe", "moe", "moe", "moe"};
  j["partial_rotary_factor"] = 0.125;
  const Json main = {
      {"rope_type", "default"}, {"rope_theta", 10000.0}, {"partial_rotary_factor", 0.125}};
  Json compress = {{"rope_type", "yarn"},
                   {"rope_theta", 160000.0},
                   {"partial_rotary_factor", 0.125},
                   {"attention_factor", 1.0},
                   {"factor", 16},
                   {"original_max_position_embeddings", 65536},
                   {"beta_fast", 32},
                   {"beta_slow", 1}};
  j["rope_parameters"] = {{"main", main}, {"compress", compress}};
  j["quantization_config"]["expert_dtype"] = "fp4";
  return j;
}

TEST(ModelConfig, DeepSeekV4) {
  const ModelConfig c = parsed(deepseek_v4());
  ASSERT_EQ(c.groups.size(), 3u);
  EXPECT_TRUE(c.is_compressed());
  EXPECT_FALSE(c.is_mla());
  EXPECT_THAT(c.groups[0].layers, ElementsAre(0, 1));
  EXPECT_THAT(c.groups[1].layers, ElementsAre(2, 4, 6));
  EXPECT_THAT(c.groups[2].layers, ElementsAre(3, 5));
  for (std::size_t g = 0; g < 3; ++g) {
    const std::int32_t ratio = std::array{0, 4, 128}[g];
    EXPECT_EQ(c.groups[g].problem, deepseek_v4_problem(64, ratio)) << ratio;
    const RopeConfig& rope = c.groups[g].rope;
    EXPECT_EQ(rope.dim, 64);
    EXPECT_EQ(rope.theta, ratio == 0 ? 10000 : 160000);
    EXPECT_EQ(rope.yarn.has_value(), ratio > 0);
    EXPECT_EQ(rope_magnitude(rope), 1);
    EXPECT_TRUE(rope.f32_angles);
  }
  EXPECT_EQ(c.hyper.streams, 4);
  EXPECT_EQ(c.hyper.iterations, 20);
  EXPECT_EQ(c.mla.o_groups, 8);
  EXPECT_EQ(c.mla.o_lora, 1024);
  EXPECT_EQ(c.moe.scoring, RouterScoring::sqrt_softplus);
  EXPECT_EQ(c.moe.hash_layers, 3);
  EXPECT_EQ(c.moe.scale, 1.5f);
  EXPECT_EQ(c.activation.kind, ActivationKind::clamped_silu);
  EXPECT_EQ(c.activation.limit, 10.0f);
  EXPECT_TRUE(c.block_fp8);
  EXPECT_TRUE(c.mxfp4);
}

// DeepSeek's code has YaRN alone.
TEST(ModelConfig, DeepSeekV4sRopeIsYarnOrUnscaled) {
  Json older = deepseek_v4();
  older.erase("rope_parameters");
  const Json ones(std::vector<double>(32, 1.0));
  for (const Json& scaling :
       {Json{{"type", "linear"}, {"factor", 4}}, Json{{"type", "dynamic"}, {"factor", 4}},
        Json{{"type", "llama3"}, {"factor", 4}, {"low_freq_factor", 1}, {"high_freq_factor", 4}},
        Json{{"type", "longrope"}, {"short_factor", ones}, {"long_factor", ones}}}) {
    older["rope_scaling"] = scaling;
    EXPECT_EQ(refusal(older),
              "config.json: rope_scaling: type: wanted default or yarn, which "
              "DeepSeek V4 has, got " +
                  scaling["type"].dump() + "; --rope-scaling JSON gives another");
    Json newer = deepseek_v4();
    newer["rope_parameters"]["main"] = scaling;
    EXPECT_THAT(refusal(newer), testing::HasSubstr("main: type: wanted default or yarn"));
  }
  older["rope_scaling"] = {{"type", "default"}};
  EXPECT_EQ(refusal(older), "accepted");
}

// As NVIDIA publishes it.
TEST(ModelConfig, DeepSeekV4WithExpertsInNvfp4) {
  Json j = deepseek_v4();
  Json& q = j["quantization_config"];
  q["quant_algo"] = "MIXED_PRECISION";
  q["moe_quant_algo"] = "NVFP4";
  q["config_groups"]["group_0"]["weights"] = {
      {"dynamic", false}, {"group_size", 16}, {"num_bits", 4}, {"type", "float"}};
  const ModelConfig c = parsed(j);
  EXPECT_EQ(c.quantization, Quantization::fp8_blocks);
  EXPECT_TRUE(c.block_fp8 && c.mxfp4 && c.nvfp4_experts);
  EXPECT_FALSE(parsed(deepseek_v4()).nvfp4_experts);
}

TEST(ModelConfig, DeepSeekV4InBothSpellings) {
  const ModelConfig published = parsed(deepseek_v4());
  const ModelConfig folded = parsed(folded_v4());
  ASSERT_EQ(folded.groups.size(), published.groups.size());
  for (std::size_t g = 0; g < folded.groups.size(); ++g) {
    EXPECT_EQ(folded.groups[g].problem, published.groups[g].problem);
    EXPECT_EQ(folded.groups[g].rope, published.groups[g].rope);
    EXPECT_EQ(folded.groups[g].layers, published.groups[g].layers);
  }
  EXPECT_EQ(folded.moe.hash_layers, 3);
  EXPECT_TRUE(folded.mxfp4);
  Json base = folded_v4();
  base["quantization_config"]["expert_dtype"] = "fp8";
  EXPECT_FALSE(parsed(base).mxfp4);
  // Two layers of 128 first, then alternately 4 and 128.
  Json silent = deepseek_v4();
  silent.erase("compress_ratios");
  const ModelConfig c = parsed(silent);
  ASSERT_EQ(c.groups.size(), 2u);
  EXPECT_THAT(c.groups[0].layers, ElementsAre(2, 4, 6));
  EXPECT_THAT(c.groups[1].layers, ElementsAre(0, 1, 3, 5));
}

TEST(ModelConfig, DeepSeekV4RefusesByName) {
  const auto with = [](Json j, const std::string& key, Json value) {
    j[key] = std::move(value);
    return refusal(j);
  };
  const Json v4 = deepseek_v4();
  EXPECT_EQ(with(v4, "model_type", "deepseek_ref"), "accepted");
  EXPECT_THAT(with(v4, "model_type", "deepseek_v41"), HasSubstr("deepseek_v41"));
  EXPECT_THAT(with(v4, "compress_ratios", {0, 0, 4, 2, 4, 128, 4}),
              HasSubstr("compress_ratios[3]: wanted 0, 4 or 128, got 2"));
  EXPECT_THAT(with(v4, "compress_ratios", {0, 0, 4, 128, 4, 128, 4, 4}),
              HasSubstr("compress_ratios[7]"));
  EXPECT_THAT(with(v4, "compress_ratios", {0, 0}), HasSubstr("at least 7 entries"));
  EXPECT_THAT(with(v4, "scoring_func", "sigmoid"), HasSubstr("scoring_func"));
  EXPECT_THAT(with(v4, "topk_method", "greedy"), HasSubstr("topk_method"));
  EXPECT_THAT(with(v4, "n_group", 2), HasSubstr("n_group"));
  EXPECT_THAT(with(v4, "num_key_value_heads", 2), HasSubstr("num_key_value_heads"));
  EXPECT_THAT(with(v4, "o_groups", 7), HasSubstr("o_groups"));
  EXPECT_THAT(with(v4, "index_head_dim", 96), HasSubstr("index_head_dim"));
  EXPECT_THAT(with(v4, "attention_bias", true), HasSubstr("attention_bias"));
  EXPECT_THAT(with(v4, "expert_dtype", "int4"), HasSubstr("expert_dtype"));
  EXPECT_THAT(with(v4, "moe_intermediate_size", 2040), HasSubstr("moe_intermediate_size"));
  const Json folded = folded_v4();
  EXPECT_THAT(with(folded, "layer_types", Json(7, "full_attention")), HasSubstr("full_attention"));
  EXPECT_THAT(with(folded, "compress_rates", {{"compressed_sparse_attention", 8}}),
              HasSubstr("compressed_sparse_attention"));
  EXPECT_THAT(
      with(folded, "mlp_layer_types", {"moe", "hash_moe", "moe", "moe", "moe", "moe", "moe"}),
      HasSubstr("mlp_layer_types[1]"));
  Json scaled = folded;
  scaled["rope_parameters"]["compress"]["attention_factor"] = 1.27;
  EXPECT_THAT(refusal(scaled), HasSubstr("attention_factor"));
  // Keys of other kinds of drafter are ignored.
  EXPECT_EQ(with(v4, "dspark_target_layer_ids", {4, 5, 6}), "accepted");
}

// It has a window and no entries, whatever the last layer has; no other layer may be like it.
TEST(DeepseekV4Config, TheDraftLayerHasAWindowAlone) {
  const auto drafts = add_draft_layer(parsed(deepseek_v4()));
  ASSERT_TRUE(drafts);
  ASSERT_EQ(drafts->groups.size(), 3u);
  EXPECT_THAT(drafts->groups[0].layers, ElementsAre(0, 1, 7));
  EXPECT_EQ(drafts->cached_layers(), 8);
  EXPECT_EQ(drafts->state_width(), 4 * 4096);

  Json pro = deepseek_v4();
  pro["compress_ratios"] = {128, 128, 4, 128, 4, 128, 4, 0};
  const ModelConfig plain = parsed(pro);
  EXPECT_EQ(plain.groups.size(), 2u);
  const auto more = add_draft_layer(plain);
  ASSERT_TRUE(more);
  ASSERT_EQ(more->groups.size(), 3u);
  EXPECT_EQ(more->groups[2].name, "window");
  EXPECT_EQ(more->groups[2].problem, drafts->groups[0].problem);
  EXPECT_EQ(more->groups[2].rope, drafts->groups[0].rope);
  EXPECT_THAT(more->groups[2].layers, ElementsAre(7));

  Json blocks = deepseek_v4();
  blocks["dspark_block_size"] = 5;
  const auto refused = add_draft_layer(parsed(blocks));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("DSpark's blocks"));
}

// Lists of layers that are shorter than num_hidden_layers are refused before anything reads them by
// layer; AddressSanitizer sees a read past their end.
TEST(ModelConfig, E12MoreLayersThanRatios) {
  for (const int layers : {8, 9, 61, 4096}) {
    Json j = deepseek_v4();
    j["num_hidden_layers"] = layers;
    if (layers > 8) {
      EXPECT_THAT(refusal(j), HasSubstr("compress_ratios")) << layers;
    }
    j["compress_ratios"] = {4};
    EXPECT_THAT(refusal(j), HasSubstr("compress_ratios")) << layers;
    Json folded = folded_v4();
    folded["num_hidden_layers"] = layers;
    EXPECT_THAT(refusal(folded), HasSubstr("layer_types")) << layers;
    folded["layer_types"] = {"sliding_attention", "full_attention"};
    EXPECT_THAT(refusal(folded), HasSubstr("layer_types[1]")) << layers;
    folded = folded_v4();
    folded["mlp_layer_types"] = {"moe"};
    EXPECT_THAT(refusal(folded), HasSubstr("mlp_layer_types")) << layers;
  }
}

TEST(ModelConfig, A7V4sAbsentKeysHaveTheClasssValues) {
  Json j = deepseek_v4();
  j.erase("swiglu_limit");
  j.erase("routed_scaling_factor");
  const ModelConfig c = parsed(j);
  EXPECT_EQ(c.activation.limit, 10);
  EXPECT_FLOAT_EQ(c.moe.scale, 1.5f);
}

}  // namespace
}  // namespace lathe
