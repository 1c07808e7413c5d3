// DeepSeek V4 (arXiv 2606.19348): a sliding window in every layer, and in most also compressed
// entries of 4 tokens (the best top_k of them) or of 128; residual streams that the layers mix;
// experts in every layer, selected by the token's id in the first layers. Reads the published
// config.json and transformers' form, which has other keys.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "io/text/quote.h"
#include "kernels/hyper.h"
#include "model/config/config_rope.h"
#include "model/config/registry.h"

namespace lathe {
namespace {

constexpr std::array kRatios = {0, 4, 128};  // tokens of a compressed entry; 0: there are none
constexpr std::array<std::string_view, 3> kGroupNames = {"window", "c4", "c128"};
constexpr std::array<std::string_view, 3> kLayerTypes = {
    "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"};

void check_rates(ConfigReader& json) {
  auto rates = json.object("compress_rates");
  if (!rates) return;
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    if (const std::int32_t rate = rates->integer(kLayerTypes[i], kRatios[i]); rate != kRatios[i]) {
      rates->refuse(kLayerTypes[i], fmt::format("{}", kRatios[i]), fmt::format("{}", rate));
    }
  }
  json.adopt(*rates);
}

std::vector<std::int32_t> ratios_of_types(ConfigReader& json, std::int32_t layers) {
  std::vector<std::int32_t> out;
  check_rates(json);
  for (const std::string& type : json.texts("layer_types")) {
    const auto at = std::ranges::find(kLayerTypes, type);
    if (at == kLayerTypes.end()) {
      json.refuse(fmt::format("layer_types[{}]", out.size()),
                  fmt::format("{}", fmt::join(kLayerTypes, ", ")), quote(type));
      return out;
    }
    out.push_back(kRatios[static_cast<std::size_t>(at - kLayerTypes.begin())]);
  }
  if (std::ssize(out) != layers) {
    json.refuse("layer_types", fmt::format("{} entries", layers), fmt::format("{}", out.size()),
                ErrorCode::malformed);
  }
  return out;
}

std::vector<std::int32_t> ratios_of_list(ConfigReader& json, std::int32_t layers) {
  std::vector<std::int32_t> out = json.integers("compress_ratios");
  if (out.empty()) {
    for (std::int32_t l = 0; l < layers; ++l) out.push_back(l < 2 || l % 2 == 1 ? 128 : 4);
    return out;
  }
  if (std::ssize(out) < layers) {
    json.refuse("compress_ratios", fmt::format("at least {} entries", layers),
                fmt::format("{}", out.size()), ErrorCode::malformed);
    return out;
  }
  for (std::size_t l = 0; l < out.size(); ++l) {
    // Ratios past the last layer belong to draft layers.
    const bool draft = std::cmp_greater_equal(l, layers);
    if (draft ? out[l] != 0 : std::ranges::find(kRatios, out[l]) == kRatios.end()) {
      json.refuse(fmt::format("compress_ratios[{}]", l),
                  draft ? "0 for a draft layer" : "0, 4 or 128", fmt::format("{}", out[l]));
      break;
    }
  }
  return out;
}

// Tokens of a compressed entry, [layers] even if an error was recorded.
std::vector<std::int32_t> parse_ratios(ConfigReader& json, std::int32_t layers) {
  std::vector<std::int32_t> out =
      json.has("layer_types") ? ratios_of_types(json, layers) : ratios_of_list(json, layers);
  out.resize(static_cast<std::size_t>(layers));
  return out;
}

std::int32_t parse_hash_layers(ConfigReader& json, std::int32_t layers) {
  if (!json.has("mlp_layer_types")) return std::min(layers, json.integer("num_hash_layers", 3, 0));
  const std::vector<std::string> types = json.texts("mlp_layer_types");
  if (std::ssize(types) != layers) {
    json.refuse("mlp_layer_types", fmt::format("{} entries", layers),
                fmt::format("{}", types.size()), ErrorCode::malformed);
    return 0;
  }
  const auto first = std::ranges::find_if(types, [](const auto& t) { return t != "hash_moe"; });
  const auto other = std::find_if(first, types.end(), [](const auto& t) { return t != "moe"; });
  if (other != types.end()) {
    json.refuse(fmt::format("mlp_layer_types[{}]", other - types.begin()),
                "moe, after first layers of hash_moe", quote(*other));
  }
  return static_cast<std::int32_t>(first - types.begin());
}

// The experts' dtype where other weights are e4m3; newer transformers files have it inside
// quantization_config.
std::string parse_expert_dtype(ConfigReader& json) {
  auto nested = json.object("quantization_config");
  ConfigReader& where = nested && nested->has("expert_dtype") ? *nested : json;
  std::string out = where.text("expert_dtype", "fp4");
  if (out != "fp4" && out != "fp8") where.refuse("expert_dtype", "fp4 or fp8", quote(out));
  if (nested) json.adopt(*nested);
  return out;
}

void parse_v4_experts(ConfigReader& json, ModelConfig& config) {
  json.only("scoring_func", "sqrtsoftplus");
  json.only("topk_method", "noaux_tc");
  for (const std::string_view key : {"n_group", "topk_group"}) {
    if (const std::int32_t groups = json.integer(key, 1); groups != 1) {
      json.refuse(key, "1: experts have no groups", fmt::format("{}", groups));
    }
  }
  MoeConfig& moe = config.moe;
  moe.experts =
      json.integer(json.first_of({"n_routed_experts", "num_local_experts"}), std::nullopt, 1, 4096);
  moe.ffn = json.integer("moe_intermediate_size", std::nullopt, 1, ConfigReader::kMaxWidth);
  moe.shared = json.integer("n_shared_experts", 1, 1, 64);
  moe.top_k = json.integer("num_experts_per_tok", std::nullopt, 1, moe.experts);
  moe.scoring = RouterScoring::sqrt_softplus;
  moe.correction_bias = true;
  moe.hash_layers = parse_hash_layers(json, config.layers);
  moe.normalize = json.flag("norm_topk_prob", true);
  moe.scale = static_cast<float>(json.number("routed_scaling_factor", kFactorRange, 1.5));
  moe.layer_has_experts.assign(static_cast<std::size_t>(config.layers), 1);
  if (const double limit = json.number("swiglu_limit", kOptionalFactorRange, 10); limit > 0) {
    config.activation = {.kind = ActivationKind::clamped_silu, .limit = static_cast<float>(limit)};
  }
  config.nvfp4_experts = config.block_fp8 && config.quantization == Quantization::nvfp4;
  if (config.nvfp4_experts) config.quantization = Quantization::fp8_blocks;
  config.mxfp4 = config.block_fp8 && (config.nvfp4_experts || parse_expert_dtype(json) == "fp4");
  for (const std::int32_t width : {config.hidden, moe.ffn}) {
    if (config.mxfp4 && width % kMxBlock != 0) {
      json.refuse(width == config.hidden ? "hidden_size" : "moe_intermediate_size",
                  "a multiple of 32, the block of fp4 experts", fmt::format("{}", width));
    }
  }
}

// Everything that layers of all ratios share.
AttentionProblem parse_attention(ConfigReader& json, ModelConfig& config) {
  AttentionProblem p;
  p.kind = ProblemKind::window_compressed;
  p.heads = json.integer("num_attention_heads", std::nullopt, 1, 128);
  if (const std::int32_t kv_heads = json.integer("num_key_value_heads", 1); kv_heads != 1) {
    json.refuse("num_key_value_heads", "1", fmt::format("{}", kv_heads));
  }
  const std::int32_t head = json.integer("head_dim", std::nullopt, 16, 16384);
  p.rope = json.integer("qk_rope_head_dim",
                        static_cast<std::int32_t>(std::lround(
                            json.number("partial_rotary_factor", kShareRange, 0.125) * head)),
                        1, head);
  p.nope = head - p.rope;
  p.window = json.integer("sliding_window");
  p.sink = true;
  p.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head)));
  MlaConfig& mla = config.mla;
  mla.q_lora = json.integer("q_lora_rank", std::nullopt, 1, 65536);
  mla.o_lora = json.integer("o_lora_rank", std::nullopt, 1, 65536);
  mla.o_groups = json.integer("o_groups", std::nullopt, 1, 1024);
  if (p.heads % mla.o_groups != 0) {
    json.refuse("o_groups", fmt::format("a divisor of num_attention_heads ({})", p.heads),
                fmt::format("{}", mla.o_groups), ErrorCode::malformed);
  }
  json.only_false("attention_bias");
  return p;
}

