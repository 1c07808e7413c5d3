// The supported architectures. An architecture only interprets its config.json: all share one
// forward pass (decoder.h), which reads the configuration.
#pragma once

#include <span>
#include <string_view>

#include "model/config/config.h"
#include "model/config/config_reader.h"

namespace lathe {

struct Architecture {
  std::string_view name;  // as in config.json's `architectures`
  /// Reads the architecture's own keys; errors stay in the reader. `config` already has the common
  /// fields (config.cc).
  void (*parse)(ConfigReader& json, ModelConfig& config);
  bool mxfp4 = false;      // quantisation of its checkpoints; false: DeepSeek's fp8
  double norm_eps = 1e-6;  // where rms_norm_eps is absent, as in transformers' class
  std::int32_t bos = -1;   // where bos_token_id is absent, as in that class; -1: none
  std::int32_t eos = -1;   // where eos_token_id is absent, as in that class; -1: none
};

/// In alphabetical order.
std::span<const Architecture> architectures();
/// Null for an unknown name.
const Architecture* find_architecture(std::string_view name);

// parse_llama() and the others of architectures.inc.
#define LATHE_ARCHITECTURE(function, ...) void parse_##function(ConfigReader&, ModelConfig&);
#include "model/config/architectures.inc"
#undef LATHE_ARCHITECTURE
// Of text models alone (text_tower.cc).
void parse_qwen3_vl_moe(ConfigReader& json, ModelConfig& config);

}  // namespace lathe
