// Text towers: models of text and images whose text part is a supported architecture. Its
// configuration is `text_config`, and its tensors have a prefix. Other towers are not read.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "model/config/registry.h"

namespace lathe {

/// A text model that a wrapper may have.
struct TextModel {
  std::string_view type;  // model_type of text_config
  Architecture architecture;
  // A JSON object: values of keys that are absent, where the architecture's parser requires them or
  // has other ones.
  std::string_view defaults = "{}";
};

struct TextTower {
  std::string_view name;              // as in config.json's `architectures`
  std::span<const TextModel> models;  // the first one if text_config has no model_type
  bool tied;                          // where tie_word_embeddings is absent
};

/// In alphabetical order.
std::span<const TextTower> text_towers();
/// Null for an unknown name.
const TextTower* find_text_tower(std::string_view name);

/// A wrapper of another name around a text model that is the same in every wrapper; none if
/// text_config has no such model_type. `name` must outlive it.
std::optional<TextTower> any_tower(const nlohmann::json& whole, std::string_view name);
/// model_type of text_config: "unknown" if it has none; empty without a text_config.
std::string text_model_type(const nlohmann::json& whole);

struct TextConfig {
  nlohmann::json json;
  const TextModel* model = nullptr;
};
/// text_config of a whole config.json, which must be an object, with the model's defaults and with
/// the keys about tokens, quantisation and tied embeddings that only the whole has. Errors:
/// malformed (no text_config), unsupported (another model_type; names it and the wrapper).
Result<TextConfig> read_text_config(const nlohmann::json& whole, const TextTower& tower);

/// The name in the text model of a checkpoint's tensor; empty for tensors of other towers.
std::string text_tensor_name(std::string_view name);

}  // namespace lathe
