// Reads the keys of config.json that architectures with grouped-query attention share.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "model/config/config.h"
#include "model/config/config_reader.h"
#include "model/config/config_rope.h"

namespace lathe {

/// Values of keys that are absent, as in transformers' class of an architecture; 0: what null
/// gives, num_attention_heads and hidden_size / num_attention_heads.
struct GqaDefaults {
  std::int32_t kv_heads = 0;
  std::int32_t head_dim = 0;
};

/// Reads heads, head_dim, RoPE and scale into config.all_layers().
void parse_gqa_dims(ConfigReader& json, ModelConfig& config, const GqaDefaults& defaults,
                    RopeKeys keys = {});

/// layer_types as flags: 1 for sliding_attention, 0 for full_attention. Empty if the key is absent.
std::vector<std::uint8_t> parse_layer_types(ConfigReader& json, const ModelConfig& config);

/// Gives sliding_window (`absent` tokens if the key is absent) to the layers flagged in `sliding`
/// [layers]. If only some are, all_layers() is split into the groups "full" and "window", the first
/// layer's first.
void set_windows(ConfigReader& json, ModelConfig& config, const std::vector<std::uint8_t>& sliding,
                 std::int32_t absent = 4096);

/// Splits all_layers() into two groups by `flags` [layers], the first layer's first: names[1] has
/// the layers with 1. One kind of layer stays one group.
void split_layers(ModelConfig& config, const std::vector<std::uint8_t>& flags,
                  std::array<std::string_view, 2> names);

/// Reads which layers have experts: decoder_sparse_step, mlp_only_layers. False: none has.
bool set_expert_layers(ConfigReader& json, ModelConfig& config);

/// Which layers have RoPE, [layers]: no_rope_layers, or all but every no_rope_layer_interval-th.
std::vector<std::uint8_t> parse_rope_layers(ConfigReader& json, const ModelConfig& config);

/// The identity, in place of `rope`: layers that know no positions.
RopeConfig no_rope(const RopeConfig& rope);

/// Norms of OLMo 2 and EXAONE 4: of what a part adds, none before it.
inline constexpr LayerNorms kOutputNorms{.attention = {},
                                         .attention_out = "post_attention_layernorm",
                                         .ffn = {},
                                         .ffn_out = "post_feedforward_layernorm"};

/// Mixtral's experts; w1 is the gate, w3 up, w2 down.
inline constexpr ExpertNames kMixtralExperts{
    .part = "block_sparse_moe.", .gate = "w1", .up = "w3", .down = "w2"};

/// Reads the dims, and windows in Qwen 2 and 3's form: use_sliding_window and sliding_window, for
/// the layers that layer_types or max_window_layers names.
void parse_gqa(ConfigReader& json, ModelConfig& config, const GqaDefaults& defaults);

}  // namespace lathe
