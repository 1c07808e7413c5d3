// ModelConfig: the contents of config.json and generation_config.json, in one form for all
// architectures. Forward code reads its fields, never an architecture's name.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attn/delta_rule.h"
#include "base/result.h"
#include "kernels/activation.h"
#include "layout/rope/rope.h"
#include "layout/rope/rope_write.h"
#include "model/config/overrides.h"
#include "model/config/quantization.h"
#include "ops/moe.h"
#include "plan/model_plan.h"

namespace lathe {

/// A part of a tensor's name in a checkpoint, and in its place the one in the tensor table.
struct Renamed {
  std::string_view from, to;
};

/// Projections of latent attention (arXiv 2405.04434). Dims of the cached row are in the problem.
struct MlaConfig {
  std::int32_t q_lora = 0;  // 0: q is one projection
  float norm_eps = 1e-6f;   // of both compressed projections, independent of the model's
  // DeepSeek V3.2's indexer; its rotary part is as wide as the latent's.
  RopePairing index_pairing = RopePairing::split_half;
  RopePlace index_place = RopePlace::first;
  float index_norm_eps = 1e-6f;  // of its keys
  // [layers] 1: has an indexer, 0: uses the selection of the last layer that has one. Empty unless
  // the problem is sparse_latent.
  std::vector<std::uint8_t> own_indexer;
  // DeepSeek V4's output projection: each of o_groups groups of heads to o_lora elements, then all
  // of these to the hidden size. 0: one matrix.
  std::int32_t o_groups = 0;
  std::int32_t o_lora = 0;
};

/// Hyper-connections (DeepSeek V4): a row's residual state has `streams` rows, which every part of
/// a layer reads and adds to (ops/hyper.h).
struct HyperConfig {
  std::int32_t streams = 0;     // 0: the residual state is one row
  std::int32_t iterations = 0;  // of Sinkhorn's normalisation; 0: no part mixes the streams (Hy4)
  float eps = 0;
  float post_scale = 2, post_eps = 0;  // as HyperMix's
  // Names of tensors before fn, base and scale: after "model.layers.N." of each part's, and of the
  // head's, which without a name is the mean of the streams. DeepSeek V4 has a table of its own.
  std::string_view attention = {}, ffn = {}, head = {};

