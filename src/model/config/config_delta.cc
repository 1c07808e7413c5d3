#include "model/config/config_delta.h"

#include <fmt/format.h>

#include <algorithm>

#include "io/text/quote.h"

namespace lathe {
namespace {

// [layers] 1: linear_attention. Empty without layer_types.
std::vector<std::uint8_t> linear_layers(ConfigReader& json, std::int32_t layers,
                                        std::string_view other = "full_attention") {
  std::vector<std::uint8_t> out;
  const std::vector<std::string> types = json.texts("layer_types");
  if (types.empty()) return out;
  for (std::size_t l = 0; l < types.size(); ++l) {
    if (types[l] != "linear_attention" && types[l] != "full_attention" && types[l] != other) {
      json.refuse(fmt::format("layer_types[{}]", l), fmt::format("linear_attention or {}", other),
                  quote(types[l]));
    }
    out.push_back(types[l] == "linear_attention" ? 1 : 0);
  }
  if (std::ssize(out) != layers) {
    json.refuse("layer_types", fmt::format("{} entries", layers), fmt::format("{}", out.size()),
                ErrorCode::malformed);
    out.resize(static_cast<std::size_t>(layers));
  }
  return out;
}

}  // namespace

void set_delta_layers(ConfigReader& json, ModelConfig& config,
                      const std::vector<std::uint8_t>& linear) {
  if (std::ranges::count(linear, 1) == config.layers) {
    return json.refuse("layer_types", "at least one full_attention", "linear_attention alone");
  }
  const auto is_linear = [&](std::int32_t l) { return linear[static_cast<std::size_t>(l)] != 0; };
  LayerGroupConfig& all = config.all_layers();
  std::ranges::copy_if(all.layers, std::back_inserter(config.delta.layers), is_linear);
  std::erase_if(all.layers, is_linear);
  if (!config.delta.layers.empty()) all.name = "full";
}

void parse_delta_net(ConfigReader& json, ModelConfig& config) {
  DeltaRuleProblem& p = config.delta.problem;
  p.key_heads = json.integer("linear_num_key_heads", 16, 1, 1024);
  p.heads = json.integer("linear_num_value_heads", 32, 1, 1024);
  p.dk = json.integer("linear_key_head_dim", 128, 1, 1024);
  p.dv = json.integer("linear_value_head_dim", 128, 1, 1024);
  p.conv = json.integer("linear_conv_kernel_dim", 4, 1, 64);
  std::vector<std::uint8_t> linear = linear_layers(json, config.layers);
  const std::int32_t every = json.integer("full_attention_interval", 4);
  for (std::int32_t l = 0; std::ssize(linear) < config.layers; ++l) {
    linear.push_back((l + 1) % every != 0 ? 1 : 0);
  }
  set_delta_layers(json, config, linear);
}

void parse_glm_delta(ConfigReader& json, ModelConfig& config) {
  DeltaRuleProblem& p = config.delta.problem;
  auto given = json.object("linear_attn_config");
  const auto integer = [&](std::string_view key, std::string_view of_class, std::int32_t absent) {
    const std::int32_t own = json.integer(of_class, absent, 1, 1024);
    return given ? given->integer(key, own, 1, 1024) : own;
  };
  p.heads = p.key_heads = integer("num_heads", "linear_num_heads", 64);
  p.dk = p.dv = integer("head_dim", "linear_head_dim", 128);
  p.conv = integer("short_conv_kernel_size", "linear_conv_kernel_dim", 4);
  p.decay = DeltaDecay::per_channel;
  p.output = DeltaOutput::sigmoid;
  double bound = json.null("linear_lower_bound")
                     ? 0
                     : json.number("linear_lower_bound", kOptionalDecayRange, -5);
  if (given) {
    bound = given->number("gate_lower_bound", kOptionalDecayRange, bound);
    if (bound == 0 && given->flag("safe_gate", true)) bound = -5;
    json.adopt(*given);
  }
  if (bound != 0) {
    p.gate = DeltaGate::bounded;
    p.gate_bound = static_cast<float>(bound);
  }
  config.delta.tensors = DeltaTensors::low_rank;
  std::vector<std::uint8_t> linear = linear_layers(json, config.layers, "indexed_attention");
  for (std::int32_t l = 0; std::ssize(linear) < config.layers; ++l) {
    linear.push_back(l % 4 != 3 ? 1 : 0);
  }
  set_delta_layers(json, config, linear);
}

void parse_bailing_delta(ConfigReader& json, ModelConfig& config) {
  DeltaRuleProblem& p = config.delta.problem;
  p.heads = p.key_heads = json.integer("num_attention_heads", std::nullopt, 1, 1024);
  p.dk = p.dv = json.integer("head_dim", 128, 1, 1024);
  p.conv = json.integer("short_conv_kernel_size", 4, 1, 64);
  p.decay = DeltaDecay::per_channel;
  p.output = DeltaOutput::sigmoid;
  if (json.flag("kda_safe_gate", true)) {
    p.gate = DeltaGate::bounded;
    p.gate_bound = static_cast<float>(json.number("kda_lower_bound", kDecayRange, -5));
  }
  config.delta.tensors = DeltaTensors::bailing;
  std::vector<std::uint8_t> linear = linear_layers(json, config.layers);
  const std::int32_t group = json.integer("layer_group_size", 6);
  for (std::int32_t l = 0; std::ssize(linear) < config.layers; ++l) {
    linear.push_back((l + 1) % group != 0 ? 1 : 0);
  }
  set_delta_layers(json, config, linear);
}

void parse_kimi_delta(ConfigReader& json, ModelConfig& config) {
  DeltaRuleProblem& p = config.delta.problem;
  auto given = json.object("linear_attn_config");
  const auto integer = [&](std::string_view key, std::string_view of_class, std::int32_t absent) {
    return given ? given->integer(key, absent, 1, 1024) : json.integer(of_class, absent, 1, 1024);
  };
  p.heads = p.key_heads = integer("num_heads", "linear_num_heads", 32);
  p.dk = p.dv = integer("head_dim", "linear_head_dim", 128);
  p.conv = integer("short_conv_kernel_size", "linear_conv_kernel_dim", 4);
  p.decay = DeltaDecay::per_channel;
  p.output = DeltaOutput::sigmoid;
  config.delta.tensors = DeltaTensors::kimi;
  std::vector<std::uint8_t> linear = linear_layers(json, config.layers);
  if (linear.empty() && given) {
    linear.resize(static_cast<std::size_t>(config.layers));
    for (const std::int32_t layer : given->integers("kda_layers")) {  // from 1
      if (layer < 1 || layer > config.layers) {
        given->refuse("kda_layers", fmt::format("layers from 1 to {}", config.layers),
                      fmt::format("{}", layer), ErrorCode::malformed);
        break;
      }
      linear[static_cast<std::size_t>(layer - 1)] = 1;
    }
  }
  if (given) json.adopt(*given);
  for (std::int32_t l = 0; std::ssize(linear) < config.layers; ++l) {
    linear.push_back(l == 0 || l % 4 != 0 ? 1 : 0);
  }
  set_delta_layers(json, config, linear);
}

}  // namespace lathe
