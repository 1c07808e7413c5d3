// MiMo-V2-Flash: grouped-query attention with values that are narrower than keys; layers with a
// window have sinks and twice the key heads; DeepSeek V3's router without groups.
#include <fmt/format.h>

#include <cmath>

#include "model/config/config_gqa.h"
#include "model/config/config_mla.h"
#include "model/config/registry.h"

namespace lathe {
namespace {

// Keys that its published files repeat for layers with a window.
void check_window_dims(ConfigReader& json, const AttentionProblem& p) {
  const auto equal = [&](std::string_view key, std::int32_t wanted) {
    const std::int32_t got = json.integer(key, wanted);
    if (got != wanted) {
      json.refuse(key, fmt::format("{}, as in layers without a window", wanted),
                  fmt::format("{}", got));
    }
  };
  equal("swa_num_attention_heads", p.heads);
  equal("swa_head_dim", p.head_dim);
  equal("swa_v_head_dim", p.v_head_dim);
}

std::vector<std::uint8_t> window_layers(ConfigReader& json, const ModelConfig& config) {
  std::vector<std::uint8_t> sliding = parse_layer_types(json, config);
  if (!sliding.empty()) return sliding;
  const std::vector<std::int32_t> pattern = json.integers("hybrid_layer_pattern");
  if (!pattern.empty() && std::ssize(pattern) != config.layers) {
    json.refuse("hybrid_layer_pattern", fmt::format("{} entries", config.layers),
                fmt::format("{}", pattern.size()), ErrorCode::malformed);
  }
  for (std::int32_t l = 0; l < config.layers; ++l) {
    const bool given = std::ssize(pattern) == config.layers;
    const bool has = given ? pattern[static_cast<std::size_t>(l)] != 0 : l != 0 && (l + 1) % 6 != 0;
    sliding.push_back(has ? 1 : 0);
  }
  return sliding;
}

}  // namespace

void parse_mimo_v2_flash(ConfigReader& json, ModelConfig& config) {
  constexpr double kPartial = 0.334;
  parse_gqa_dims(json, config, {.kv_heads = 4, .head_dim = 192},
                 {.layer_type = "full_attention",
                  .default_theta = 5e6,
                  .partial = kPartial,
                  .reads_share = true});
  AttentionProblem& p = config.all_layers().problem;
  p.v_head_dim = json.integer("v_head_dim", 128, 1, 1024);
  const RopeConfig local = parse_rope(json, p.head_dim, RopePairing::split_half,
                                      {.layer_type = "sliding_attention",
                                       .theta = "swa_rope_theta",
                                       .default_theta = 10000,
                                       .scaled = false,
                                       .partial = kPartial,
                                       .of_heads = true,
                                       .reads_share = true});
  check_window_dims(json, p);
  const std::int32_t kv_heads = json.integer("swa_num_key_value_heads", 2 * p.kv_heads, 1, 1024);
  const bool window_sinks = json.flag("add_swa_attention_sink_bias", true);
  p.sink = json.flag("add_full_attention_sink_bias", false);
  const std::vector<std::uint8_t> sliding = window_layers(json, config);
  set_windows(json, config, sliding, 129);
  // sliding_window_size does not count the row itself.
  const std::int32_t before = json.integer("sliding_window_size", 0, 0);
  for (LayerGroupConfig& group : config.groups) {
    if (group.problem.window == 0) continue;
    if (before > 0) group.problem.window = before + 1;
    group.problem.kv_heads = kv_heads;
    group.problem.sink = window_sinks;
    group.rope = local;
  }
  config.sink_name = "attention_sink_bias";
  config.value_scale =
      json.null("attention_value_scale")
          ? 1
          : static_cast<float>(json.number("attention_value_scale", kFactorRange, 0.707));
  config.attention_bias = json.flag("attention_bias", false);
  if (json.has("layernorm_epsilon")) {
    config.norm_eps = static_cast<float>(json.number("layernorm_epsilon", kEpsRange));
  }
  parse_v3_experts(
      json, config,
      {.groups = 1, .top_groups = 1, .dense_layers = 1, .shared = 0, .routed_scale = 1});
}

}  // namespace lathe
