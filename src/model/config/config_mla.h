// Reads the keys of config.json that architectures with latent attention share: DeepSeek V3 and its
// successors.
#pragma once

#include "layout/rope/rope.h"
#include "model/config/config.h"
#include "model/config/config_reader.h"

namespace lathe {

/// Values of keys that are absent, as in transformers' class of an architecture: DeepSeek V3's.
struct MlaDefaults {
  std::int32_t q_lora = 1536;  // null: q is one projection
  std::int32_t groups = 8;
  std::int32_t top_groups = 4;
  bool null_groups = false;       // null: as if absent
  std::int32_t dense_layers = 3;  // first_k_dense_replace
  std::int32_t shared = 1;
  double routed_scale = 2.5;
  std::int32_t draft_layers = 1;
  double rope_theta = 10000;
  std::int32_t v_head = 0;    // v_head_dim; 0: required
  bool interleaved = true;    // pairs of RoPE, where rope_interleave is absent
  bool no_positions = false;  // heads have no rotary part: qk_rope_head_dim is 0
  bool rotary_share = false;  // partial_rotary_factor is the rotary share of a head, not 1
  std::optional<YarnConfig> yarn = {};  // without keys of RoPE
};

/// Reads dense latent attention and RoPE; every layer is dense.
void parse_mla_attention(ConfigReader& json, ModelConfig& config, const MlaDefaults& defaults);

/// Reads llama_4_scaling_beta, or `absent` where config.json says nothing of RoPE: queries of all
/// layers grow from the original context of YaRN on.
void parse_query_growth(ConfigReader& json, ModelConfig& config, double absent);

/// Reads which layers have experts, and their sizes. False: every layer is dense.
bool parse_expert_sizes(ConfigReader& json, ModelConfig& config, const MlaDefaults& defaults);

/// Reads n_group and topk_group, and checks that the kept groups have top_k experts. Default 0: the
/// key is required. Needs moe.group_best.
void parse_groups(ConfigReader& json, MoeConfig& moe, const MlaDefaults& defaults);

/// Reads DeepSeek V3's experts, with their grouped sigmoid router, if some layers have any.
void parse_v3_experts(ConfigReader& json, ModelConfig& config, const MlaDefaults& defaults);

/// Reads dense latent attention, RoPE, and the experts with their grouped sigmoid router.
void parse_mla(ConfigReader& json, ModelConfig& config, const MlaDefaults& defaults);

/// Makes the problem sparse: index_n_heads, index_head_dim, index_topk, the pairing of the
/// indexer's RoPE (`pairing` if indexer_rope_interleave is absent). Every layer has an indexer.
void parse_indexer(ConfigReader& json, ModelConfig& config, RopePairing pairing);

/// Reads which layers have an indexer: indexer_types, or index_topk_pattern, or index_topk_freq
/// (`every` if absent) and index_skip_topk_offset.
void parse_indexer_types(ConfigReader& json, ModelConfig& config, std::int32_t every = 1);

}  // namespace lathe
