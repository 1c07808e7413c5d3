// What a user says in place of config.json's keys: --override and --rope-scaling.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/config/config_reader.h"

namespace lathe {

struct ConfigOverrides {
  // "KEY=JSON", each a key of the text model, or OBJECT.KEY of an object in it.
  std::vector<std::string> values = {};
  std::string rope_scaling = {};  // JSON: an object, or null; empty: the file's

  bool empty() const { return values.empty() && rope_scaling.empty(); }
};

/// Sets the keys in `config`, a text model's object; null removes nothing, it is what the file may
/// say. rope_scaling replaces rope_parameters and rope_scaling; their rope_theta stays. Errors,
/// with --override or --rope-scaling: text that is not KEY=JSON; keys that say what the checkpoint
/// is (architectures, model_type, quantization_config, text_config); rope_scaling of a model with
/// several kinds of RoPE.
Result<void> apply_overrides(const ConfigOverrides& overrides, nlohmann::json& config);

/// The flag of each key that it gives, for errors: {"rope_scaling", "--rope-scaling"}.
ConfigReader::Flags flags_of(const ConfigOverrides& overrides);

/// Removes the keys from generation_config.json, which has precedence elsewhere. Precondition:
/// apply_overrides() took them.
void drop_overridden(const ConfigOverrides& overrides, nlohmann::json& generation);

/// Refuses a key that the model's parser has not read: it would change nothing.
Result<void> check_overrides_read(const ConfigOverrides& overrides, const ConfigReader::Keys& read);

}  // namespace lathe
