// ModelConfig: what a checkpoint's config.json and generation_config.json say, in one form for all
// architectures. Forward code asks its fields, never an architecture's name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attn/model_plan.h"
#include "base/result.h"
#include "layout/rope.h"
#include "ops/moe.h"

namespace lathe {

/// Projections of latent attention (arXiv 2405.04434). Dims of the cached row are in the problem.
struct MlaConfig {
  std::int32_t q_lora = 0;  // 0: q is one projection
  // DeepSeek V3.2's indexer; its rotary part is as wide as the latent's and comes first.
  RopePairing index_pairing = RopePairing::split_half;
  // [layers] 1: its own indexer, 0: the selection of the last layer that has one. Empty where every
  // layer of a sparse problem has one.
  std::vector<std::uint8_t> own_indexer;
  // DeepSeek V4's output projection: the heads of each of o_groups groups to o_lora elements, then
  // all of them to the hidden size. 0: one product.
  std::int32_t o_groups = 0;
  std::int32_t o_lora = 0;
};

/// Manifold-constrained hyper-connections (DeepSeek V4): a row's residual state is `streams` rows,
/// which every part of a layer mixes (ops/hyper.h).
struct HyperConfig {
  std::int32_t streams = 0;     // 0: the residual state is one row
  std::int32_t iterations = 0;  // of Sinkhorn's normalisation
  float eps = 0;
};

struct MoeConfig {
  std::int32_t experts = 0;  // 0: every layer is dense
  std::int32_t ffn = 0;      // width of one expert
  std::int32_t shared = 0;   // experts that every token takes, as one of width shared * ffn
  std::int32_t top_k = 0;
  RouterScoring scoring = RouterScoring::softmax;
  std::int32_t groups = 1;
  std::int32_t top_groups = 1;
  bool correction_bias = false;  // e_score_correction_bias in the checkpoint
  // The first layers take the experts that a table gives for the token's id (DeepSeek V4).
  std::int32_t hash_layers = 0;
  bool normalize = true;
  float scale = 1;
  // gpt-oss: biases on the router and the experts, whose gate and up projections are interleaved in
  // one tensor of all experts.
  bool stacked = false;
  std::vector<std::uint8_t> layer_has_experts;  // [layers]
};

/// Sampling defaults that generation_config.json gives; unset where it does not. `do_sample: false`
/// is temperature 0.
struct GenerationDefaults {
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<std::int32_t> top_k;
  std::optional<float> repetition_penalty;
};

/// Layers that share an attention problem and its rotary embedding.
struct LayerGroupConfig {
  std::string name;          // "full", "window"; unique in a model
  AttentionProblem problem;  // heads, dims, scale, top-k, window: what the planner gets
  RopeConfig rope;
  std::vector<std::int32_t> layers;  // ascending
};

struct ModelConfig {
  std::string architecture;  // "DeepseekV3ForCausalLM"
  std::int32_t vocab = 0;
  std::int32_t hidden = 0;
  std::int32_t layers = 0;
  std::int32_t ffn = 0;  // of dense layers
  std::int32_t max_context = 0;
  float norm_eps = 1e-6f;
  bool tied_embeddings = false;
  bool attention_bias = false;      // on q, k and v (Qwen 2); latent: on the down projections
  bool attention_out_bias = false;  // on the output projection
  bool qk_norm = false;             // RMSNorm per head of q and k (Qwen 3)
  bool post_norms = false;          // RMSNorm of what attention and feed-forward add (Gemma)
  float norm_offset = 0;            // added to every norm's weight (Gemma: 1)
  bool scaled_embeddings = false;   // by sqrt(hidden), rounded to the embeddings' dtype (Gemma)
  Activation activation;            // of feed-forward layers

  std::vector<LayerGroupConfig> groups;  // at least one; every layer is in one of them
  MlaConfig mla;                         // latent and window_compressed problems
  HyperConfig hyper;
  MoeConfig moe;

  bool block_fp8 = false;  // e4m3 weights with scales of blocks of 128 x 128
  bool mxfp4 = false;  // experts in MXFP4: stacked, as <name>_blocks and <name>_scales (gpt-oss),
                       // or one by one beside block_fp8 (DeepSeek V4)
  // Draft layers that the checkpoint may hold past `layers`; their tensors are read with `drafts`
  // alone.
  std::int32_t draft_layers = 0;
  // Draft steps after the first take the keys that the first has chosen (GLM 5.2).
  bool shared_draft_choice = false;
  // The draft layer's group where it is of no layer's kind (DeepSeek V4 Pro).
  std::optional<LayerGroupConfig> draft_group;
  bool draft_blocks = false;  // tensors of draft layers are DSpark's blocks, which do not run
  bool drafts = false;  // the one draft layer runs, as layer number `layers`: add_draft_layer()

  std::optional<std::int32_t> bos;
  std::vector<std::int32_t> eos;  // any of them ends an answer
  GenerationDefaults generation;

  /// Layers with weights and keys: the model's and a draft layer that runs.
  std::int32_t cached_layers() const { return layers + (drafts ? 1 : 0); }
  /// Elements of the state behind the last layer that a draft layer reads of a row.
  std::int64_t state_width() const {
    return std::int64_t{hyper.streams > 0 ? hyper.streams : 1} * hidden;
  }
  /// Place in `groups` of a layer's. Precondition: 0 <= layer < cached_layers().
  std::size_t group_of(std::int32_t layer) const;
  const AttentionProblem& attention(std::int32_t layer) const {
    return groups[group_of(layer)].problem;
  }
  /// The one group of an architecture whose layers are all alike, made where there is none yet.
  LayerGroupConfig& all_layers();

  /// What the planner gets.
  std::vector<LayerGroup> layer_groups() const;

  /// Layers are of one family: latent (dense or sparse), window_compressed or grouped_query.
  bool latent() const {
    return !compressed() && groups.front().problem.kind != ProblemKind::grouped_query;
  }
  /// DeepSeek V4's layers; their tensors have DeepSeek's published names.
  bool compressed() const { return groups.front().problem.kind == ProblemKind::window_compressed; }
};

/// Architectures that this build runs, as config.json names them.
std::vector<std::string> known_architectures();

/// `generation_json` may be empty. Errors, naming the key: JSON that does not parse; an unknown
/// architecture (lists the known ones); a missing, mistyped or impossible value; a feature that is
/// not supported (a rope type, an activation, a quantisation), named.
Result<ModelConfig> parse_model_config(std::string_view config_json,
                                       std::string_view generation_json = {});

/// config.json and, where it exists, generation_config.json of a checkpoint's directory.
Result<ModelConfig> load_model_config(const std::string& directory);

}  // namespace lathe
