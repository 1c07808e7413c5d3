#include "model/config/config_mla.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "io/text/quote.h"
#include "model/config/config_rope.h"

namespace lathe {
namespace {

// Reads mlp_layer_types, or in older files moe_layer_freq if it is a list of flags, or else
// first_k_dense_replace.
std::vector<std::uint8_t> layers_with_experts(ConfigReader& json, std::int32_t layers,
                                              std::int32_t dense_layers) {
  std::vector<std::uint8_t> out(static_cast<std::size_t>(layers), 0);
  const std::vector<std::string> types = json.texts("mlp_layer_types");
  if (types.empty()) {
    if (json.is_list("moe_layer_freq")) {
      const std::vector<std::int32_t> flags = json.integers("moe_layer_freq");
      if (std::ssize(flags) != layers) {
        json.refuse("moe_layer_freq", fmt::format("{} entries", layers),
                    fmt::format("{}", flags.size()), ErrorCode::malformed);
        return out;
      }
      for (std::size_t l = 0; l < out.size(); ++l) out[l] = flags[l] != 0 ? 1 : 0;
      return out;
    }
    const std::int32_t dense = json.integer("first_k_dense_replace", dense_layers, 0);
    if (const auto each = json.integer("moe_layer_freq", 1, 1); each != 1) {
      json.refuse("moe_layer_freq", "1, or a list with 0 or 1 for each layer",
                  fmt::format("{}", each));
    }
    for (std::int32_t l = dense; l < layers; ++l) out[static_cast<std::size_t>(l)] = 1;
    return out;
  }
  if (types.size() != out.size()) {
    json.refuse("mlp_layer_types", fmt::format("{} entries", layers),
                fmt::format("{}", types.size()), ErrorCode::malformed);
    return out;
  }
  for (std::size_t l = 0; l < out.size(); ++l) {
    if (types[l] == "sparse") {
      out[l] = 1;
    } else if (types[l] != "dense") {
      json.refuse(fmt::format("mlp_layer_types[{}]", l), "dense or sparse", quote(types[l]));
    }
  }
  return out;
}

// Reads the router of DeepSeek V3: sigmoid, with a bias that only the choice sees.
void parse_sigmoid_router(ConfigReader& json, MoeConfig& moe, const MlaDefaults& defaults) {
  json.only("scoring_func", "sigmoid");
  json.only("topk_method", "noaux_tc");
  moe.scoring = RouterScoring::sigmoid;
  moe.correction_bias = true;
  moe.normalize = json.flag(json.first_of({"norm_topk_prob", "moe_renormalize"}), true);
  parse_groups(json, moe, defaults);
}

// Per layer 1 (its own indexer) or 0 (shared), from indexer_types, index_topk_pattern ("FSSF") or
// index_topk_freq and index_skip_topk_offset.
std::vector<std::uint8_t> own_indexers(ConfigReader& json, std::int32_t layers,
                                       std::int32_t every_layers) {
  std::vector<std::uint8_t> out;
  const std::vector<std::string> types = json.texts("indexer_types");
  std::string_view key = "indexer_types";
  for (const std::string& t : types) {
    if (t != "full" && t != "shared") {
      json.refuse(fmt::format("{}[{}]", key, out.size()), "full or shared", quote(t));
    }
    out.push_back(t == "full" ? 1 : 0);
  }
  if (types.empty() && json.has("index_topk_pattern")) {
    key = "index_topk_pattern";
    for (const char c : json.text(key, "")) {
      if (c != 'F' && c != 'S') json.refuse(key, "a text of F and S", quote({&c, 1}));
      out.push_back(c == 'F' ? 1 : 0);
    }
  } else if (types.empty()) {
    key = "index_skip_topk_offset";
    const std::int32_t every = std::max(1, json.integer("index_topk_freq", every_layers, 0));
    const std::int32_t offset = json.integer(key, 2, 0);
    for (std::int32_t l = 0; l < layers; ++l) {
      out.push_back(std::max(l - offset + 1, 0) % every == 0 ? 1 : 0);
    }
  }
  if (std::ssize(out) != layers) {
    json.refuse(key, fmt::format("{} entries", layers), fmt::format("{}", out.size()),
                ErrorCode::malformed);
  } else if (out.front() == 0) {
    json.refuse(key, "an indexer in the first layer", "one that shares", ErrorCode::malformed);
  }
  return out;
}

// RoPE tables are at least so wide, also those that rotate nothing.
constexpr std::int32_t kIdentityRope = 16;

std::int32_t parse_no_rotary_part(ConfigReader& json) {
  const std::int32_t width = json.integer("qk_rope_head_dim", 0, 0, 1024);
  if (width != 0) {
    json.refuse("qk_rope_head_dim", "0: latent attention without RoPE", fmt::format("{}", width));
  }
  return 0;
}

void parse_draft_layers(ConfigReader& json, ModelConfig& config, const MlaDefaults& defaults) {
  config.draft_layers = json.integer(json.first_of({"num_nextn_predict_layers", "num_mtp_layers"}),
                                     defaults.draft_layers, 0, 1024);
  config.shared_draft_choice = json.flag("index_share_for_mtp_iteration", false);
}

}  // namespace

bool parse_expert_sizes(ConfigReader& json, ModelConfig& config, const MlaDefaults& defaults) {
  MoeConfig& moe = config.moe;
  moe.layer_has_experts = layers_with_experts(json, config.layers, defaults.dense_layers);
  if (std::ranges::count(moe.layer_has_experts, 1) == 0) return false;
  moe.experts =
      json.integer(json.first_of({"n_routed_experts", "num_local_experts", "num_experts"}),
                   std::nullopt, 1, 4096);
  moe.ffn = json.integer("moe_intermediate_size", std::nullopt, 1, ConfigReader::kMaxWidth);
  moe.shared = json.integer(json.first_of({"n_shared_experts", "num_shared_experts"}),
                            defaults.shared, 0, 64);
  moe.top_k = json.integer(json.first_of({"num_experts_per_tok", "num_experts_per_token"}),
                           std::nullopt, 1, moe.experts);
  moe.scale =
      static_cast<float>(json.number("routed_scaling_factor", kFactorRange, defaults.routed_scale));
  return true;
}

void parse_groups(ConfigReader& json, MoeConfig& moe, const MlaDefaults& defaults) {
  // null says nothing about how the weights were trained.
  const auto absent = [&](std::string_view key, std::int32_t of_class) {
    const bool unknown = of_class == 0 || (json.null(key) && !defaults.null_groups);
    return unknown ? std::nullopt : std::optional(of_class);
  };
  const std::string_view groups = json.first_of({"n_group", "num_expert_group"});
  moe.groups = json.integer(groups, absent(groups, defaults.groups), 1, moe.experts);
  moe.top_groups =
      json.integer("topk_group", absent("topk_group", defaults.top_groups), 1, moe.groups);
  if (moe.experts % moe.groups != 0) {
    json.refuse("n_group", fmt::format("a divisor of the {} experts", moe.experts),
                fmt::format("{}", moe.groups), ErrorCode::malformed);
    return;
  }
  const std::int32_t per_group = moe.experts / moe.groups;
  if (moe.groups > 1 && per_group < moe.group_best) {
    json.refuse("n_group", fmt::format("groups of at least {} experts", moe.group_best),
                fmt::format("{}", moe.groups), ErrorCode::malformed);
  }
  if (moe.top_k > moe.top_groups * per_group) {
    json.refuse(
        "num_experts_per_tok",
        fmt::format("at most the {} experts of the kept groups", moe.top_groups * per_group),
        fmt::format("{}", moe.top_k), ErrorCode::malformed);
  }
}

void parse_mla_attention(ConfigReader& json, ModelConfig& config, const MlaDefaults& defaults) {
  LayerGroupConfig& group = config.all_layers();
  AttentionProblem& p = group.problem;
  p.kind = ProblemKind::dense_latent;
  p.heads = json.integer("num_attention_heads", std::nullopt, 1, 128);
  p.nope = json.integer("kv_lora_rank", std::nullopt, 1, 16384);
  p.rope = defaults.no_positions ? parse_no_rotary_part(json)
                                 : json.integer("qk_rope_head_dim", std::nullopt, 1, 1024);
  p.qk_nope_head = json.integer("qk_nope_head_dim", std::nullopt, 1, 1024);
  p.v_head = json.integer(
      "v_head_dim", defaults.v_head == 0 ? std::nullopt : std::optional(defaults.v_head), 1, 1024);
  if (p.qk_nope_head % 16 != 0) {
    json.refuse("qk_nope_head_dim", "a multiple of 16", fmt::format("{}", p.qk_nope_head));
  }
  const std::int32_t kv_heads = json.integer("num_key_value_heads", p.heads);
  if (kv_heads != p.heads) {
    json.refuse("num_key_value_heads", fmt::format("num_attention_heads ({})", p.heads),
                fmt::format("{}", kv_heads));
  }
  const bool one_projection =
      !json.has("q_lora_rank") && (json.null("q_lora_rank") || defaults.q_lora == 0);
  config.mla.q_lora = one_projection ? 0 : json.integer("q_lora_rank", defaults.q_lora, 1, 65536);
  config.attention_bias = json.flag("attention_bias", false);
  config.attention_out_bias = config.attention_bias;
  const bool interleave = json.flag("rope_interleave", defaults.interleaved);
  const double head = p.qk_nope_head + p.rope;
  if (defaults.no_positions) {
    group.rope.dim = kIdentityRope;
    p.scale = static_cast<float>(1 / std::sqrt(head));
    parse_draft_layers(json, config, defaults);
    return;
  }
  RopeKeys keys{.default_theta = defaults.rope_theta, .default_yarn = defaults.yarn};
  if (defaults.rotary_share) keys.partial = p.rope / head;
  group.rope = parse_rope(json, p.rope,
                          interleave ? RopePairing::interleaved : RopePairing::split_half, keys);
  p.scale = static_cast<float>(yarn_attention_factor(group.rope) / std::sqrt(head));
  parse_draft_layers(json, config, defaults);
}

void parse_query_growth(ConfigReader& json, ModelConfig& config, double absent) {
  auto rope = json.object(json.has("rope_parameters") ? "rope_parameters" : "rope_scaling");
  const double beta = rope ? rope->number("llama_4_scaling_beta", kOptionalFactorRange, 0) : absent;
  if (rope) json.adopt(*rope);
  LayerGroupConfig& layers = config.all_layers();
  if (beta != 0 && !layers.rope.yarn) {
    json.refuse("rope_type", "yarn with llama_4_scaling_beta", "another type");
  }
  if (beta > 0 && layers.rope.yarn)
    layers.query_growth = {beta, layers.rope.yarn->original_context};
}

void parse_v3_experts(ConfigReader& json, ModelConfig& config, const MlaDefaults& defaults) {
  if (parse_expert_sizes(json, config, defaults)) {
    parse_sigmoid_router(json, config.moe, defaults);
  }
}

void parse_mla(ConfigReader& json, ModelConfig& config, const MlaDefaults& defaults) {
  parse_mla_attention(json, config, defaults);
  parse_v3_experts(json, config, defaults);
}

void parse_indexer(ConfigReader& json, ModelConfig& config, RopePairing pairing) {
  AttentionProblem& p = config.all_layers().problem;
  p.kind = ProblemKind::sparse_latent;
  p.index_heads = json.integer("index_n_heads", std::nullopt, 1, 1024);
  p.index_dim = json.integer("index_head_dim", std::nullopt, 1, 4096);
  p.top_k = json.integer("index_topk");
  if (config.mla.q_lora == 0) {
    json.refuse("q_lora_rank", "a rank: the indexer's queries come from the compressed query",
                "null");
  }
  if (p.index_dim % 16 != 0 || p.index_dim < p.rope) {
    json.refuse("index_head_dim",
                fmt::format("a multiple of 16, at least qk_rope_head_dim ({})", p.rope),
                fmt::format("{}", p.index_dim));
  }
  if (json.has("indexer_rope_interleave")) {
    pairing = json.flag("indexer_rope_interleave", false) ? RopePairing::interleaved
                                                          : RopePairing::split_half;
  }
  config.mla.index_pairing = pairing;
  config.mla.own_indexer.assign(static_cast<std::size_t>(config.layers), 1);
}

void parse_indexer_types(ConfigReader& json, ModelConfig& config, std::int32_t every) {
  config.mla.own_indexer = own_indexers(json, config.layers, every);
}

}  // namespace lathe
