#include "model/config/layer_flags.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "model/config/config.h"
#include "model/config/registry.h"

namespace lathe {
namespace {

using testing::AllOf;
using testing::HasSubstr;

ModelConfig config_of_fixture(const std::string& name) {
  return *load_model_config(fmt::format("{}/models/{}", LATHE_TEST_DATA, name));
}

struct FlagCase {
  const char* fixture;
  std::function<void(ModelConfig&)> set;
  const char* field;
};

// Each of these would be ignored in silence: no layer of that family reads the field.
TEST(LayerFlags, WhatNoLayerComputesIsRefusedByName) {
  const auto post_norms = [](ModelConfig& c) { c.norms.attention_out = c.norms.ffn_out = "out"; };
  const auto norm_offset = [](ModelConfig& c) { c.norm_offset = 1; };
  const auto qk_norm = [](ModelConfig& c) { c.qk_norm = QkNorm::heads; };
  const auto whole_norm = [](ModelConfig& c) { c.qk_norm = QkNorm::whole; };
  const auto fused_qkv = [](ModelConfig& c) { c.fused_qkv = true; };
  const auto fused_gate_up = [](ModelConfig& c) { c.fused_gate_up = true; };
  const auto logit_scale = [](ModelConfig& c) { c.logit_scale = 2; };
  const auto one_out_norm = [](ModelConfig& c) { c.norms.attention_out = "out"; };
  const auto no_norms = [](ModelConfig& c) { c.norms.attention = c.norms.ffn = {}; };
  const auto bias = [](ModelConfig& c) { c.attention_bias = true; };
  const auto out_bias = [](ModelConfig& c) { c.attention_out_bias = true; };
  const auto no_sink = [](ModelConfig& c) { c.groups.back().problem.sink = false; };
  const auto streams = [](ModelConfig& c) { c.hyper.streams = 4; };
  const auto hash = [](ModelConfig& c) { c.moe.hash_layers = 1; };
  const auto groups = [](ModelConfig& c) { c.mla.o_groups = 2; };
  const auto indexers = [](ModelConfig& c) {
    c.mla.own_indexer.assign(static_cast<std::size_t>(c.layers), 1);
  };
  const auto no_indexers = [](ModelConfig& c) { c.mla.own_indexer.clear(); };
  const auto shared = [](ModelConfig& c) { c.moe.shared = 1; };
  const auto correction = [](ModelConfig& c) { c.moe.correction_bias = true; };
  const auto mxfp4 = [](ModelConfig& c) { c.mxfp4 = true; };
  const auto none_shared = [](ModelConfig& c) { c.moe.shared = 0; };
  const auto dense = [](ModelConfig& c) { c.moe.layer_has_experts.front() = 0; };
  const auto gate_with_q = [](ModelConfig& c) { c.output_gate = OutputGate::with_q; };
  const auto gate_heads = [](ModelConfig& c) { c.output_gate = OutputGate::heads; };
  const auto gate_elements = [](ModelConfig& c) { c.output_gate = OutputGate::elements; };
  const auto gate_with_q_b = [](ModelConfig& c) { c.output_gate = OutputGate::with_q_b; };
  const auto norm_gates = [](ModelConfig& c) { c.norms.gate_rank = 16; };
  const auto delta = [](ModelConfig& c) { c.delta.layers = {0}; };
  const auto no_delta = [](ModelConfig& c) { c.delta.layers.clear(); };
  const auto inputs = [](ModelConfig& c) { c.layer_inputs = {16, c.vocab}; };
  const auto readers = [](ModelConfig& c) {
    c.groups.back().readers = {c.groups.back().layers.back()};
    c.groups.back().layers.pop_back();
  };
  const auto one_indexer = [](ModelConfig& c) { c.mla.own_indexer.back() = 0; };
  const auto shared_gate = [](ModelConfig& c) { c.moe.shared_gate = true; };
  const auto unit_norm = [](ModelConfig& c) { c.groups.back().unit_qk_norm = true; };
  const auto weighed = [](ModelConfig& c) { c.moe.weighs_inputs = true; };
  const auto value_norm = [](ModelConfig& c) { c.value_norm = true; };
  const auto value_scale = [](ModelConfig& c) { c.value_scale = 0.5f; };
  const auto no_values = [](ModelConfig& c) { c.groups.back().values_are_keys = true; };
  const auto layer_scale = [](ModelConfig& c) { c.layer_scale = "layer_scalar"; };
  const auto two_parts = [](ModelConfig& c) { c.moe.names.dense = "mlp."; };
  const auto experts_out = [](ModelConfig& c) { c.norms.experts_out = "out"; };
  const auto one_norm_less = [](ModelConfig& c) { c.norms.experts_out = {}; };
  const auto family = [](ModelConfig& c) {
    c.groups.push_back(c.groups.front());
    c.groups.back().problem.kind = ProblemKind::grouped_query;
  };
  for (const auto& [name, set, field] :
       {FlagCase{"deepseek_v3", post_norms, "norms.attention_out"},
        FlagCase{"deepseek_v32", post_norms, "norms.attention_out"},
        FlagCase{"deepseek_v4", post_norms, "norms.attention_out"},
        FlagCase{"qwen3_moe", post_norms, "norms.attention_out"},
        FlagCase{"deepseek_v4", norm_offset, "norm_offset"},
        FlagCase{"deepseek_v3", qk_norm, "qk_norm"},
        FlagCase{"deepseek_v4", qk_norm, "qk_norm"},
        FlagCase{"deepseek_v3", whole_norm, "qk_norm"},
        FlagCase{"deepseek_v3", fused_qkv, "fused_qkv"},
        FlagCase{"deepseek_v4", fused_gate_up, "fused_gate_up"},
        FlagCase{"deepseek_v4", logit_scale, "logit_scale"},
        FlagCase{"llama", one_out_norm, "norms"},
        FlagCase{"llama", no_norms, "norms.attention"},
        FlagCase{"deepseek_v4", bias, "attention_bias"},
        FlagCase{"deepseek_v4", out_bias, "attention_out_bias"},
        FlagCase{"deepseek_v4", no_sink, "sink"},
        FlagCase{"llama", streams, "hyper"},
        FlagCase{"deepseek_v3", streams, "hyper"},
        FlagCase{"qwen3_moe", hash, "moe.hash_layers"},
        FlagCase{"deepseek_v3", hash, "moe.hash_layers"},
        FlagCase{"deepseek_v3", groups, "mla.o_groups"},
        FlagCase{"llama", indexers, "mla.own_indexer"},
        FlagCase{"deepseek_v3", indexers, "mla.own_indexer"},
        FlagCase{"deepseek_v32", no_indexers, "mla.own_indexer"},
        FlagCase{"gpt_oss", shared, "moe.stacked"},
        FlagCase{"gpt_oss", correction, "moe.stacked"},
        FlagCase{"qwen3_moe", mxfp4, "mxfp4"},
        FlagCase{"deepseek_v4", none_shared, "moe"},
        FlagCase{"deepseek_v4", dense, "moe"},
        FlagCase{"deepseek_v3", gate_with_q, "output_gate"},
        FlagCase{"llama", gate_heads, "output_gate"},
        FlagCase{"olmo2", gate_with_q, "output_gate"},
        FlagCase{"llama", gate_elements, "output_gate"},
        FlagCase{"deepseek_v4", gate_with_q_b, "output_gate"},
        FlagCase{"deepseek_v3_dense", gate_with_q_b, "output_gate"},
        FlagCase{"llama", norm_gates, "norms.gate_rank"},
        FlagCase{"hy_v4", norm_gates, "norms.gate_rank"},
        FlagCase{"kimi_linear", norm_gates, "norms.gate_rank"},
        FlagCase{"deepseek_v4", delta, "delta"},
        FlagCase{"deepseek_v32", delta, "mla.own_indexer"},
        FlagCase{"llama", inputs, "layer_inputs"},
        FlagCase{"gemma4_moe", inputs, "layer_inputs"},
        FlagCase{"deepseek_v3", readers, "readers"},
        FlagCase{"phi3", readers, "readers"},
        FlagCase{"olmo2", readers, "readers"},
        FlagCase{"glm5_next", no_delta, "index_pool"},
        FlagCase{"glm5_next", one_indexer, "index_pool"},
        FlagCase{"qwen3_moe", shared_gate, "moe.shared_gate"},
        FlagCase{"deepseek_v3", unit_norm, "unit_qk_norm"},
        FlagCase{"qwen3", unit_norm, "unit_qk_norm"},
        FlagCase{"deepseek_v4", weighed, "moe.weighs_inputs"},
        FlagCase{"deepseek_v3", value_norm, "value_norm"},
        FlagCase{"deepseek_v4", value_scale, "value_scale"},
        FlagCase{"deepseek_v3", no_values, "values_are_keys"},
        FlagCase{"llama_bias", no_values, "values_are_keys"},
        FlagCase{"llama", layer_scale, "layer_scale"},
        FlagCase{"qwen3_moe", two_parts, "moe.names.dense"},
        FlagCase{"qwen3_moe", experts_out, "norms.experts_out"},
        FlagCase{"youtu", experts_out, "norms.experts_out"},
        FlagCase{"hy_v4", experts_out, "norms.experts_out"},
        FlagCase{"gemma4_moe", one_norm_less, "moe.names.dense"},
        FlagCase{"gemma4_moe", shared, "moe.names.dense"},
        FlagCase{"deepseek_v3", family, "groups"}}) {
    ModelConfig config = config_of_fixture(name);
    ASSERT_TRUE(check_layer_flags(config).ok()) << name;
    set(config);
    const auto checked = check_layer_flags(config);
    ASSERT_FALSE(checked.ok()) << name << " " << field;
    EXPECT_EQ(checked.error().code, ErrorCode::unsupported);
    EXPECT_THAT(checked.error().field, HasSubstr(field)) << name;
    EXPECT_THAT(checked.error().message(), AllOf(HasSubstr("wanted"), HasSubstr("got"))) << name;
  }
}

}  // namespace
}  // namespace lathe
