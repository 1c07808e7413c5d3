#include "model/weights/tensor_table_v4.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "attn/compressor.h"
#include "model/weights/tensor_part.h"

namespace lathe {
namespace {

class V4Table {
 public:
  V4Table(const ModelConfig& config, ModelWeights& into, const Share& share)
      : c_(config), w_(into), share_(share) {}

  std::vector<TensorSpec> build() {
    out_.reserve(
        static_cast<std::size_t>(c_.cached_layers() * (32 + std::int64_t{3} * c_.moe.experts)));
    matrix("embed.weight", c_.vocab, c_.hidden, w_.embedding).part.rows = share_.vocab;
    for (std::int32_t l = 0; l < c_.layers; ++l) layer(l, fmt::format("layers.{}.", l));
    if (c_.drafts) draft("mtp.0.", w_.draft);
    vector("norm.weight", {c_.hidden}, w_.final_norm);
    hyper("hc_head_", c_.hyper.streams, 1, w_.head_hyper);
    if (!c_.tied_embeddings) {
      matrix("head.weight", c_.vocab, c_.hidden, w_.head).part.rows = share_.vocab;
    }
    return std::move(out_);
  }

 private:
  void layer(std::int32_t l, const std::string& stem) {
    LayerWeights& w = w_.layers[static_cast<std::size_t>(l)];
    const std::int64_t n = c_.hyper.part_columns();
    vector(stem + "attn_norm.weight", {c_.hidden}, w.attention_norm);
    vector(stem + "ffn_norm.weight", {c_.hidden}, w.ffn_norm);
    hyper(stem + "hc_attn_", n, 3, w.attention_hyper);
    hyper(stem + "hc_ffn_", n, 3, w.ffn_hyper);
    attention(stem + "attn.", c_.attention(l), w);
    experts(stem + "ffn.", l < c_.moe.hash_layers, w.moe);
  }

  void draft(const std::string& stem, DraftWeights& w) {
    vector(stem + "enorm.weight", {c_.hidden}, w.embedding_norm);
    vector(stem + "hnorm.weight", {c_.hidden}, w.hidden_norm);
    linear(stem + "e_proj.weight", c_.hidden, c_.hidden, w.embedding_join);
    linear(stem + "h_proj.weight", c_.hidden, c_.hidden, w.stream_join);
    layer(c_.layers, stem);
    hyper(stem + "hc_head_", c_.hyper.streams, 1, w.head_hyper);
    vector(stem + "norm.weight", {c_.hidden}, w.out_norm);
  }

  void hyper(const std::string& stem, std::int64_t n, std::int64_t scales, HyperWeights& w) {
    matrix(stem + "fn", n, std::int64_t{c_.hyper.streams} * c_.hidden, w.fn).f32 = true;
    vector(stem + "base", {n}, w.base);
    vector(stem + "scale", {scales}, w.scale);
  }

  void attention(const std::string& stem, const AttentionProblem& p, LayerWeights& layer) {
    CompressedWeights& w = layer.compressed;
    const std::int64_t key = p.qk_dim();
    linear(stem + "wq_a.weight", c_.mla.q_lora, c_.hidden, w.q_a);
    vector(stem + "q_norm.weight", {c_.mla.q_lora}, w.q_a_norm);
    linear(stem + "wq_b.weight", p.heads * key, c_.mla.q_lora, w.q_b).part.rows =
        times(share_.heads, key);
    linear(stem + "wkv.weight", key, c_.hidden, w.kv);
    vector(stem + "kv_norm.weight", {key}, w.kv_norm);
    vector(stem + "attn_sink", {p.heads}, w.sink).part.rows = share_.heads;
    const std::int64_t o_rows = std::int64_t{c_.mla.o_groups} * c_.mla.o_lora;
    const Range o_part = times(share_.o_groups, c_.mla.o_lora);
    w.out_a = WeightStack::of(share_.o_groups.count, DType::f32, c_.mla.o_lora,
                              p.heads / c_.mla.o_groups * key);
    TensorSpec& out_a = add(stem + "wo_a.weight", {o_rows, w.out_a.cols});
    out_a.stack = &w.out_a;
    out_a.part.rows = o_part;
    out_a.joined = out_a.linear = true;
    linear(stem + "wo_b.weight", c_.hidden, o_rows, w.out_b).part.cols = o_part;
    if (!p.two_sources()) return;
    compressor(stem + "compressor.", p, key, w.compressor);
    if (!p.sparse()) return;
    IndexerWeights& index = layer.indexer;
    linear(stem + "indexer.wq_b.weight", std::int64_t{p.index_heads} * p.index_dim, c_.mla.q_lora,
           index.q)
        .compared = true;
    linear(stem + "indexer.weights_proj.weight", p.index_heads, c_.hidden, index.weights).compared =
        true;
    compressor(stem + "indexer.compressor.", p, p.index_dim, index.compressor);
  }