void parse_index(ConfigReader& json, AttentionProblem& p) {
  p.index_heads = json.integer("index_n_heads", std::nullopt, 1, 1024);
  p.index_dim = json.integer("index_head_dim", std::nullopt, 1, 4096);
  p.top_k = json.integer("index_topk");
  const bool power = (p.index_dim & (p.index_dim - 1)) == 0;  // the Hadamard rotation's sizes
  if (!power || p.index_dim % 16 != 0 || p.index_dim < p.rope) {
    json.refuse("index_head_dim",
                fmt::format("a power of two from 16 on, at least qk_rope_head_dim ({})", p.rope),
                fmt::format("{}", p.index_dim));
  }
}

RopeConfig parse_rope_of(ConfigReader& json, const AttentionProblem& p, bool compressed) {
  RopeKeys keys{.layer_type = compressed ? "compress" : "main",
                .theta = compressed ? "compress_rope_theta" : "rope_theta",
                .default_theta = compressed ? 160000.0 : 10000.0,
                .scaled = compressed,
                .partial = static_cast<double>(p.rope) / (p.nope + p.rope),
                .unit_magnitude = true};
  RopeConfig rope = parse_rope(json, p.rope, RopePairing::interleaved, keys);
  rope.f32_angles = true;
  return rope;
}

}  // namespace

