// The weights of a model: matrices as the checkpoint stores them, norm weights and biases in f32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <unordered_set>
#include <vector>

#include "attn/attend.h"
#include "attn/ranks.h"
#include "base/memory.h"
#include "base/result.h"
#include "base/threads.h"
#include "io/checkpoint/checkpoint.h"
#include "kernels/linear.h"
#include "kernels/moe.h"
#include "layout/codec/codec.h"
#include "model/config/config.h"
#include "model/model.h"

namespace lathe {

/// Norm weights and biases, widened; the memory is ModelWeights'.
using Vector = std::span<const float>;

/// An optional vector as operators read it: null if it is empty.
inline const float* data_or_null(Vector v) { return v.empty() ? nullptr : v.data(); }

struct GqaWeights {
  // [heads * head_dim, hidden]; with OutputGate::with_q each head's rows are q, then the gate.
  WeightView q;
  WeightView k;    // [kv_heads * head_dim, hidden]; empty: the layer reads another's keys
  WeightView v;    // [kv_heads * v_head_dim, hidden]; empty: v is k
  WeightView out;  // [hidden, heads * v_head_dim]
  Vector q_bias, k_bias, v_bias, out_bias;  // or empty
  Vector q_norm, k_norm;                    // [head_dim], [all heads * head_dim], or empty
  // With norms over all heads q and k have those of all ranks, and this rank's begin at these rows.
  std::int64_t q_first = 0, k_first = 0;
  Vector sink;  // [heads], or empty
};

/// A delta-rule layer. Columns and heads are as in kernels/delta_rule.h.
struct DeltaWeights {
  WeightView q, k, v;                // [key_cols, hidden] twice, [value_cols, hidden]
  WeightView gate;                   // [value_cols, hidden or gate_down.rows]
  WeightView beta;                   // [heads, hidden]
  WeightView decay;                  // [gate_cols, hidden or decay_down.rows]
  WeightView gate_down, decay_down;  // [rank, hidden] before gate and decay; empty: one matrix
  // DeltaTensors::key_heads, instead of all these: for each key head its rows of q, k, v and gate,
  // and its rows of beta and decay.
  WeightView qkvz, ba;
  WeightView out;                 // [hidden, value_cols]
  Vector q_conv, k_conv, v_conv;  // [columns, taps], joined in `conv` on loading
  Vector conv;                    // [channels, taps]
  Vector a_log;                   // [heads]
  Vector dt_bias;                 // [gate_cols]
  Vector norm;                    // [dv]
};

struct MlaWeights {
  WeightView q_a;  // [q_lora, hidden]; empty without q_lora
  // [heads * (qk_nope_head + rope), q_lora or hidden]; with OutputGate::with_q_b each head also has
  // v_head rows of the gate, and there are 2 q_lora columns.
  WeightView q_b;
  WeightView kv_a;                       // [nope + rope, hidden]
  WeightView kv_b;                       // [heads * (qk_nope_head + v_head), nope]
  WeightView out;                        // [hidden, heads * v_head]
  Vector q_a_bias, kv_a_bias, out_bias;  // or empty
  Vector q_a_norm;                       // [q_lora]
  Vector kv_a_norm;                      // [nope]
  WeightView gate;                       // [heads or heads * v_head, hidden], or empty
  Vector sink;                           // [heads], or empty

  // kv_b split by heads, for absorbed attention: q_nope uk^T is a latent query, and uv maps a
  // latent to a value. In kv_b's dtype; f32 if that is e4m3 and heads are not whole blocks.
  WeightStack uk;  // [heads] of [nope, qk_nope_head]
  WeightStack uv;  // [heads] of [v_head, nope]
  // For the CPU's kind `ragged`; empty if no route uses it.
  Vector w_uk;  // [heads, qk_nope_head, nope]
  Vector w_uv;  // [heads, v_head, nope]