  void compressor(const std::string& stem, const AttentionProblem& p, std::int64_t dim,
                  CompressorWeights& w) {
    const std::int64_t width = compressor_halves(p) * dim;
    matrix(stem + "wkv.weight", width, c_.hidden, w.kv).compared = true;  // as index keys
    matrix(stem + "wgate.weight", width, c_.hidden, w.gate).compared = true;
    vector(stem + "ape", {p.compress_ratio, width}, w.position_bias);
    vector(stem + "norm.weight", {dim}, w.norm);
  }

  void experts(const std::string& stem, bool hash, MoeWeights& w) {
    const MoeConfig& moe = c_.moe;
    matrix(stem + "gate.weight", moe.experts, c_.hidden, w.router).compared = true;
    if (hash) {
      TensorSpec& spec = add(stem + "gate.tid2eid", {c_.vocab, moe.top_k});
      spec.ids = &w.token_experts;
      spec.id_end = moe.experts;
    } else {
      vector(stem + "gate.bias", {moe.experts}, w.bias);
    }
    ExpertStacks& e = w.experts;
    const Range& local = share_.expert_width;
    e.gate = e.up = WeightStack::of(share_.experts.count, DType::f32, local.count, c_.hidden);
    e.down = WeightStack::of(share_.experts.count, DType::f32, c_.hidden, local.count);
    for (std::int32_t i = 0; i < moe.experts; ++i) {
      const std::string expert = fmt::format("{}experts.{}.", stem, i);
      const TensorPart up = expert_part(share_, i, {local, {0, c_.hidden}});
      const TensorPart down = expert_part(share_, i, {{0, c_.hidden}, local});
      stacked(expert + "w1.weight", {moe.ffn, c_.hidden}, up, i, e.gate, e.gate);
      stacked(expert + "w3.weight", {moe.ffn, c_.hidden}, up, i, e.up, e.gate);
      stacked(expert + "w2.weight", {c_.hidden, moe.ffn}, down, i, e.down, e.down);
    }
    if (moe.shared == 0) return;
    const std::int64_t width = moe.shared_width();
    const Range& part = share_.shared;
    linear(stem + "shared_experts.w1.weight", width, c_.hidden, w.shared.gate).part.rows = part;
    linear(stem + "shared_experts.w3.weight", width, c_.hidden, w.shared.up).part.rows = part;
    linear(stem + "shared_experts.w2.weight", c_.hidden, width, w.shared.down).part.cols = part;
  }

