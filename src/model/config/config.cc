#include "model/config/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "attn/compressor.h"
#include "base/check.h"
#include "base/json.h"
#include "io/files/model_path.h"
#include "io/files/read_file.h"
#include "io/text/json_text.h"
#include "io/text/quote.h"
#include "model/config/config_reader.h"
#include "model/config/config_rope.h"
#include "model/config/layer_flags.h"
#include "model/config/registry.h"
#include "model/config/text_tower.h"

namespace lathe {
namespace {

constexpr std::int64_t kMaxConfigBytes = std::int64_t{16} << 20;
constexpr std::int32_t kMaxLayers = 4096;
constexpr float kLargest = std::numeric_limits<float>::max();

// Python's json writes Infinity and NaN, which JSON does not have: as texts, they are an error only
// where a number is read.
std::string quote_non_finite(std::string_view json) {
  std::string out;
  bool in_text = false;
  for (std::size_t at = 0; at < json.size();) {
    if (in_text && json[at] == '\\' && at + 1 < json.size()) {
      out.append(json.substr(at, 2));
      at += 2;
      continue;
    }
    if (json[at] == '"') in_text = !in_text;
    std::string_view word;
    for (const std::string_view w : {"-Infinity", "Infinity", "NaN"}) {
      if (!in_text && json.substr(at).starts_with(w)) word = w;
    }
    if (word.empty()) {
      out.push_back(json[at++]);
      continue;
    }
    out.append("\"").append(word).append("\"");
    at += word.size();
  }
  return out;
}

Error empty_file(std::string name) {
  return {ErrorCode::malformed, std::move(name), "an object", "an empty file",
          "delete it, or copy it again"};
}

Result<nlohmann::json> parse_object(std::string_view text, const std::string& file) {
  auto parsed = parse_json(quote_non_finite(text), file);
  if (parsed && !parsed->is_object()) {
    return Error{ErrorCode::malformed, file, "an object", json_excerpt(*parsed), ""};
  }
  return parsed;
}

// What the first known name in `architectures` stands for: one of the two.
struct Found {
  const Architecture* architecture = nullptr;
  std::optional<TextTower> tower = std::nullopt;
};

// The tower's name is in `whole`.
Result<Found> find(ConfigReader& json, const nlohmann::json& whole) {
  const std::vector<std::string> named = json.texts("architectures");
  json.text("model_type", "");
  if (json.error()) return *json.error();
  for (const std::string& n : named) {
    if (const Architecture* known = find_architecture(n)) return Found{known};
    if (const TextTower* tower = find_text_tower(n)) return Found{nullptr, *tower};
  }
  if (auto text = json.object("text_config")) {
    text->text("model_type", "");
    json.adopt(*text);
  }
  if (json.error()) return *json.error();
  if (!named.empty()) {
    const auto& name = whole["architectures"][0].get_ref<const std::string&>();
    if (const auto tower = any_tower(whole, name)) return Found{nullptr, tower};
  }
  std::string known, offered = named.empty() ? "nothing" : quote(named.front());
  for (const std::string& k : known_architectures()) known += (known.empty() ? "" : ", ") + k;
  if (const std::string text = text_model_type(whole); !text.empty()) {
    offered += " around a text model of type " + quote(text);
  }
  json.refuse("architectures", "one of " + known, std::move(offered));
  return *json.error();
}

void parse_tokens(ConfigReader& json, ModelConfig& config) {
  if (json.has("bos_token_id")) {
    const auto ids = json.token_ids("bos_token_id", config.vocab);
    if (ids.size() > 1) {
      json.refuse("bos_token_id", "one id", fmt::format("{}", ids.size()), ErrorCode::malformed);
    }
    if (!ids.empty()) config.bos = ids.front();
  }
  if (json.has("eos_token_id")) config.eos = json.token_ids("eos_token_id", config.vocab);
}

void parse_generation(ConfigReader& json, ModelConfig& config) {
  parse_tokens(json, config);
  // Ranges of requests, which would all be refused.
  constexpr ConfigRange kAny = {-std::numeric_limits<double>::max(),
                                std::numeric_limits<double>::max()};
  const auto real = [&](std::string_view key, float most, bool zero) -> std::optional<float> {
    if (!json.has(key)) return std::nullopt;
    const double given = json.number(key, kAny);
    const auto value = static_cast<float>(given);
    const bool fits = (zero ? value >= 0 : value > 0) && value <= most;
    if (!fits && !json.error()) {
      constexpr float kSmallest = std::numeric_limits<float>::denorm_min();
      const std::string wanted = most == kLargest ? "a number of 0 or more"
                                 : zero           ? fmt::format("a number from 0 to {}", most)
                                 : value == 0 && given > 0
                                     ? fmt::format("a number from {} to {}", kSmallest, most)
                                     : fmt::format("a number above 0, to {}", most);
      json.refuse(key, wanted, fmt::format("{}", given), ErrorCode::unsupported,
                  "mend the file, or delete the key");
    }
    return value;
  };
  config.generation.temperature = real("temperature", kLargest, true);
  config.generation.top_p = real("top_p", 1, false);
  config.generation.min_p = real("min_p", 1, true);
  config.generation.repetition_penalty = real("repetition_penalty", 2, false);
  if (json.has("top_k")) {  // 0 and -1 mean all tokens
    const std::int32_t top_k = json.integer("top_k", std::nullopt, -1);
    if (top_k > 0) config.generation.top_k = top_k;
  }
  // Greedy, whatever other sampling keys say.
  if (!json.flag("do_sample", true)) {
    config.generation.temperature = 0.0f;
    config.generation.top_p.reset();
    config.generation.top_k.reset();
    config.generation.min_p.reset();
  } else if (json.has("do_sample") && !config.generation.temperature) {
    config.generation.temperature = 1.0f;  // transformers' default
  }
}

// Counts of weights and of tensors stay within 64 bits and a few GiB of names.
void check_size(ConfigReader& json, const ModelConfig& config) {
  constexpr double kMostWeights = 1e15;
  constexpr std::int64_t kMostExperts = 1 << 18;  // of all layers
  const MoeConfig& moe = config.moe;
  const std::int64_t experts = std::int64_t{config.layers} * moe.experts;
  if (experts > kMostExperts) {
    json.refuse("num_hidden_layers", fmt::format("at most {} experts in all layers", kMostExperts),
                fmt::format("{} layers of {}", config.layers, moe.experts));
  }
  const std::int64_t columns = config.vocab + config.layers * (config.ffn + moe.shared_width());
  const double widths = static_cast<double>(columns) + static_cast<double>(experts) * moe.ffn;
  if (widths * config.hidden > kMostWeights) {
    json.refuse("hidden_size", "at most 10^15 weights",
                fmt::format("{} for {} columns of embeddings, feed-forward layers and experts",
                            config.hidden, widths));
  }
}

// Checks common to all architectures, after their own keys have been read.
void check(ConfigReader& json, const ModelConfig& config) {
  if (json.error()) return;
  for (const LayerGroupConfig& group : config.groups) {
    if (const auto ok = check_problem(group.problem); !ok) {
      const Error& e = ok.error();
      json.refuse("attention", e.field + " " + e.wanted, e.offered, e.code, e.hint);
    }
    const bool gqa = group.problem.kind == ProblemKind::grouped_query;
    if (gqa && group.problem.head_dim % 16 != 0) {
      json.refuse("head_dim", "a multiple of 16", fmt::format("{}", group.problem.head_dim));
    }
    if (group.rope.dim % 16 != 0) {
      json.refuse(gqa ? "partial_rotary_factor" : "qk_rope_head_dim",
                  gqa ? "a rotary part of a multiple of 16 elements" : "a multiple of 16",
                  fmt::format("{}", group.rope.dim));
    }
  }
  if (!config.delta.layers.empty()) {
    if (const auto ok = check_delta_rule(config.delta.problem); !ok) {
      const Error& e = ok.error();
      json.refuse("linear_attention", e.field + " " + e.wanted, e.offered, e.code, e.hint);
    }
  }
  if (const auto ok = check_layer_flags(config); !ok) {
    const Error& e = ok.error();
    json.refuse(e.field, e.wanted, e.offered, e.code, e.hint);
  }
}

// What files leave out about the end of an answer is in transformers' class.
void add_class_tokens(ConfigReader& json, const Architecture& architecture, ModelConfig& config) {
  const auto absent = [&](std::string_view key) { return !json.has(key) && !json.null(key); };
  const auto fits = [&](std::int32_t id) { return id >= 0 && id < config.vocab; };
  if (absent("bos_token_id") && fits(architecture.bos)) config.bos = architecture.bos;
  if (absent("eos_token_id") && fits(architecture.eos)) config.eos = {architecture.eos};
}

// A scaled RoPE gives the context as vLLM's does; beyond the chunk of dual chunk attention (Qwen
// 2.5 1M) other readers attend differently.
void bound_context(ConfigReader& json, ModelConfig& config) {
  for (const LayerGroupConfig& group : config.groups) {
    config.max_context = std::max(config.max_context, scaled_context(group.rope));
  }
  if (auto chunks = json.object("dual_chunk_attention_config")) {
    const std::int32_t chunk = chunks->integer("chunk_size", 8192);
    const std::int32_t local = chunks->integer("local_size", 1024);
    if (local >= chunk) {
      chunks->refuse("chunk_size", fmt::format("more than local_size ({})", local),
                     fmt::format("{}", chunk), ErrorCode::malformed);
    }
    config.max_context = std::min(config.max_context, std::max(1, chunk - local));
    json.adopt(*chunks);
  }
}

// `place` precedes keys in errors. hf_quant: hf_quant_config.json's object, or null.
Result<ModelConfig> parse_one(const nlohmann::json& object, std::string place,
                              const Architecture& architecture, const ConfigOverrides& overrides,
                              ConfigReader* hf_quant) {
  nlohmann::json changed = object;
  if (const auto ok = apply_overrides(overrides, changed); !ok) return ok.error();
  ConfigReader::Keys read;
  const ConfigReader::Flags flags = flags_of(overrides);
  ConfigReader json(changed, std::move(place), &read, &flags);
  ModelConfig config;
  config.architecture = architecture.name;
  config.vocab = json.integer("vocab_size");
  config.hidden = json.integer("hidden_size", std::nullopt, 1, 1 << 20);
  config.layers = json.integer("num_hidden_layers", std::nullopt, 1, kMaxLayers);
  // Some files give only the experts' width if every layer has experts.
  config.ffn = json.integer(json.first_of({"intermediate_size", "moe_intermediate_size"}),
                            std::nullopt, 1, ConfigReader::kMaxWidth);
  config.max_context = json.integer(json.first_of({"max_position_embeddings", "model_max_length"}));
  config.norm_eps =
      static_cast<float>(json.number("rms_norm_eps", kEpsRange, architecture.norm_eps));
  config.tied_embeddings = json.flag("tie_word_embeddings", false);
  parse_quantization(json, hf_quant, architecture.mxfp4, config);
  parse_tokens(json, config);
  add_class_tokens(json, architecture, config);
  architecture.parse(json, config);
  bound_context(json, config);
  const bool gelu = config.activation.kind == ActivationKind::gelu_tanh;
  json.only("hidden_act", gelu ? "gelu_pytorch_tanh" : "silu");
  check_size(json, config);
  check(json, config);
  if (json.error()) return *json.error();
  if (const auto ok = check_overrides_read(overrides, read); !ok) return ok.error();
  return config;
}

Result<ModelConfig> parse_tower(const nlohmann::json& whole, const TextTower& tower,
                                const ConfigOverrides& overrides, ConfigReader* hf_quant) {
  const auto text = read_text_config(whole, tower);
  if (!text) return text.error();
  auto config = parse_one(text->json, "config.json: text_config", text->model->architecture,
                          overrides, hf_quant);
  if (!config) return config;
  config->architecture = tower.name;
  config->text_tower = true;
  return config;
}

}  // namespace

bool ModelConfig::is_delta(std::int32_t layer) const {
  return std::binary_search(delta.layers.begin(), delta.layers.end(), layer);
}

bool ModelConfig::is_reader(std::int32_t layer) const {
  return std::ranges::any_of(groups, [&](const LayerGroupConfig& group) {
    return std::ranges::binary_search(group.readers, layer);
  });
}

std::size_t ModelConfig::group_of(std::int32_t layer) const {
  if (is_delta(layer)) return 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const auto* layers_of : {&groups[g].layers, &groups[g].readers}) {
      if (std::ranges::binary_search(*layers_of, layer)) return g;
    }
  }
  LATHE_CHECK(false, "a layer in no group");
  return 0;
}