  Expansion expansion() const { return {w_uk, w_uv, kv_b.data, kv_b.dtype, kv_b.scales}; }
};

/// A compressor for entries of `dim` elements (ops/compress.h); `halves` as in attn/compressor.h.
struct CompressorWeights {
  WeightView kv;         // [halves * dim, hidden]
  WeightView gate;       // [halves * dim, hidden]
  Vector position_bias;  // [compress_ratio, halves * dim]
  Vector norm;           // [dim]
};

struct IndexerWeights {
  WeightView q;                  // [index_heads * index_dim, q_lora]
  WeightView k;                  // [index_dim, hidden]; empty if a compressor makes the keys
  WeightView weights;            // [index_heads, hidden]
  Vector k_norm, k_norm_bias;    // [index_dim]; empty if a compressor makes the keys
  CompressorWeights compressor;  // window_compressed; with an index_pool gate and position_bias
};

/// For window_compressed problems. Heads are as wide as a key, nope + rope.
struct CompressedWeights {
  WeightView q_a;                // [q_lora, hidden]
  WeightView q_b;                // [heads * key, q_lora]
  WeightView kv;                 // [key, hidden]
  WeightStack out_a;             // [o_groups] of [o_lora, heads / o_groups * key]
  WeightView out_b;              // [hidden, o_groups * o_lora]
  Vector q_a_norm;               // [q_lora]
  Vector kv_norm;                // [key]
  Vector sink;                   // [heads]
  CompressorWeights compressor;  // empty without compressed entries
};

/// Stream mixing (ops/hyper.h): n = HyperConfig::part_columns() in a part of a layer, n = streams
/// in the head.
struct HyperWeights {
  WeightView fn;  // [n, streams * hidden]
  Vector base;    // [n]
  Vector scale;   // [3], [2] without iterations; [1] in the head
};

/// A gate of low rank of a normed input (LayerNorms::gate_rank).
struct NormGate {
  WeightView down;  // [rank, hidden], or empty: no gate
  WeightView up;    // [hidden, rank]
};

struct FfnWeights {
  WeightView gate;  // [ffn, hidden]
  WeightView up;    // [ffn, hidden]
  WeightView down;  // [hidden, ffn]
};

struct MoeWeights {
  WeightView router;   // [experts, hidden]
  Vector router_bias;  // [experts] added to the logits, or empty
  Vector bias;         // [experts] added for the choice only, or empty
  // [vocab, top_k] experts of each token; empty if the router chooses.
  std::span<const std::int32_t> token_experts;
  ExpertStacks experts;
  std::int64_t first_expert = 0;  // the id of the stacks' first one
  FfnWeights shared;              // empty without shared experts
  Vector router_norm;             // [hidden] of the router's own input, or empty
  Vector expert_scale;            // [experts] of the experts' weights, or empty
  WeightView shared_gate;         // [1, hidden], or empty
};

/// Parts that the layer does not use stay empty.
struct LayerWeights {
  Vector attention_norm, ffn_norm;                        // [hidden]
  NormGate attention_gate, ffn_gate;                      // of the inputs that they norm
  Vector attention_out_norm, ffn_out_norm;                // [hidden], or empty
  Vector dense_out_norm, experts_norm, experts_out_norm;  // [hidden], or empty
  Vector scale;                                           // [1], or empty
  // Of LayerInputs: [width, hidden], [hidden, width] and [hidden]; or empty.
  WeightView input_gate, input_out;
  Vector input_norm;
  GqaWeights gqa;
  DeltaWeights delta;
  MlaWeights mla;
  CompressedWeights compressed;
  IndexerWeights indexer;
  HyperWeights attention_hyper, ffn_hyper;
  FfnWeights ffn;
  MoeWeights moe;
};

/// A draft layer's input projection, which joins a hidden state with the next token's embedding,
/// and its output norm (arXiv 2412.19437); the layer itself is the last of ModelWeights::layers.
struct DraftWeights {
  Vector embedding_norm, hidden_norm;  // [hidden]
  WeightView join;  // [hidden, 2 hidden] columns of the embedding, then of the state
  // With streams, instead of `join`: [hidden, hidden] for the embedding and for each stream.
  WeightView embedding_join, stream_join;
  HyperWeights head_hyper;  // with streams
  Vector out_norm;          // [hidden] before the head
};

/// Shapes in this file are a whole model's; a rank's weights have its share of heads, widths,
/// experts and vocabulary. Not movable: views and the tensor table point into it.
struct ModelWeights {
  explicit ModelWeights(const ModelConfig& config);
  ModelWeights(const ModelWeights&) = delete;
  ModelWeights& operator=(const ModelWeights&) = delete;

  Share share;           // of this rank
  WeightView embedding;  // [vocab, hidden]
  WeightView head;       // [vocab, hidden]; the embedding if tied
  Vector final_norm;     // [hidden]
  HyperWeights head_hyper;
  // Of LayerInputs, or empty: [its vocab, layers * width], [layers * width, hidden] and [width].
  WeightView input_embedding, input_projection;
  Vector input_norm;
  std::vector<LayerWeights> layers;     // [cached_layers]
  DraftWeights draft;                   // empty without a draft layer
  std::vector<TensorScales> kv_scales;  // [layers] from the checkpoint, or empty

  std::optional<Checkpoint> checkpoint;  // views point into its mapping
  struct Free {
    std::align_val_t align{64};
    void operator()(std::byte* p) const { ::operator delete[](p, align); }
  };
  std::vector<std::unique_ptr<std::byte[], Free>> owned;
  std::vector<OwnedBytes> prepared;           // a backend's copies
  std::unordered_set<const void*> on_device;  // views and stacks that a backend has made
  std::int64_t bytes = 0;                     // total

  /// Allocates `n` bytes that live as long as the weights, aligned to 64 bytes.
  std::byte* take(std::int64_t n);
  float* take_floats(std::int64_t n) {
    return reinterpret_cast<float*>(take(n * static_cast<std::int64_t>(sizeof(float))));
  }
};

/// Rows first .. first + rows - 1 of a matrix. An e4m3 matrix with scales of blocks can only be cut
/// at whole blocks.
WeightView rows_of(const WeightView& w, std::int64_t first, std::int64_t rows);

/// dst[c, r] = src[r, c], elements of `size` bytes.
void transpose(const std::byte* src, std::int64_t rows, std::int64_t cols, std::int64_t size,
               std::byte* dst);

/// Calls body(0) to body(tasks - 1), on the threads if there are any.
void for_each(ThreadPool* threads, std::int64_t tasks,
              const std::function<void(std::int64_t)>& body);

/// Model::step_weights() with absorbed attention.
StepWeights step_weights(const ModelConfig& config, const ModelWeights& weights, std::int64_t rows);

/// Fills `conv` of every delta-rule layer.
void join_convolutions(ModelWeights& weights);

/// Fills uk and uv of every layer from kv_b, and with `expansion` w_uk and w_uv. threads may be
/// null.
void split_kv_b(const ModelConfig& config, bool expansion, ThreadPool* threads,
                ModelWeights& weights);

}  // namespace lathe