void parse_deepseek_v4(ConfigReader& json, ModelConfig& config) {
  // Conversions of V4 to fp8 experts are named deepseek_ref.
  const std::string type = json.text("model_type", "deepseek_v4");
  if (type != "deepseek_v4" && type != "deepseek_ref") {
    json.refuse("model_type", "deepseek_v4 or deepseek_ref", quote(type));
  }
  const AttentionProblem shared = parse_attention(json, config);
  const std::vector<std::int32_t> ratios = parse_ratios(json, config.layers);
  for (std::size_t k = 0; k < kRatios.size(); ++k) {
    const bool used = std::ranges::find(ratios, kRatios[k]) != ratios.end();
    if (!used && kRatios[k] > 0) continue;
    LayerGroupConfig& group = used ? config.groups.emplace_back() : config.draft_group.emplace();
    group.name = kGroupNames[k];
    group.problem = shared;
    group.problem.compress_ratio = kRatios[k];
    // Only layers of ratio 4 choose among their entries.
    if (kRatios[k] == 4) parse_index(json, group.problem);
    group.rope = parse_rope_of(json, shared, kRatios[k] > 0);
    for (std::int32_t l = 0; used && l < config.layers; ++l) {
      if (ratios[static_cast<std::size_t>(l)] == kRatios[k]) group.layers.push_back(l);
    }
  }
  config.hyper = {.streams = json.integer("hc_mult", 4, 1, kMaxStreams),
                  .iterations = json.integer("hc_sinkhorn_iters", 20, 1, 1000),
                  .eps = static_cast<float>(json.number("hc_eps", kEpsRange, 1e-6))};
  config.draft_layers = json.integer("num_nextn_predict_layers", 1, 0, 1024);
  config.draft_blocks = json.has("dspark_block_size");
  parse_v4_experts(json, config);
}

}  // namespace lathe