  TensorSpec& add(std::string name, std::vector<std::int64_t> shape) {
    TensorSpec& spec = out_.emplace_back();
    spec.name = std::move(name);
    spec.shape = std::move(shape);
    spec.part.rows = {0, spec.shape[0]};
    if (spec.shape.size() > 1) spec.part.cols = {0, spec.shape[1]};
    return spec;
  }
  TensorSpec& matrix(std::string name, std::int64_t rows, std::int64_t cols, WeightView& to) {
    TensorSpec& spec = add(std::move(name), {rows, cols});
    spec.matrix = &to;
    return spec;
  }
  TensorSpec& linear(std::string name, std::int64_t rows, std::int64_t cols, WeightView& to) {
    TensorSpec& spec = matrix(std::move(name), rows, cols, to);
    spec.linear = true;
    return spec;
  }
  TensorSpec& vector(std::string name, std::vector<std::int64_t> shape, Vector& to) {
    TensorSpec& spec = add(std::move(name), std::move(shape));
    spec.vector = &to;
    return spec;
  }
  void stacked(std::string name, std::vector<std::int64_t> shape, const TensorPart& part,
               std::int64_t expert, WeightStack& to, const WeightStack& like) {
    TensorSpec& spec = add(std::move(name), std::move(shape));
    spec.part = part;
    spec.stack = &to;
    spec.place = part.empty() ? -1 : expert - share_.experts.first;
    spec.like = &like;
    spec.linear = spec.may_be_mx = true;
  }

  const ModelConfig& c_;
  ModelWeights& w_;
  const Share& share_;
  std::vector<TensorSpec> out_;
};

// Whole names of tensors outside layers.
constexpr std::array kWholeNames = {
    Renamed{"embed_tokens.weight", "embed.weight"}, Renamed{"lm_head.weight", "head.weight"},
    Renamed{"hc_head.hc_fn", "hc_head_fn"},         Renamed{"hc_head.hc_base", "hc_head_base"},
    Renamed{"hc_head.hc_scale", "hc_head_scale"},
};

// Parts of names, replaced in this order: transformers' modules, then save_pretrained()'s name of
// kv_norm.
constexpr std::array kParts = {
    Renamed{".self_attn.", ".attn."},
    Renamed{".mlp.", ".ffn."},
    Renamed{".input_layernorm.", ".attn_norm."},
    Renamed{".post_attention_layernorm.", ".ffn_norm."},
    Renamed{".attn_hc.", ".hc_attn_"},
    Renamed{".ffn_hc.", ".hc_ffn_"},
    Renamed{".compressor.indexer.q_b_proj.", ".indexer.wq_b."},
    Renamed{".compressor.indexer.scorer.", ".indexer."},
    Renamed{".compressor.indexer.weights_proj.", ".indexer.weights_proj."},
    Renamed{".compressor.indexer.", ".indexer.compressor."},
    Renamed{".compressor.kv_proj.", ".compressor.wkv."},
    Renamed{".compressor.gate_proj.", ".compressor.wgate."},
    Renamed{".compressor.kv_norm.", ".compressor.norm."},
    Renamed{".compressor.position_bias", ".compressor.ape"},
    Renamed{".attn.q_a_proj.", ".attn.wq_a."},
    Renamed{".attn.q_a_norm.", ".attn.q_norm."},
    Renamed{".attn.q_b_proj.", ".attn.wq_b."},
    Renamed{".attn.kv_proj.", ".attn.wkv."},
    Renamed{".attn.o_a_proj.", ".attn.wo_a."},
    Renamed{".attn.o_b_proj.", ".attn.wo_b."},
    Renamed{".attn.sinks", ".attn.attn_sink"},
    Renamed{".attn.norm.", ".attn.kv_norm."},
    Renamed{".gate.e_score_correction_bias", ".gate.bias"},
    Renamed{".gate_proj.", ".w1."},
    Renamed{".down_proj.", ".w2."},
    Renamed{".up_proj.", ".w3."},
    Renamed{".weight_scale_inv", ".scale"},
};

}  // namespace

std::vector<TensorSpec> v4_table(const ModelConfig& config, ModelWeights& into,
                                 const Share& share) {
  return V4Table(config, into, share).build();
}

std::string published_v4_name(std::string_view name) {
  constexpr std::string_view kPrefix = "model.";
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  for (const auto& [from, to] : kWholeNames) {
    if (name == from) return std::string(to);
  }
  std::string out(name);
  if (!name.starts_with("layers.")) return out;
  for (const auto& [from, to] : kParts) {
    if (const std::size_t at = out.find(from); at != std::string::npos) {
      out.replace(at, from.size(), to);
    }
  }
  return out;
}

}  // namespace lathe
