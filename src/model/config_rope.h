// Reads RoPE as config.json describes it.
#pragma once

#include "layout/rope.h"
#include "model/config_reader.h"

namespace lathe {

/// Where a model with several RoPEs keeps that of one type of layers.
struct RopeKeys {
  std::string_view layer_type = {};       // of rope_parameters: {"full_attention": {...}, ...}
  std::string_view theta = "rope_theta";  // the older spelling
  double default_theta = 10000;
  bool scaled = true;           // rope_scaling, the older spelling, is for these layers
  double partial = 1;           // the partial_rotary_factor that `dim` is of a head
  bool unit_magnitude = false;  // YaRN leaves the magnitude of cos and sin at 1 (DeepSeek V4)
};

/// Reads rope_parameters, or the older rope_scaling and rope_theta, and rejects both if they
/// disagree. rope_type: default, linear, llama3 and yarn; others, another partial_rotary_factor
/// than keys.partial and attention_factor are rejected by name. Needs max_position_embeddings where
/// the original context is not given.
RopeConfig parse_rope(ConfigReader& json, std::int32_t dim, RopePairing pairing,
                      const RopeKeys& keys = {});

/// YaRN's factor on the attention scale in DeepSeek's form: m(mscale_all_dim)^2, 1 where the config
/// has no mscale_all_dim (arXiv 2309.00071; layout/rope.h has m).
double yarn_attention_factor(const RopeConfig& rope);

}  // namespace lathe
