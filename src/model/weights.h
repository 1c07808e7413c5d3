// The weights of a model: matrices as the checkpoint stores them, norm weights and biases in f32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <vector>

#include "attn/attend.h"
#include "base/memory.h"
#include "base/result.h"
#include "base/threads.h"
#include "io/checkpoint.h"
#include "kernels/linear.h"
#include "kernels/moe.h"
#include "layout/codec.h"
#include "model/config.h"

namespace lathe {

/// Norm weights and biases, widened; the memory is ModelWeights'.
using Vector = std::span<const float>;

struct GqaWeights {
  WeightView q;                             // [heads * head_dim, hidden]
  WeightView k;                             // [kv_heads * head_dim, hidden]
  WeightView v;                             // [kv_heads * v_head_dim, hidden]
  WeightView out;                           // [hidden, heads * v_head_dim]
  Vector q_bias, k_bias, v_bias, out_bias;  // or empty
  Vector q_norm, k_norm;                    // [head_dim], or empty
  Vector sink;                              // [heads], or empty
};

struct MlaWeights {
  WeightView q_a;                        // [q_lora, hidden]; empty without q_lora
  WeightView q_b;                        // [heads * (qk_nope_head + rope), q_lora or hidden]
  WeightView kv_a;                       // [nope + rope, hidden]
  WeightView kv_b;                       // [heads * (qk_nope_head + v_head), nope]
  WeightView out;                        // [hidden, heads * v_head]
  Vector q_a_bias, kv_a_bias, out_bias;  // or empty
  Vector q_a_norm;                       // [q_lora]
  Vector kv_a_norm;                      // [nope]

  // kv_b cut by heads. For absorbed attention: q_nope uk^T is a latent query, and uv makes a value
  // of a latent. In kv_b's dtype; f32 where that is e4m3 and heads are not whole blocks of it.
  WeightStack uk;  // [heads] of [nope, qk_nope_head]
  WeightStack uv;  // [heads] of [v_head, nope]
  // For kind `ragged` of the CPU; empty where no route has it.
  Vector w_uk;  // [heads, qk_nope_head, nope]
  Vector w_uv;  // [heads, v_head, nope]

  Expansion expansion() const { return {w_uk, w_uv, kv_b.data, kv_b.dtype, kv_b.scales}; }
};

/// Of entries of `dim` elements (ops/compress.h); halves as attn/compressor.h.
struct CompressorWeights {
  WeightView kv;         // [halves * dim, hidden]
  WeightView gate;       // [halves * dim, hidden]
  Vector position_bias;  // [compress_ratio, halves * dim]
  Vector norm;           // [dim]
};

struct IndexerWeights {
  WeightView q;                  // [index_heads * index_dim, q_lora]
  WeightView k;                  // [index_dim, hidden]; empty where a compressor makes the keys
  WeightView weights;            // [index_heads, hidden]
  Vector k_norm, k_norm_bias;    // [index_dim], or empty likewise
  CompressorWeights compressor;  // window_compressed
};

/// window_compressed. Heads have the width of a key, nope + rope.
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

/// Of a part of a layer, n = 2 streams + streams^2; of the head, n = streams (ops/hyper.h).
struct HyperWeights {
  WeightView fn;  // [n, streams * hidden]
  Vector base;    // [n]
  Vector scale;   // [3]; of the head, [1]
};

struct FfnWeights {
  WeightView gate;  // [ffn, hidden]
  WeightView up;    // [ffn, hidden]
  WeightView down;  // [hidden, ffn]
};

struct MoeWeights {
  WeightView router;   // [experts, hidden]
  Vector router_bias;  // [experts] of the product, or empty
  Vector bias;         // [experts] of the choice, or empty
  // [vocab, top_k] experts of each token; empty where the router chooses.
  std::span<const std::int32_t> token_experts;
  ExpertStacks experts;
  FfnWeights shared;  // empty without shared experts
};

/// What a layer's kind does not use stays empty.
struct LayerWeights {
  Vector attention_norm, ffn_norm;          // [hidden]
  Vector attention_out_norm, ffn_out_norm;  // [hidden], or empty
  GqaWeights gqa;
  MlaWeights mla;
  CompressedWeights compressed;
  IndexerWeights indexer;
  HyperWeights attention_hyper, ffn_hyper;
  FfnWeights ffn;
  MoeWeights moe;
};

/// How a draft layer joins the hidden state after a token with the next token's embedding, and
/// what it gives (arXiv 2412.19437); the layer itself is the last of ModelWeights::layers.
struct DraftWeights {
  Vector embedding_norm, hidden_norm;  // [hidden]
  WeightView join;                     // [hidden, 2 hidden] of the embedding, then of the state
  // With streams, in place of `join`: [hidden, hidden] of the embedding and of every stream.
  WeightView embedding_join, stream_join;
  HyperWeights head_hyper;  // likewise
  Vector out_norm;          // [hidden] before the head
};

/// Stays where it is: views and the tensor table point into it.
struct ModelWeights {
  explicit ModelWeights(const ModelConfig& config);
  ModelWeights(const ModelWeights&) = delete;
  ModelWeights& operator=(const ModelWeights&) = delete;

  WeightView embedding;  // [vocab, hidden]
  WeightView head;       // [vocab, hidden]; the embedding where they are tied
  Vector final_norm;     // [hidden]
  HyperWeights head_hyper;
  std::vector<LayerWeights> layers;     // [cached_layers]
  DraftWeights draft;                   // empty where none runs
  std::vector<TensorScales> kv_scales;  // [layers] that the checkpoint gives, or empty

  std::optional<Checkpoint> checkpoint;  // views point into its mapping
  struct Free {
    std::align_val_t align{64};
    void operator()(std::byte* p) const { ::operator delete[](p, align); }
  };
  std::vector<std::unique_ptr<std::byte[], Free>> owned;
  std::vector<OwnedBytes> prepared;  // what a backend has copied
  std::int64_t bytes = 0;            // of everything

  /// Room for `n` bytes that lives as long as the weights, at a multiple of 64 bytes.
  std::byte* take(std::int64_t n);
  float* take_floats(std::int64_t n) {
    return reinterpret_cast<float*>(take(n * static_cast<std::int64_t>(sizeof(float))));
  }
};

/// Rows first .. first + rows - 1 of a matrix; of a scaled e4m3 one, whole blocks.
WeightView rows_of(const WeightView& w, std::int64_t first, std::int64_t rows);

/// dst[c, r] = src[r, c] of elements of `size` bytes.
void transpose(const std::byte* src, std::int64_t rows, std::int64_t cols, std::int64_t size,
               std::byte* dst);

/// body(0) to body(tasks - 1), on the threads if there are any.
void for_each(ThreadPool* threads, std::int64_t tasks,
              const std::function<void(std::int64_t)>& body);

/// Model::decode_bytes() with absorbed attention. Norms and biases, which caches keep, are left
/// out.
std::int64_t decode_bytes(const ModelConfig& config, const ModelWeights& weights);

/// Fills uk and uv of every layer from kv_b, and w_uk and w_uv where `expansion`. threads may be
/// null.
void split_kv_b(const ModelConfig& config, bool expansion, ThreadPool* threads,
                ModelWeights& weights);

}  // namespace lathe
