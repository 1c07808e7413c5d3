#include "model/config/overrides.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/json.h"
#include "io/text/json_text.h"
#include "io/text/quote.h"

namespace lathe {
namespace {

constexpr std::string_view kFlag = "--override";
constexpr std::array<std::string_view, 4> kFixed = {"architectures", "model_type",
                                                    "quantization_config", "text_config"};

Error bad(std::string_view field, std::string wanted, std::string offered, std::string hint = "") {
  return {ErrorCode::invalid_argument, std::string(field), std::move(wanted), std::move(offered),
          std::move(hint)};
}

std::string key_of(const std::string& value) { return value.substr(0, value.find('=')); }

Result<nlohmann::json> parse_flag(std::string_view text, const std::string& flag,
                                  const char* hint) {
  auto json = parse_json(text, flag);
  if (json) return json;
  Error e = json.error();
  e.code = ErrorCode::invalid_argument;
  if (e.hint.empty()) e.hint = hint;
  return e;
}

// The member that a dotted key names. Absent objects on the way are made.
Result<nlohmann::json*> member_of(const std::string& key, nlohmann::json& config) {
  nlohmann::json* at = &config;
  for (std::size_t begin = 0;;) {
    const std::size_t dot = key.find('.', begin);
    at = &(*at)[key.substr(begin, dot - begin)];
    if (dot == std::string::npos) return at;
    if (at->is_null()) *at = nlohmann::json::object();
    if (!at->is_object()) {
      return bad(fmt::format("{} {}", kFlag, key), "an object in " + quote(key.substr(0, dot)),
                 json_excerpt(*at));
    }
    begin = dot + 1;
  }
}

// The first key in what a flag gave that is not read; empty: there is none.
std::string unread(const std::string& path, const nlohmann::json& value,
                   const ConfigReader::Keys& read) {
  if (!read.contains(path)) return path;
  if (!value.is_object()) return {};
  for (const auto& [key, inside] : value.items()) {
    if (std::string found = unread(path + "." + key, inside, read); !found.empty()) return found;
  }
  return {};
}

Error several_ropes(std::string_view flag, const std::string& key) {
  return bad(flag, "a model with one RoPE", "one with several: " + quote(key),
             "--override rope_parameters=JSON gives all of them");
}

// These keys are read in the RoPE's object first.
Result<void> forget_in_rope(const std::string& key, nlohmann::json& config) {
  if (key != "rope_theta" && key != "partial_rotary_factor") return {};
  for (const char* object : {"rope_parameters", "rope_scaling"}) {
    const auto rope = config.find(object);
    if (rope == config.end() || !rope->is_object()) continue;
    rope->erase(key);
    for (const auto& [name, value] : rope->items()) {
      if (value.is_object() && value.contains(key)) return several_ropes(kFlag, name);
    }
  }
  return {};
}

Result<void> set_rope_scaling(const std::string& text, nlohmann::json& config) {
  constexpr std::string_view kRope = "--rope-scaling";
  constexpr const char* kExample = R"(for example '{"rope_type": "yarn", "factor": 4}')";
  const auto scaling = parse_flag(text, std::string(kRope), kExample);
  if (!scaling) return scaling.error();
  if (!scaling->is_object() && !scaling->is_null()) {
    return bad(kRope, "a JSON object, or null", json_excerpt(*scaling), kExample);
  }
  const auto parameters = config.find("rope_parameters");
  if (parameters != config.end() && parameters->is_object()) {
    for (const auto& [key, value] : parameters->items()) {
      if (value.is_object()) return several_ropes(kRope, key);
    }
    for (const char* kept : {"rope_theta", "partial_rotary_factor"}) {
      const auto it = parameters->find(kept);
      if (it != parameters->end() && !config.contains(kept)) config[kept] = *it;
    }
    config.erase("rope_parameters");
  }
  config["rope_scaling"] = *scaling;
  return {};
}

}  // namespace

Result<void> apply_overrides(const ConfigOverrides& overrides, nlohmann::json& config) {
  for (const std::string& value : overrides.values) {
    const std::string key = key_of(value);
    if (key.empty() || key.size() == value.size()) {
      return bad(kFlag, "KEY=JSON", quote(value), "--override max_position_embeddings=8192");
    }
    const auto same = [&](const std::string& other) { return key_of(other) == key; };
    if (std::ranges::count_if(overrides.values, same) > 1) {
      return bad(kFlag, "each key once", quote(key) + " twice");
    }
    const auto inside = [&](const std::string& other) { return other.starts_with(key + "."); };
    if (std::any_of(overrides.values.data(), &value, inside)) {
      return bad(kFlag, "an object before its members", quote(key) + " after one of them");
    }
    constexpr std::string_view kText = "text_config.";
    if (std::ranges::find(kFixed, key.substr(0, key.find('.'))) != kFixed.end()) {
      return bad(kFlag, "a key other than those that say what the checkpoint is", quote(key),
                 key.starts_with(kText) ? fmt::format("{} {}=JSON, as keys are the text model's",
                                                      kFlag, key.substr(kText.size()))
                                        : "");
    }
    const auto json = parse_flag(value.substr(key.size() + 1), fmt::format("{} {}", kFlag, key),
                                 "a text needs double quotes");
    if (!json) return json.error();
    const auto member = member_of(key, config);
    if (!member) return member.error();
    **member = *json;
    if (const auto ok = forget_in_rope(key, config); !ok) return ok.error();
  }
  if (overrides.rope_scaling.empty()) return {};
  return set_rope_scaling(overrides.rope_scaling, config);
}

ConfigReader::Flags flags_of(const ConfigOverrides& overrides) {
  ConfigReader::Flags out;
  for (const std::string& value : overrides.values) {
    out[key_of(value)] = fmt::format("{} {}", kFlag, key_of(value));
  }
  if (!overrides.rope_scaling.empty()) out["rope_scaling"] = "--rope-scaling";
  return out;
}

void drop_overridden(const ConfigOverrides& overrides, nlohmann::json& generation) {
  for (const std::string& value : overrides.values) generation.erase(key_of(value));
}

Result<void> check_overrides_read(const ConfigOverrides& overrides,
                                  const ConfigReader::Keys& read) {
  for (const std::string& value : overrides.values) {
    const std::string key = key_of(value);
    const auto json = parse_json(value.substr(key.size() + 1), std::string(kFlag));
    const std::string other = unread(key, *json, read);
    if (other.empty()) continue;
    return bad(kFlag, "a key that is read for this model", quote(other),
               "docs/models.md lists them");
  }
  if (overrides.rope_scaling.empty()) return {};
  const auto scaling = parse_json(overrides.rope_scaling, "--rope-scaling");
  for (const auto& [key, value] : scaling->items()) {
    if (read.contains("rope_scaling." + key)) continue;
    return bad("--rope-scaling", "keys that are read for its rope_type", quote(key),
               "rope_type is \"default\" where it is not given");
  }
  return {};
}

}  // namespace lathe
