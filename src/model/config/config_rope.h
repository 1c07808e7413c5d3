// Reads RoPE from config.json.
#pragma once

#include <optional>

#include "layout/rope/rope.h"
#include "model/config/config_reader.h"

namespace lathe {

/// The keys of one layer type's RoPE, in models with several.
struct RopeKeys {
  std::string_view layer_type = {};       // of rope_parameters: {"full_attention": {...}, ...}
  std::string_view theta = "rope_theta";  // the older spelling
  double default_theta = 10000;
  bool scaled = true;     // rope_scaling, the older spelling, applies to these layers
  double partial = 1;     // partial_rotary_factor if it is absent; of a latent, the only one
  bool of_heads = false;  // of grouped-query attention, whose heads have `dim` elements
  // Of these, partial_rotary_factor or rotary_dim say how much rotates. transformers' other classes
  // never read the two with rope_type default, and fail with another type.
  bool reads_share = false;
  // DeepSeek V4: YaRN, which keeps the magnitude of cos and sin at 1, or default.
  bool unit_magnitude = false;
  std::optional<YarnConfig> default_yarn = {};  // without rope_parameters and rope_scaling
};

/// Reads rope_parameters, or the older rope_scaling and rope_theta, and rejects both if they
/// disagree. original_max_position_embeddings next to them, in a model with one RoPE, overrides
/// theirs, as in transformers. Supports rope_type default, linear, dynamic, llama3, yarn, longrope
/// and, of heads, proportional (partial_rotary_factor of their pairs rotate); other types are
/// rejected by name, and so are factors without a type. Needs max_position_embeddings if the
/// original context is not given.
RopeConfig parse_rope(ConfigReader& json, std::int32_t dim, RopePairing pairing,
                      const RopeKeys& keys = {});

/// Tokens that RoPE is scaled for: the original context times the factor of yarn or dynamic, or
/// else 0. vLLM's context of such a model.
std::int32_t scaled_context(const RopeConfig& rope);

/// YaRN's factor on the attention scale in DeepSeek's form: m(mscale_all_dim)^2, 1 without
/// mscale_all_dim (arXiv 2309.00071; m is in layout/rope/rope.h).
double yarn_attention_factor(const RopeConfig& rope);

}  // namespace lathe
