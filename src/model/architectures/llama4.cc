// Llama 4: Llama's attention with heads of unit length, within chunks of the context; every fourth
// layer has neither RoPE nor chunks, and its queries grow with their position (arXiv 2501.19399).
// Experts by sigmoid router, whose weights multiply their inputs, with a shared one.
#include <fmt/format.h>

#include <algorithm>

#include "io/text/quote.h"
#include "model/config/config_gqa.h"
#include "model/config/registry.h"

namespace lathe {
namespace {

// The chunk of the layers that attend in chunks, which are those with RoPE; 0: no layer does. Other
// layer_types are those of full attention up to the end of the first chunk, where the context ends.
std::int32_t parse_chunk(ConfigReader& json, ModelConfig& config,
                         const std::vector<std::uint8_t>& turns) {
  if (json.null("attention_chunk_size")) return 0;
  const std::int32_t chunk = json.integer("attention_chunk_size", 8192);
  const std::vector<std::string> types = json.texts("layer_types");
  if (types.empty()) return chunk;
  std::vector<std::uint8_t> chunked;
  for (const std::string& type : types) {
    if (type != "chunked_attention" && type != "full_attention") {
      json.refuse("layer_types", "chunked_attention and full_attention", quote(type));
    }
    chunked.push_back(type == "chunked_attention" ? 1 : 0);
  }
  if (std::ranges::count(chunked, 1) == 0) return 0;
  if (chunked == turns) return chunk;
  config.max_context = std::min(config.max_context, chunk);
  return 0;
}

// q and k get unit length after RoPE, where a factor on the magnitude of cos and sin (yarn,
// longrope) cancels. Published files have these types alone.
void check_rope_type(ConfigReader& json) {
  auto rope = json.object(json.has("rope_parameters") ? "rope_parameters" : "rope_scaling");
  if (!rope) return;
  const std::string_view key = rope->first_of({"rope_type", "type"});
  const std::string type = rope->text(key, "default");
  if (type != "default" && type != "llama3") {
    rope->refuse(key, "default or llama3, which Llama 4 has", quote(type), ErrorCode::unsupported,
                 "--rope-scaling JSON gives another");
  }
  json.adopt(*rope);
}

void parse_experts(ConfigReader& json, ModelConfig& config) {
  MoeConfig& moe = config.moe;
  moe.ffn = config.ffn;
  config.ffn = json.integer("intermediate_size_mlp", 16384, 1, ConfigReader::kMaxWidth);
  const std::int32_t every = json.integer("interleave_moe_layer_step", 1);
  const bool listed = json.has("moe_layers");
  const std::vector<std::int32_t> list = json.integers("moe_layers");
  for (std::int32_t l = 0; l < config.layers; ++l) {
    const bool has = listed ? std::ranges::count(list, l) > 0 : (l + 1) % every == 0;
    moe.layer_has_experts.push_back(has ? 1 : 0);
  }
  moe.names = {.part = "feed_forward.", .router = "router.weight", .shared = "shared_expert."};
  if (std::ranges::count(moe.layer_has_experts, 1) == 0) return;
  moe.experts = json.integer("num_local_experts", 16, 1, 4096);
  moe.top_k = json.integer("num_experts_per_tok", 1, 1, moe.experts);
  moe.shared = 1;
  moe.scoring = RouterScoring::sigmoid;
  moe.normalize = false;
  moe.weighs_inputs = true;
  moe.stacked = moe.halves = true;
}

}  // namespace

void parse_llama4(ConfigReader& json, ModelConfig& config) {
  check_rope_type(json);
  parse_gqa_dims(json, config, {.kv_heads = 8, .head_dim = 128}, {.default_theta = 5e5});
  config.all_layers().rope.pairing = RopePairing::interleaved;
  config.attention_bias = json.flag("attention_bias", false);
  config.attention_out_bias = config.attention_bias;
  const std::vector<std::uint8_t> turns = parse_rope_layers(json, config);
  const std::int32_t chunk = parse_chunk(json, config, turns);
  split_layers(config, turns, {"no rope", "rope"});
  const bool unit = json.flag("use_qk_norm", true);
  const bool grows = json.flag("attn_temperature_tuning", true);
  const RopeGrowth growth{.beta = json.number("attn_scale", kOptionalFactorRange, 0.1),
                          .context = static_cast<double>(json.integer("floor_scale", 8192)),
                          .shift = 1};
  for (LayerGroupConfig& group : config.groups) {
    if (turns[static_cast<std::size_t>(group.layers.front())] != 0) {
      group.unit_qk_norm = unit;
      group.problem.window = chunk;
      group.problem.chunked = chunk > 0;
      continue;
    }
    group.rope = no_rope(group.rope);
    if (grows) group.query_growth = growth;
  }
  parse_experts(json, config);
}

}  // namespace lathe