  /// Columns of a part's mixing weights.
  std::int64_t part_columns() const {
    return std::int64_t{streams} * (iterations > 0 ? 2 + streams : 2);
  }
};

/// Names and forms of a delta-rule layer's tensors, after "model.layers.N.".
enum class DeltaTensors {
  projections,  // linear_attn.in_proj_qkv, in_proj_z, in_proj_b, in_proj_a (Qwen 3.5)
  // linear_attn.in_proj_qkvz and in_proj_ba: for each key head its q and k, and the v and z, or b
  // and a, of its value heads (Qwen 3 Next)
  key_heads,
  // self_attn.q_proj, k_proj, v_proj with a convolution each; the gates' projections of low rank
  // (Kimi-Linear)
  kimi,
  bailing,   // as kimi, but one matrix for each gate: f_proj and g_proj (Ling 3)
  low_rank,  // as kimi, but A_log has one axis (GLM 5.3 Flash)
};

/// Layers with a delta rule in place of attention. Each request has a state in each of them.
struct DeltaConfig {
  DeltaRuleProblem problem;
  std::vector<std::int32_t> layers;  // ascending; empty: every layer has attention
  DeltaTensors tensors = DeltaTensors::projections;
};

/// A gate of attention's output, before the output projection.
enum class OutputGate {
  none,
  with_q,  // q_proj has q, then the gate, of each head; output * sigmoid(gate) (Qwen 3 Next)
  // As with_q, in q_b_proj, which reads the compressed query normed, and then as it is (A.X-K2).
  with_q_b,
  heads,     // g_proj has one number for each head; each head's output * sigmoid(it) (Ling 3)
  elements,  // gate_proj has one number for each element of the output (Hy4)
};

/// Names of a draft layer's tensors.
enum class DraftTensors {
  last_layer,  // model.layers.N, where N is the number of the model's layers (DeepSeek, GLM)
  mtp,         // mtp.fc, mtp.layers.0, .. (Qwen 3 Next, 3.5)
};

/// Names of experts' tensors, after "model.layers.N.".
struct ExpertNames {
  std::string_view part = "mlp.";  // precedes all others
  std::string_view alone = {};     // ... in layers without experts; empty: as `part` (Kimi-Linear)
  std::string_view router = "gate.weight";
  std::string_view correction_bias = "gate.e_score_correction_bias";
  std::string_view gate = "gate_proj", up = "up_proj", down = "down_proj";
  std::string_view shared = "shared_experts.";
  // Precedes names of a dense part next to the experts, in layers that have both (Gemma 4).
  std::string_view dense = {};
  // The router's RMSNorm of the residual state, whose weight is this one / sqrt(hidden); and
  // factors of the experts' weights. Empty: there are none.
  std::string_view router_scale = {}, expert_scale = {};
};

struct MoeConfig {
  std::int32_t experts = 0;     // 0: every layer is dense
  std::int32_t ffn = 0;         // width of one expert
  std::int32_t shared = 0;      // experts for every token, merged into one of width shared_width()
  std::int32_t shared_ffn = 0;  // width of one of them; 0: ffn
  // The shared experts' output is multiplied by sigmoid(gate x), one number of each row (Qwen 2
  // MoE).
  bool shared_gate = false;
  std::int32_t top_k = 0;
  std::optional<Activation> activation = {};  // of routed experts, if not the model's (Hy4)
  RouterScoring scoring = RouterScoring::softmax;
  std::int32_t groups = 1;
  std::int32_t top_groups = 1;
  std::int32_t group_best = 2;   // experts that a group is ranked by
  bool correction_bias = false;  // e_score_correction_bias in the checkpoint
  // The first layers look up their experts by the token's id (DeepSeek V4).
  std::int32_t hash_layers = 0;
  bool normalize = true;
  float scale = 1;
  bool weighs_inputs = false;  // as Router's (Llama 4)
  // gpt-oss: router and experts have biases; one tensor holds all experts, with gate and up
  // projections interleaved.
  bool stacked = false;
  // With stacked: gate projections first, then up projections, and no biases (Qwen 3 VL, Llama 4).
  bool halves = false;
  std::vector<std::uint8_t> layer_has_experts;  // [layers]
  ExpertNames names;

  std::int64_t shared_width() const {
    return std::int64_t{shared} * (shared_ffn > 0 ? shared_ffn : ffn);
  }
};

/// Names of the RMSNorms of a layer of grouped-query or latent attention, without ".weight". Empty:
/// the layer has no such norm. Both norms of outputs are there, or neither.
struct LayerNorms {
  std::string_view attention = "input_layernorm";     // of the residual state, before attention
  std::string_view attention_out = {};                // of attention's output, before it is added
  std::string_view ffn = "post_attention_layernorm";  // of the residual state, before feed-forward
  std::string_view ffn_out = {};                      // of feed-forward's output
  // Of a layer with a dense part and experts (ExpertNames::dense): both read the residual state,
  // the dense one by `ffn`, and ffn_out is of the sum of their normed outputs.
  std::string_view dense_out = {}, experts = {};
  // Of the experts' output, shared ones included: in such a layer, or alone (A.X-K1).
  std::string_view experts_out = {};
  // Rank of a gate of normed inputs, y * sigmoid(W_up silu(W_down y)): of attention's, and of the
  // experts' in layers that have them (A.X-K2). The norm's weight is then <name>.norm.weight. 0:
  // there is none.
  std::int32_t gate_rank = 0;

