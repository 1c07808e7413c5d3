// Gemma 4, text: five layers with a window for each one without, which has wider heads, fewer key
// heads, values that are its keys, and RoPE on some pairs of a head; RMSNorm also of values; a
// factor of every layer's output; experts next to a dense part.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "io/text/quote.h"
#include "model/config/config_gqa.h"
#include "model/config/registry.h"

namespace lathe {
namespace {

// Heads of the layers without a window.
struct FullHeads {
  std::int32_t head_dim = 512;
  std::int32_t kv_heads = 0;
  bool operator==(const FullHeads&) const = default;
};

// Reads per_layer_config, in which transformers 5.2x saves global_head_dim and
// num_global_key_value_heads: an object of the keys that differ for each layer without a window.
FullHeads parse_layer_heads(ConfigReader& json, const std::vector<std::uint8_t>& sliding,
                            const FullHeads& common) {
  auto layers = json.object("per_layer_config");
  std::optional<FullHeads> out;
  for (std::size_t l = 0; layers && l < sliding.size(); ++l) {
    const std::string key = std::to_string(l);
    auto own = layers->object(key);
    FullHeads heads = common;
    if (own) {
      heads.head_dim = own->integer("head_dim", common.head_dim, 1, 1024);
      heads.kv_heads = own->integer("num_key_value_heads", common.kv_heads, 1, 1024);
      layers->adopt(*own);
    }
    const FullHeads& wanted = sliding[l] != 0 ? common : out ? *out : heads;
    if (heads != wanted) {
      layers->refuse(key,
                     fmt::format("head_dim {} and num_key_value_heads {}, as the layers before "
                                 "of the same kind",
                                 wanted.head_dim, wanted.kv_heads),
                     fmt::format("{} and {}", heads.head_dim, heads.kv_heads));
    }
    if (sliding[l] == 0) out = heads;
  }
  if (layers) json.adopt(*layers);
  return out.value_or(common);
}

FullHeads parse_full_heads(ConfigReader& json, const std::vector<std::uint8_t>& sliding,
                           const AttentionProblem& p, bool values_are_keys) {
  const FullHeads common{p.head_dim, p.kv_heads};
  if (json.has("per_layer_config")) return parse_layer_heads(json, sliding, common);
  FullHeads out{json.integer("global_head_dim", 512, 1, 1024), common.kv_heads};
  if (values_are_keys) {
    out.kv_heads = json.integer("num_global_key_value_heads", out.kv_heads, 1, 1024);
  }
  return out;
}

RopeConfig parse_full_rope(ConfigReader& json, std::int32_t head_dim) {
  RopeConfig out =
      parse_rope(json, head_dim, RopePairing::split_half,
                 {.layer_type = "full_attention", .default_theta = 1e6, .of_heads = true});
  if (!json.has("rope_parameters")) out.pairs = head_dim / 8;  // the class's share, 0.25
  return out;
}

void parse_gemma_attention(ConfigReader& json, ModelConfig& config) {
  parse_gqa_dims(json, config, {.kv_heads = 4, .head_dim = 256},
                 {.layer_type = "sliding_attention"});
  config.all_layers().problem.scale = 1;
  std::vector<std::uint8_t> sliding = parse_layer_types(json, config);
  for (std::int32_t l = 0; std::ssize(sliding) < config.layers; ++l) {
    sliding.push_back((l + 1) % 6 != 0 ? 1 : 0);
  }
  sliding.back() = 0;  // as transformers' class, whatever layer_types says
  const bool values_are_keys = json.flag("attention_k_eq_v", false);
  const FullHeads heads =
      parse_full_heads(json, sliding, config.all_layers().problem, values_are_keys);
  const RopeConfig rope = parse_full_rope(json, heads.head_dim);
  set_windows(json, config, sliding, 512);
  for (LayerGroupConfig& group : config.groups) {
    if (group.problem.window > 0) continue;
    group.problem = gqa_problem(group.problem.heads, heads.kv_heads, heads.head_dim);
    group.problem.scale = 1;
    group.rope = rope;
    group.values_are_keys = values_are_keys;
  }
  config.qk_norm = QkNorm::heads;
  config.value_norm = true;
  config.attention_bias = json.flag("attention_bias", false);
  config.attention_out_bias = config.attention_bias;
}

void parse_gemma_experts(ConfigReader& json, ModelConfig& config) {
  if (!json.flag("enable_moe_block", false)) return;
  MoeConfig& moe = config.moe;
  moe.experts = json.integer("num_experts", std::nullopt, 1, 4096);
  moe.ffn = json.integer("moe_intermediate_size", std::nullopt, 1, ConfigReader::kMaxWidth);
  moe.top_k = json.integer("top_k_experts", std::nullopt, 1, moe.experts);
  moe.scoring = RouterScoring::softmax;
  moe.layer_has_experts.assign(static_cast<std::size_t>(config.layers), 1);
  moe.names = {.part = "",
               .router = "router.proj.weight",
               .dense = "mlp.",
               .router_scale = "router.scale",
               .expert_scale = "router.per_expert_scale"};
  config.norms.dense_out = "post_feedforward_layernorm_1";
  config.norms.experts = "pre_feedforward_layernorm_2";
  config.norms.experts_out = "post_feedforward_layernorm_2";
}

// The last layers of E2B and E4B read the keys of the last layer of their kind before them.
void parse_readers(ConfigReader& json, ModelConfig& config) {
  const std::int32_t count = json.integer("num_kv_shared_layers", 0, 0, config.layers - 1);
  if (json.flag("use_double_wide_mlp", false) && count > 0) config.reader_ffn = 2;
  const auto reads = [&](std::int32_t layer) { return layer >= config.layers - count; };
  for (LayerGroupConfig& group : config.groups) {
    std::ranges::copy_if(group.layers, std::back_inserter(group.readers), reads);
    std::erase_if(group.layers, reads);
    if (!group.layers.empty()) continue;
    json.refuse("num_kv_shared_layers",
                fmt::format("fewer layers: none before the last {} is like layer {}", count,
                            group.readers.front()),
                fmt::format("{}", count), ErrorCode::malformed);
  }
}

void parse_layer_inputs(ConfigReader& json, ModelConfig& config) {
  LayerInputs& inputs = config.layer_inputs;
  inputs.width = json.integer("hidden_size_per_layer_input", 256, 0, 65536);
  if (inputs.width == 0) return;
  inputs.vocab = json.integer("vocab_size_per_layer_input", 262144);
  if (inputs.vocab < config.vocab) {
    json.refuse("vocab_size_per_layer_input", fmt::format("at least vocab_size ({})", config.vocab),
                fmt::format("{}", inputs.vocab));
  }
}

}  // namespace

void parse_gemma4(ConfigReader& json, ModelConfig& config) {
  parse_gemma_attention(json, config);
  parse_readers(json, config);
  parse_layer_inputs(json, config);
  config.norms = {.attention_out = "post_attention_layernorm",
                  .ffn = "pre_feedforward_layernorm",
                  .ffn_out = "post_feedforward_layernorm"};
  parse_gemma_experts(json, config);
  json.only("hidden_activation", "gelu_pytorch_tanh");
  json.only("use_bidirectional_attention", "vision");  // tokens of images alone
  config.tied_embeddings = json.flag("tie_word_embeddings", true);
  config.embedding_scale = std::sqrt(static_cast<float>(config.hidden));
  config.rounded_embedding_scale = true;
  config.layer_scale = "layer_scalar";
  config.logit_cap =
      static_cast<float>(json.number("final_logit_softcapping", kOptionalFactorRange, 0));
  config.activation.kind = ActivationKind::gelu_tanh;
}

}  // namespace lathe