std::vector<LayerGroup> ModelConfig::layer_groups() const {
  std::vector<LayerGroup> out;
  for (const LayerGroupConfig& g : groups) {
    LayerGroup& group =
        out.emplace_back(LayerGroup{g.name, g.problem, g.layers, compressor_bytes(g.problem)});
    group.readers = g.readers;
    if (mla.own_indexer.empty()) continue;
    for (const std::int32_t layer : g.layers) {
      if (mla.own_indexer[static_cast<std::size_t>(layer)] != 0)
        group.index_layers.push_back(layer);
    }
  }
  if (!delta.layers.empty()) {
    out.front().delta = DeltaLayers{delta.problem, delta.layers};
    out.front().state_bytes = state_bytes(delta.problem, out.front().problem);
  }
  return out;
}

LayerGroupConfig& ModelConfig::all_layers() {
  if (groups.empty()) {
    LayerGroupConfig& all = groups.emplace_back();
    all.name = "all";
    all.layers.resize(static_cast<std::size_t>(layers));
    std::iota(all.layers.begin(), all.layers.end(), 0);
  }
  LATHE_CHECK(groups.size() == 1, "all_layers() of a model with several groups");
  return groups.front();
}

Result<ModelConfig> parse_model_config(std::string_view config_json,
                                       std::string_view generation_json,
                                       const ConfigOverrides& overrides,
                                       std::string_view hf_quant_json) {
  const auto parsed = parse_object(config_json, "config.json");
  if (!parsed) return parsed.error();
  const auto modelopt =
      parse_object(hf_quant_json.empty() ? "{}" : hf_quant_json, "hf_quant_config.json");
  if (!modelopt) return modelopt.error();
  ConfigReader hf_quant(*modelopt, "hf_quant_config.json");
  auto quant = hf_quant.object("quantization");
  if (hf_quant.error()) return *hf_quant.error();
  ConfigReader top(*parsed, "config.json");
  const auto found = find(top, *parsed);
  if (!found) return found.error();
  ConfigReader* const described = quant ? &*quant : nullptr;
  Result<ModelConfig> config =
      !found->tower ? parse_one(*parsed, "config.json", *found->architecture, overrides, described)
                    : parse_tower(*parsed, *found->tower, overrides, described);
  if (!config || generation_json.empty()) return config;
  auto generation = parse_object(generation_json, "generation_config.json");
  if (!generation) return generation.error();
  drop_overridden(overrides, *generation);
  ConfigReader defaults(*generation, "generation_config.json");
  parse_generation(defaults, *config);
  if (defaults.error()) return *defaults.error();
  return config;
}

namespace {

Result<ModelConfig> read_model_config(const std::string& directory,
                                      const ConfigOverrides& overrides) {
  if (const auto ok = check_model_path(directory); !ok) return ok.error();
  if (const auto ok = check_model_files(directory); !ok) return ok.error();
  const std::filesystem::path dir(directory);
  const auto config = read_file(dir / "config.json", kMaxConfigBytes);
  if (!config) return config.error();
  std::string others[2];
  const char* const names[2] = {"generation_config.json", "hf_quant_config.json"};
  for (int i = 0; i < 2; ++i) {
    if (!is_listed(dir / names[i])) continue;
    auto text = read_file(dir / names[i], kMaxConfigBytes);
    if (!text) return text.error();
    if (text->empty()) return empty_file(names[i]);
    others[i] = std::move(*text);
  }
  return parse_model_config(*config, others[0], overrides, others[1]);
}

}  // namespace

Result<ModelConfig> load_model_config(const std::string& directory,
                                      const ConfigOverrides& overrides) {
  auto config = read_model_config(directory, overrides);
  // What is not supported is said with what is.
  const bool ready = config || config.error().code == ErrorCode::unsupported;
  return ready ? std::move(config) : with_way_out(config.error());
}

}  // namespace lathe