  bool of_outputs() const { return !attention_out.empty(); }
  /// Whether every part's output is added as it is.
  bool of_inputs_alone() const { return attention_out.empty() && experts_out.empty(); }
};

/// Which parts of q and k an RMSNorm takes: each head, or all heads together (OLMo 2, MiniMax M2).
enum class QkNorm { none, heads, whole };

/// Inputs of layers besides the residual state (Gemma 4 E2B, E4B). For each token and layer they
/// are the sum of an embedding's row and a projection of the token's embedding, normed. After
/// feed-forward a layer adds the norm of W_out (activation(W_gate x) * its input).
struct LayerInputs {
  std::int32_t width = 0;  // of one layer's; 0: there are none
  std::int32_t vocab = 0;  // rows of the embedding
};

/// Sampling defaults of generation_config.json; unset where it gives none. `do_sample: false` is
/// temperature 0, `do_sample: true` without a temperature is 1.
struct GenerationDefaults {
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<std::int32_t> top_k;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
};

/// Layers that share an attention problem and its rotary embedding.
struct LayerGroupConfig {
  std::string name;                  // "full", "window"; unique in a model
  AttentionProblem problem;          // heads, dims, scale, top-k, window: the planner's input
  RopeConfig rope;                   // grouped-query: the first rope.dim elements of a head
  std::vector<std::int32_t> layers;  // ascending
  std::optional<RopeGrowth> query_growth = std::nullopt;  // grouped-query and MLA
  bool values_are_keys = false;  // grouped-query: v is k before its norm and RoPE; no v_proj
  bool unit_qk_norm = false;     // RMSNorm without weight on each head of q and k (Llama 4)
  // Layers that read the keys and values of the last one of `layers`, and have none of their own
  // (Gemma 4 E2B, E4B). Ascending.
  std::vector<std::int32_t> readers = {};
};

struct ModelConfig {
  std::string architecture;  // "DeepseekV3ForCausalLM"
  bool text_tower = false;   // of a model that also reads images, which are not supported
  std::int32_t vocab = 0;
  std::int32_t hidden = 0;
  std::int32_t layers = 0;
  std::int32_t ffn = 0;  // of dense layers
  std::int32_t max_context = 0;
  float norm_eps = 1e-6f;
  bool tied_embeddings = false;
  bool attention_bias = false;      // on q, k and v (Qwen 2); latent: on the down projections
  bool attention_out_bias = false;  // on the output projection
  bool fused_qkv = false;           // one tensor, qkv_proj, has q, k and v (Phi 3)
  bool fused_gate_up = false;       // one tensor, gate_up_proj, has gate and up (GLM 4, Phi 3)
  LayerNorms norms;
  QkNorm qk_norm = QkNorm::none;
  OutputGate output_gate = OutputGate::none;
  bool value_norm = false;               // RMSNorm without weight on each head of v
  float value_scale = 1;                 // of values
  std::string_view sink_name = "sinks";  // after "self_attn."
  float norm_offset = 0;                 // added to every norm's weight (Gemma: 1)
  float embedding_scale = 1;             // of token embeddings
  // The scale is rounded to the embeddings' dtype (Gemma).
  bool rounded_embedding_scale = false;
  float logit_scale = 1;  // of logits
  float logit_cap = 0;    // logits become cap * tanh(logits / cap); 0: they stay
  LayerInputs layer_inputs;
  std::int32_t reader_ffn = 1;       // width of dense parts in layers that read others' keys: x ffn
  std::span<const Renamed> renames;  // of tensors, in this order
  // Name of a tensor of one number, which multiplies the residual state after the layer. Empty:
  // there is none.
  std::string_view layer_scale = {};
  Activation activation;  // of feed-forward layers

  // At least one. Every layer is in exactly one, as one of its layers or readers, or in `delta`.
  std::vector<LayerGroupConfig> groups;
  DeltaConfig delta;
  MlaConfig mla;  // latent and window_compressed problems
  HyperConfig hyper;
  MoeConfig moe;

  Quantization quantization = Quantization::none;
  bool block_fp8 = false;       // e4m3 weights with scales of blocks of 128 x 128
  bool fp8_pow2 = false;        // with fp8 weights: scales of activations are powers of two
  bool nvfp4_experts = false;   // with mxfp4: the experts are in NVFP4 instead (DeepSeek V4)
  std::int32_t int4_group = 0;  // int4: weights of a row that share a scale: 32, 64 or 128
  bool int4_zeros = false;      // int4: groups have zero points
  // int4: columns may not be in order of their groups (GPTQ's desc_act, compressed-tensors'
  // actorder).
  bool int4_order = false;
  bool int4_all_ordered = false;  // all int4 groups of compressed-tensors are so
  bool gptq_v2 = false;           // stored zero points are as they are, not one less
  bool mxfp4 = false;  // experts in MXFP4: stacked, as <name>_blocks and <name>_scales (gpt-oss),
                       // or one by one with block_fp8 (DeepSeek V4)
  // Draft layers that the checkpoint may have after `layers`; their tensors are read only with
  // `drafts`.
  std::int32_t draft_layers = 0;
  DraftTensors draft_tensors = DraftTensors::last_layer;
  // Later draft steps reuse the keys that the first has chosen (GLM 5.2).
  bool shared_draft_choice = false;
  // The draft layer's group, if no other layer is like it (DeepSeek V4 Pro).
  std::optional<LayerGroupConfig> draft_group;
  bool draft_blocks = false;  // the draft layers are DSpark blocks, which are not supported
  bool drafts = false;  // the one draft layer runs, as layer number `layers`: add_draft_layer()

  std::optional<std::int32_t> bos;
  std::vector<std::int32_t> eos;  // each of them ends an answer
  GenerationDefaults generation;

  /// Whether some weights are e4m3.
  bool has_fp8() const { return block_fp8 || quantization == Quantization::fp8_rows; }
  /// Layers with weights and keys: the model's and a draft layer that runs.
  std::int32_t cached_layers() const { return layers + (drafts ? 1 : 0); }
  /// Elements of a row's state after the last layer that a draft layer reads.
  std::int64_t state_width() const {
    return std::int64_t{hyper.streams > 0 ? hyper.streams : 1} * hidden;
  }
  /// Keys that later uses of the draft layer reuse from the first one; 0: each selects its own.
  std::int64_t shared_choice_width() const {
    const bool shares =
        drafts && shared_draft_choice && is_mla() && groups.front().problem.sparse();
    return shares ? groups.front().problem.top_k : 0;
  }
  /// Whether the layer has a delta rule in place of attention.
  bool is_delta(std::int32_t layer) const;
  /// Whether the layer reads another's keys and values.
  bool is_reader(std::int32_t layer) const;
  /// Index into `groups` of the layer's group. A delta-rule layer has the steps of the first one.
  /// Precondition: 0 <= layer < cached_layers().
  std::size_t group_of(std::int32_t layer) const;
  /// Precondition: the layer has attention.
  const AttentionProblem& attention(std::int32_t layer) const {
    return groups[group_of(layer)].problem;
  }
  /// The only group of an architecture with layers of one kind; created on first use.
  LayerGroupConfig& all_layers();

  /// The groups as the planner's input.
  std::vector<LayerGroup> layer_groups() const;

  // All layers with attention are of one family: MLA, compressed, or else grouped_query
  // (layer_flags.h).
  /// Multi-head latent attention of DeepSeek V2 to V3.2 and GLM-5: dense_latent or sparse_latent.
  bool is_mla() const {
    return !is_compressed() && groups.front().problem.kind != ProblemKind::grouped_query;
  }
  /// DeepSeek V4's attention (window_compressed). It caches latents as well, but has weights,
  /// layers and tensor names of its own.
  bool is_compressed() const {
    return groups.front().problem.kind == ProblemKind::window_compressed;
  }
};

/// Supported architectures, by their names in config.json.
std::vector<std::string> known_architectures();

/// `generation_json` and `hf_quant_json` may be empty. `overrides` are keys of the text model.
/// Errors, naming the key: JSON that does not parse; an unknown architecture (lists the known
/// ones); a missing, mistyped or impossible value; an unsupported feature (a rope type, an
/// activation, a quantisation), by name.
Result<ModelConfig> parse_model_config(std::string_view config_json,
                                       std::string_view generation_json = {},
                                       const ConfigOverrides& overrides = {},
                                       std::string_view hf_quant_json = {});

/// config.json and, where they exist, generation_config.json and hf_quant_config.json (ModelOpt's
/// description of a quantisation) of a checkpoint's directory. Errors: parse_model_config()'s;
/// check_model_path()'s (io/files/model_path.h); files that cannot be read.
Result<ModelConfig> load_model_config(const std::string& directory,
                                      const ConfigOverrides& overrides = {});

}  // namespace lathe
