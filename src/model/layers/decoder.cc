#include "model/layers/decoder.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include "base/check.h"
#include "base/float_formats.h"
#include "base/rows.h"
#include "model/layers/compressed_attention.h"
#include "model/layers/delta_layer.h"
#include "model/layers/feed_forward.h"
#include "model/layers/gqa_attention.h"
#include "model/layers/input_norm.h"
#include "model/layers/layer_context.h"
#include "model/layers/layer_inputs.h"
#include "model/layers/mla_attention.h"
#include "model/layers/part_sum.h"
#include "model/layers/stream_layer.h"
#include "ops/cache_write.h"
#include "ops/elementwise.h"
#include "ops/exchange.h"
#include "ops/hyper.h"
#include "ops/matmul.h"

namespace lathe {
namespace {

// Finds where NaN or Inf first appears in each row.
class NonFiniteSearch {
 public:
  NonFiniteSearch(const OpsContext& ops, std::int64_t rows, bool active)
      : ops_(ops), rows_(active ? rows : 0), first_(ops.tensors->take_array<std::int32_t>(rows_)) {
    if (!active) return;
    const Arena::Scope scope(*ops.control);
    const auto finite = ops.control->take_array<std::int32_t>(rows);
    std::fill_n(finite, rows, kFinite);
    uploaded_ = ops.backend->upload(ops, std::as_bytes(std::span(finite, count())),
                                    reinterpret_cast<std::byte*>(first_));
  }
  /// Row i of x is row rows[i] of the batch, or row i if `rows` is empty.
  void look(const RowsView& x, std::span<const std::int32_t> rows, std::int32_t layer) {
    if (rows_ > 0) find_non_finite(ops_, {x, rows, layer, {first_, count()}});
  }
  Result<ForwardResult> result() const {
    ForwardResult out;
    if (rows_ == 0) return out;
    if (!uploaded_) return uploaded_.error();
    std::vector<std::int32_t> first(count());
    auto ok = ops_.backend->download(ops_, reinterpret_cast<const std::byte*>(first_),
                                     std::as_writable_bytes(std::span(first)));
    if (!ok) return ok.error();
    for (std::int64_t row = 0; row < rows_; ++row) {
      const std::int32_t layer = first[static_cast<std::size_t>(row)];
      if (layer != kFinite) out.non_finite.push_back({row, layer});
    }
    return out;
  }

 private:
  std::size_t count() const { return static_cast<std::size_t>(rows_); }
  const OpsContext& ops_;
  std::int64_t rows_;
  std::int32_t* first_;  // [rows] as FindNonFinite::first
  Result<void> uploaded_;
};

// One set of tables for all layer groups with the same RoPE.
struct ModelRope {
  std::vector<RopeTables> tables;
  std::vector<std::size_t> of_group;  // [groups] into tables
  std::int64_t positions = 0;
};

class Decoder : public Model {
 public:
  Decoder(const ModelConfig& config, std::unique_ptr<ModelWeights> weights)
      : config_(config), weights_(std::move(weights)) {
    for (std::int32_t l = 0; l < config_.cached_layers(); ++l) {
      group_of_.push_back(config_.group_of(l));
    }
    for (std::size_t g = 0; g < config_.groups.size(); ++g) all_groups_.push_back(g);
    const std::int32_t ranks = weights_->share.ranks;
    for (std::int32_t r = 0; r < ranks; ++r) {
      vocab_first_.push_back(share_of_vocab(config_.vocab, r, ranks).first);
    }
    vocab_first_.push_back(config_.vocab);
  }

  const ModelConfig& config() const override { return config_; }
  std::int64_t weight_bytes() const override { return weights_->bytes; }
  StepWeights step_weights(std::int64_t rows) const override {
    return lathe::step_weights(config_, *weights_, rows);
  }
  std::vector<TensorScales> kv_scales() const override { return weights_->kv_scales; }
  Result<ForwardResult> forward(const OpsContext& ops, const ForwardArgs& args) const override;
  Result<void> forward_draft(const OpsContext& ops, const ForwardArgs& args) const override;

 private:
  Result<std::shared_ptr<const ModelRope>> rope_tables(std::int64_t positions) const;
  void check_args(const OpsContext& ops, const ForwardArgs& args,
                  std::span<const std::size_t> groups) const;
  void first_norm(const OpsContext& ops, std::int32_t layer, const MutableRowsView& x,
                  const MutableRowsView& h) const;
  Result<void> layer(const LayerContext& c, const MutableRowsView& x, const MutableRowsView& h,
                     const std::optional<InputNorm>& next) const;
  Result<void> attention(const LayerContext& c, const RowsView& h, const MutableRowsView& out,
                         bool add) const;
  void feed_forward(const LayerContext& c, const RowsView& h, const MutableRowsView& out,
                    bool add) const;
  void dense_and_experts(const OpsContext& ops, const LayerWeights& w, const MutableRowsView& x,
                         const MutableRowsView& h) const;
  template <class Part>
  Result<void> add_part(const OpsContext& ops, const MutableRowsView& x, const MutableRowsView& h,
                        Vector out_norm, const std::optional<InputNorm>& next,
                        const Part& part) const;
  LayerContext context(const OpsContext& ops, const ForwardArgs& args, const ModelRope& rope,
                       std::int32_t layer, std::span<const Segment> segments,
                       std::span<Selection> selections) const;
  void join_streams(const OpsContext& ops, const ForwardArgs& args, const MutableRowsView& x) const;
  void join_draft(const OpsContext& ops, const ForwardArgs& args, const MutableRowsView& x) const;
  float embedding_scale() const;
  InputNorm attention_norm(std::int32_t layer) const {
    const LayerWeights& w = weights_->layers[static_cast<std::size_t>(layer)];
    return {w.attention_norm, &w.attention_gate};
  }
  MutableRowsView head_streams(const OpsContext& ops, const HyperWeights& w,
                               const RowsView& x) const;
  void copy_stream(const OpsContext& ops, const MutableRowsView& x) const;
  void embed_rows(const OpsContext& ops, std::span<const std::int32_t> tokens,
                  const MutableRowsView& x) const;
  void embed_tokens(const OpsContext& ops, std::span<const std::int32_t> tokens,
                    const MutableRowsView& x) const;
  bool ends_in_norm(const OpsContext& ops) const;
  void logits(const OpsContext& ops, const MutableRowsView& x, const ForwardArgs& args,
              NonFiniteSearch& search) const;
  void logits_of_normed(const OpsContext& ops, const MutableRowsView& h, const ForwardArgs& args,
                        NonFiniteSearch& search) const;
  void head(const OpsContext& ops, const RowsView& h, const ForwardArgs& args,
            NonFiniteSearch* search = nullptr) const;

  ModelConfig config_;
  std::unique_ptr<ModelWeights> weights_;
  std::vector<std::size_t> group_of_;      // [cached_layers]
  std::vector<std::size_t> all_groups_;    // 0, 1, ..
  std::vector<std::int64_t> vocab_first_;  // [ranks + 1] first token of each rank, then vocab
  // Created by the first forward pass for the positions that its cache can have; a model's own
  // maximum, and a plan's context, can be far longer.
  mutable std::mutex rope_guard_;
  mutable std::shared_ptr<const ModelRope> rope_;
};

// V4's index keys rotate like its other keys.
bool has_index_table(const AttentionProblem& problem) {
  return problem.kind == ProblemKind::sparse_latent;
}

Result<RopeTables> tables_of(const LayerGroupConfig& group, RopePairing index_pairing,
                             std::int64_t positions) {
  auto main = RopeTable::make(group.rope, positions);
  if (!main) return main.error();
  RopeTables tables{std::move(*main), std::nullopt, std::nullopt};
  if (group.query_growth && static_cast<double>(positions) > group.query_growth->context) {
    RopeConfig config = group.rope;
    if (group.problem.kind != ProblemKind::grouped_query) {  // grows a whole head, and rotates none
      config = {.dim = static_cast<std::int32_t>(group.problem.qk_nope_head + group.problem.rope),
                .pairs = 0};
    }
    config.growth = group.query_growth;
    auto query = RopeTable::make(config, positions);
    if (!query) return query.error();
    tables.query = std::move(*query);
  }
  if (has_index_table(group.problem)) {
    RopeConfig config = group.rope;
    config.pairing = index_pairing;
    auto index = RopeTable::make(config, positions);
    if (!index) return index.error();
    tables.index = std::move(*index);
  }
  return tables;
}

Result<std::shared_ptr<const ModelRope>> Decoder::rope_tables(std::int64_t positions) const {
  const std::lock_guard lock(rope_guard_);
  const auto serves = [&](const ModelRope& made) {
    return made.positions >= positions &&
           std::ranges::all_of(config_.groups, [&](const LayerGroupConfig& g) {
             return rope_is_long(g.rope, positions) == rope_is_long(g.rope, made.positions);
           });
  };
  if (rope_ != nullptr && serves(*rope_)) return rope_;
  ModelRope rope;
  rope.positions = positions;
  for (std::size_t g = 0; g < config_.groups.size(); ++g) {
    const LayerGroupConfig& group = config_.groups[g];
    std::size_t equal = 0;
    while (equal < g &&
           (config_.groups[equal].rope != group.rope ||
            config_.groups[equal].query_growth != group.query_growth ||
            has_index_table(config_.groups[equal].problem) != has_index_table(group.problem))) {
      ++equal;
    }
    if (equal < g) {
      rope.of_group.push_back(rope.of_group[equal]);
      continue;
    }
    auto tables = tables_of(group, config_.mla.index_pairing, positions);
    if (!tables) return tables.error();
    rope.of_group.push_back(rope.tables.size());
    rope.tables.push_back(std::move(*tables));
  }
  rope_ = std::make_shared<const ModelRope>(std::move(rope));
  return rope_;
}

// x += part(h), and then h = the norm of x if the next part has one. part(out, add) computes out =
// the part's output of this rank, or out +=. With out_norm the output is normed before it is added.
// Where some parts' outputs are, all ranks keep all rows of x.
template <class Part>
Result<void> Decoder::add_part(const OpsContext& ops, const MutableRowsView& x,
                               const MutableRowsView& h, Vector out_norm,
                               const std::optional<InputNorm>& next, const Part& part) const {
  const Arena::Scope scope(*ops.tensors);
  const bool adds = out_norm.empty();
  const MutableRowsView to = adds ? x : alloc_rows(*ops.tensors, x.rows, x.cols);
  const MutableRowsView out = part_rows(ops, to);
  if (auto ok = part(out, adds && ops.communicator == nullptr); !ok) return ok;
  if (ops.communicator != nullptr && config_.norms.of_inputs_alone() && next) {
    sum_norm(ops, {.partial = constant(out),
                   .x = x,
                   .weight = next->weight,
                   .eps = config_.norm_eps,
                   .h = h,
                   .owned = true});
    gate_input(ops, next->gate, h);
    return {};
  }
  sum_part(ops, out, to, adds);
  if (!adds) add_rms_norm(ops, constant(to), out_norm, config_.norm_eps, x);
  if (next) norm_input(ops, x, *next, config_.norm_eps, h);
  return {};
}

// h = the norm of x before a layer. With several streams a layer begins with a mix of them instead.
void Decoder::first_norm(const OpsContext& ops, std::int32_t layer, const MutableRowsView& x,
                         const MutableRowsView& h) const {
  if (config_.hyper.streams > 0) return;
  norm_input(ops, x, attention_norm(layer), config_.norm_eps, h);
}

// x += the norm of a sum: of the dense part of h, normed, and of the experts of x, normed. h is
// overwritten.
void Decoder::dense_and_experts(const OpsContext& ops, const LayerWeights& w,
                                const MutableRowsView& x, const MutableRowsView& h) const {
  const Arena::Scope scope(*ops.tensors);
  const float eps = config_.norm_eps;
  const MutableRowsView sum = alloc_rows(*ops.tensors, x.rows, x.cols);
  const MutableRowsView made = alloc_rows(*ops.tensors, x.rows, x.cols);
  const auto make = [&](const auto& part) {
    const Arena::Scope of_part(*ops.tensors);
    const MutableRowsView out = part_rows(ops, made);
    part(out);
    sum_part(ops, out, made, false);
  };
  make([&](const MutableRowsView& out) {
    dense_ffn(ops, config_.activation, w.ffn, constant(h), out, false);
  });
  rms_norm(ops, constant(made), w.dense_out_norm, eps, sum);
  rms_norm(ops, constant(x), w.experts_norm, eps, h);
  make([&](const MutableRowsView& out) {
    MutableRowsView routed;
    if (!w.moe.router_norm.empty()) {
      routed = alloc_activations(ops, x.rows, x.cols);
      rms_norm(ops, constant(x), w.moe.router_norm, eps, routed);
    }
    moe_layer(ops, config_, w.moe, constant(h), out, false, {}, constant(routed));
  });
  add_rms_norm(ops, constant(made), w.experts_out_norm, eps, sum);
  add_rms_norm(ops, constant(sum), w.ffn_out_norm, eps, x);
}

// out = the attention or delta rule of h, or out +=. `add`: never with several streams.
Result<void> Decoder::attention(const LayerContext& c, const RowsView& h,
                                const MutableRowsView& out, bool add) const {
  const auto at = static_cast<std::size_t>(c.layer);
  const LayerWeights& w = weights_->layers[at];
  if (config_.is_delta(c.layer)) return delta_layer(c, w.delta, h, out, add);
  if (config_.is_compressed()) return compressed_attention(c, w.compressed, w.indexer, h, out);
  if (!config_.is_mla()) return gqa_attention(c, w.gqa, h, out, add);
  const bool indexed = !config_.mla.own_indexer.empty() && config_.mla.own_indexer[at] != 0;
  return mla_attention(c, w.mla, indexed ? &w.indexer : nullptr, h, out, add);
}

// out = the dense part or the experts of h, or out +=.
void Decoder::feed_forward(const LayerContext& c, const RowsView& h, const MutableRowsView& out,
                           bool add) const {
  const LayerWeights& w = weights_->layers[static_cast<std::size_t>(c.layer)];
  if (w.moe.experts.gate.count() == 0) {
    return dense_ffn(c.ops, config_.activation, w.ffn, h, out, add);
  }
  moe_layer(c.ops, config_, w.moe, h, out, add, c.tokens);
}

// A layer of attention or of a delta rule, then dense or with experts, or both. h: the norm of x
// before the layer, and after it the norm `next`, if there is one; unused with several streams. The
// combinations that it computes are in model/config/layer_flags.h, which refuses all others.
Result<void> Decoder::layer(const LayerContext& c, const MutableRowsView& x,
                            const MutableRowsView& h, const std::optional<InputNorm>& next) const {
  const LayerWeights& w = weights_->layers[static_cast<std::size_t>(c.layer)];
  if (config_.hyper.streams > 0) {
    const auto attends = [&](const RowsView& in, const MutableRowsView& out) {
      return attention(c, in, out, false);
    };
    const auto feeds = [&](const RowsView& in, const MutableRowsView& out) -> Result<void> {
      feed_forward(c, in, out, false);
      return {};
    };
    if (auto ok = stream_part(c, w.attention_hyper, w.attention_norm, x, attends); !ok) return ok;
    return stream_part(c, w.ffn_hyper, w.ffn_norm, x, feeds);
  }
  const auto attends = [&](const MutableRowsView& out, bool add) {
    return attention(c, constant(h), out, add);
  };
  const auto feeds = [&](const MutableRowsView& out, bool add) -> Result<void> {
    feed_forward(c, constant(h), out, add);
    return {};
  };
  const InputNorm ffn_norm{w.ffn_norm, &w.ffn_gate};
  if (auto ok = add_part(c.ops, x, h, w.attention_out_norm, ffn_norm, attends); !ok) return ok;
  const bool both = w.moe.experts.gate.count() > 0 && !w.dense_out_norm.empty();
  const Vector out_norm = w.ffn_out_norm.empty() ? w.experts_out_norm : w.ffn_out_norm;
  if (!both && w.scale.empty()) return add_part(c.ops, x, h, out_norm, next, feeds);
  if (both) {
    dense_and_experts(c.ops, w, x, h);
  } else if (auto ok = add_part(c.ops, x, h, out_norm, std::nullopt, feeds); !ok) {
    return ok;
  }
  if (c.inputs.cols > 0) add_layer_input(c, w, x);
  if (!w.scale.empty()) scale_rows(c.ops, x, w.scale);
  if (next) norm_input(c.ops, x, *next, config_.norm_eps, h);
  return {};
}

// As in transformers, the factor is rounded to the embeddings' dtype.
float Decoder::embedding_scale() const {
  const float scale = config_.embedding_scale;
  if (!config_.rounded_embedding_scale) return scale;
  switch (weights_->embedding.dtype) {
    case DType::bf16:
      return to_f32(to_bf16(scale));
    case DType::f16:
      return to_f32(to_f16(scale));
    default:
      return scale;
  }
}

// Mixes the streams into the final norm's input; without weights it is their mean.
MutableRowsView Decoder::head_streams(const OpsContext& ops, const HyperWeights& w,
                                      const RowsView& x) const {
  const MutableRowsView out = alloc_rows(*ops.tensors, x.rows, config_.hidden);
  const MutableRowsView product = alloc_rows(*ops.tensors, x.rows, w.fn.rows);
  if (w.fn.rows > 0) matmul(ops, {x, w.fn, product});
  hyper_head(ops, {.x = x,
                   .product = constant(product),
                   .base = w.base,
                   .scale = w.scale,
                   .streams = config_.hyper.streams,
                   .eps = config_.hyper.eps,
                   .norm_eps = config_.norm_eps,
                   .out = out});
  return out;
}

// Embeds every row's token; all streams begin with its embedding.
void Decoder::embed_tokens(const OpsContext& ops, std::span<const std::int32_t> tokens,
                           const MutableRowsView& x) const {
  const MutableRowsView first = cols_at(x, 0, config_.hidden);
  embed_rows(ops, tokens, first);
  copy_stream(ops, x);
}

// Only one rank has a token's row, so the sum is exact if partials are f32.
void Decoder::embed_rows(const OpsContext& ops, std::span<const std::int32_t> tokens,
                         const MutableRowsView& x) const {
  const WeightView& table = weights_->embedding;
  if (ops.communicator == nullptr) return embed(ops, table, tokens, x, embedding_scale());
  const Arena::Scope scope(*ops.tensors);
  const MutableRowsView partial = alloc_partial(ops, x.rows, x.cols, DType::f32);
  embed(ops, {.table = table,
              .tokens = tokens,
              .out = partial,
              .scale = embedding_scale(),
              .first = weights_->share.vocab.first,
              .vocab = config_.vocab});
  sum_rows(ops, {.partial = constant(partial), .out = x, .exact = true});
}

// Copies the first stream to all others.
void Decoder::copy_stream(const OpsContext& ops, const MutableRowsView& x) const {
  const std::int64_t others = config_.hyper.streams - 1;
  if (others < 1) return;
  cast_rows(ops, {.x = constant(cols_at(x, 0, config_.hidden)),
                  .out = cols_at(x, config_.hidden, config_.hidden),
                  .heads = others,
                  .x_head = 0,
                  .out_head = config_.hidden});
}

void Decoder::logits(const OpsContext& ops, const MutableRowsView& x, const ForwardArgs& args,
                     NonFiniteSearch& search) const {
  const Arena::Scope scope(*ops.tensors);
  MutableRowsView last = alloc_rows(*ops.tensors, std::ssize(args.logit_rows), x.cols);
  gather_rows(ops, constant(x), args.logit_rows, last);
  if (config_.hyper.streams > 0) last = head_streams(ops, weights_->head_hyper, constant(last));
  const MutableRowsView h = activations_of(ops, last);
  rms_norm(ops, constant(last), weights_->final_norm, config_.norm_eps, h);
  head(ops, constant(h), args, &search);
}

// Several ranks norm the last layer's output in its exchange, after which a rank may have only some
// rows of x.
bool Decoder::ends_in_norm(const OpsContext& ops) const {
  return ops.communicator != nullptr && config_.norms.of_inputs_alone() &&
         config_.hyper.streams == 0;
}

// h: all rows, normed for the head.
void Decoder::logits_of_normed(const OpsContext& ops, const MutableRowsView& h,
                               const ForwardArgs& args, NonFiniteSearch& search) const {
  const Arena::Scope scope(*ops.tensors);
  const MutableRowsView last = alloc_activations(ops, std::ssize(args.logit_rows), h.cols);
  gather_rows(ops, constant(h), args.logit_rows, last);
  head(ops, constant(last), args, &search);
}

// Logits of the head's input rows: all of them, or with several ranks this rank's whole rows.
void Decoder::head(const OpsContext& ops, const RowsView& h, const ForwardArgs& args,
                   NonFiniteSearch* search) const {
  const auto finish = [&](const MutableRowsView& logits) {
    if (config_.logit_cap > 0) cap_rows(ops, logits, config_.logit_cap);
    if (search != nullptr) search->look(constant(logits), args.logit_rows, config_.layers);
  };
  if (ops.communicator == nullptr) {
    matmul(ops, {h, weights_->head, args.logits});
    return finish(args.logits);
  }
  const Arena::Scope scope(*ops.tensors);
  const MutableRowsView columns = alloc_rows(*ops.tensors, h.rows, weights_->head.rows);
  if (columns.cols > 0) {
    matmul(ops, {h, weights_->head, columns});
    finish(columns);
  }
  trade_columns(ops, {constant(columns), vocab_first_, args.logits});
}

// x = eh_proj of the next token's embedding and the hidden state, both normed.
void Decoder::join_draft(const OpsContext& ops, const ForwardArgs& args,
                         const MutableRowsView& x) const {
  const Arena::Scope scope(*ops.tensors);
  const DraftWeights& w = weights_->draft;
  const MutableRowsView both = alloc_activations(ops, x.rows, 2 * x.cols);
  const MutableRowsView before = alloc_activations(ops, x.rows, x.cols);
  gather_rows(ops, args.before, args.before_rows, before);
  embed_tokens(ops, args.tokens, x);
  rms_norm(ops, constant(x), w.embedding_norm, config_.norm_eps, cols_at(both, 0, x.cols));
  rms_norm(ops, constant(before), w.hidden_norm, config_.norm_eps, cols_at(both, x.cols, x.cols));
  matmul(ops, {constant(both), w.join, x});
}

// x = e_proj of the next token's embedding, added to all streams, and h_proj of each stream; both
// normed.
void Decoder::join_streams(const OpsContext& ops, const ForwardArgs& args,
                           const MutableRowsView& x) const {
  const Arena::Scope scope(*ops.tensors);
  const DraftWeights& w = weights_->draft;
  const std::int64_t hidden = config_.hidden;
  const MutableRowsView first = cols_at(x, 0, hidden);
  const MutableRowsView token = alloc_activations(ops, x.rows, hidden);
  embed_rows(ops, args.tokens, first);
  rms_norm(ops, constant(first), w.embedding_norm, config_.norm_eps, token);
  matmul(ops, {constant(token), w.embedding_join, first});
  copy_stream(ops, x);
  const MutableRowsView normed = alloc_activations(ops, x.rows, x.cols);
  const MutableRowsView before = alloc_activations(ops, x.rows, x.cols);
  gather_rows(ops, args.before, args.before_rows, before);
  rms_norm(ops, constant(before), w.hidden_norm, config_.norm_eps, normed, config_.hyper.streams);
  for (std::int64_t at = 0; at < x.cols; at += hidden) {
    matmul(ops, {.x = constant(cols_at(normed, at, hidden)),
                 .w = w.stream_join,
                 .out = cols_at(x, at, hidden),
                 .add = true});
  }
}

void Decoder::check_args(const OpsContext& ops, const ForwardArgs& args,
                         std::span<const std::size_t> groups) const {
  const std::int32_t ranks = ops.communicator == nullptr ? 1 : ops.communicator->size();
  LATHE_CHECK(weights_->share.ranks == ranks, "weights of a rank of the group");
  LATHE_CHECK(args.cache != nullptr && args.cache->groups() == config_.groups.size(),
              "the cache was planned for another model");
  LATHE_CHECK(args.segments.size() % groups.size() == 0, "every layer group has the same segments");
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::size_t g = groups[i];
    LATHE_CHECK(args.cache->plan(g).problem == config_.groups[g].problem,
                "the cache was planned for another model");
    const LayerGroup& planned = args.cache->plan().groups[g].group;
    LATHE_CHECK(
        planned.layers == config_.groups[g].layers && planned.readers == config_.groups[g].readers,
        "the cache has the model's layers");
    const auto& delta = args.cache->plan().groups[g].group.delta;
    LATHE_CHECK(
        g > 0 || (delta ? delta->layers : std::vector<std::int32_t>()) == config_.delta.layers,
        "the cache has states of the model's layers");
    std::int64_t covered = 0;
    for (const Segment& s : args.segments_of(i, groups.size())) {
      LATHE_CHECK(s.first_row == covered, "segments cover all rows, in order");
      covered += s.step->rows;
    }
    LATHE_CHECK(covered == std::ssize(args.tokens), "segments cover all rows, in order");
  }
  const std::int64_t rows = std::ssize(args.logit_rows);
  LATHE_CHECK(args.logits.rows == (ranks == 1 ? rows : ops.communicator->owned_rows(rows)),
              "logits of this rank's logit_rows");
}

// Allocates the selections of a group's segments. room: [rows, top_k] for all of them; null: each
// has its own.
std::span<Selection> make_selections(const OpsContext& ops, const AttentionProblem& problem,
                                     std::span<const Segment> segments,
                                     std::int32_t* room = nullptr) {
  const std::span selections(ops.control->take_array<Selection>(std::ssize(segments)),
                             segments.size());
  for (std::size_t s = 0; s < selections.size(); ++s) {
    const StepView& step = *segments[s].step;
    selections[s] = {};
    selections[s].width = slots_width(problem, step);
    if (selections[s].width == 0) continue;
    if (room != nullptr) {
      selections[s].slots = room + segments[s].first_row * problem.top_k;
      continue;
    }
    selections[s].slots = ops.tensors->take_array<std::int32_t>(step.rows * selections[s].width);
  }
  return selections;
}

// Lists of slots as rows of words, which are copied as they are.
MutableRowsView slot_rows(std::int32_t* slots, std::int64_t rows, std::int64_t width) {
  return {reinterpret_cast<std::byte*>(slots), DType::f32, rows, width, width};
}

Result<ForwardResult> Decoder::forward(const OpsContext& ops, const ForwardArgs& args) const {
  check_args(ops, args, all_groups_);
  const std::int64_t rows = std::ssize(args.tokens);
  if (rows == 0) return ForwardResult{};

  const auto rope = rope_tables(args.cache->positions());
  if (!rope) return rope.error();
  Arena& arena = *ops.tensors;
  const Arena::Scope scope(arena);
  const MutableRowsView x =
      alloc_rows(arena, rows, std::int64_t{std::max(1, config_.hyper.streams)} * config_.hidden);
  const Arena::Scope control(*ops.control);
  const std::size_t groups = config_.groups.size();
  auto* selections =
      ops.control->take_array<std::span<Selection>>(static_cast<std::int64_t>(groups));
  for (std::size_t g = 0; g < groups; ++g) {
    selections[g] = make_selections(ops, config_.groups[g].problem, args.segments_of(g, groups));
  }

  NonFiniteSearch search(ops, rows, args.find_non_finite);
  embed_tokens(ops, args.tokens, x);
  search.look(constant(x), {}, -1);
  const MutableRowsView inputs = layer_inputs(ops, config_, *weights_, args.tokens, x);
  const bool normed = ends_in_norm(ops);
  {
    const Arena::Scope layers(arena);
    // The last layer's exchange leaves there what a draft layer reads.
    const bool kept = normed && args.hidden.rows > 0;
    const MutableRowsView h = kept ? args.hidden : alloc_activations(ops, rows, config_.hidden);
    first_norm(ops, 0, x, h);
    for (std::int32_t l = 0; l < config_.layers; ++l) {
      const std::size_t g = group_of_[static_cast<std::size_t>(l)];
      LayerContext c = context(ops, args, **rope, l, args.segments_of(g, groups), selections[g]);
      const std::int64_t width = config_.layer_inputs.width;
      c.inputs = constant(cols_at(inputs, l * width, width));
      std::optional<InputNorm> next;
      if (l + 1 < config_.layers) {
        next = attention_norm(l + 1);
      } else if (normed) {
        next = InputNorm{weights_->final_norm};
      }
      if (auto ok = layer(c, x, h, next); !ok) return ok.error();
      search.look(constant(x), {}, l);
    }
    if (normed) {
      if (!args.logit_rows.empty()) logits_of_normed(ops, h, args, search);
      return search.result();
    }
  }
  if (args.hidden.rows > 0 && config_.hyper.streams > 0) {
    cast_rows(ops, constant(x), args.hidden);
  } else if (args.hidden.rows > 0) {
    rms_norm(ops, constant(x), weights_->final_norm, config_.norm_eps, args.hidden);
  }
  if (!args.logit_rows.empty()) {
    logits(ops, x, args, search);
  }
  return search.result();
}

LayerContext Decoder::context(const OpsContext& ops, const ForwardArgs& args, const ModelRope& rope,
                              std::int32_t layer, std::span<const Segment> segments,
                              std::span<Selection> selections) const {
  const std::size_t g = group_of_[static_cast<std::size_t>(layer)];
  return {.ops = ops,
          .config = config_,
          .plan = args.cache->plan(g),
          .rope = rope.tables[rope.of_group[g]],
          .cache = *args.cache,
          .layer = layer,
          .segments = segments,
          .selections = selections,
          .tokens = args.tokens};
}

Result<void> Decoder::forward_draft(const OpsContext& ops, const ForwardArgs& args) const {
  if (!config_.drafts) return Model::forward_draft(ops, args);
  const std::size_t g = group_of_.back();
  check_args(ops, args, std::span(&g, 1));
  LATHE_CHECK(args.before_rows.size() == args.tokens.size(), "every row has a hidden state");
  if (args.tokens.empty()) return {};
  const auto rope = rope_tables(args.cache->positions());
  if (!rope) return rope.error();
  Arena& arena = *ops.tensors;
  const Arena::Scope scope(arena);
  const Arena::Scope control(*ops.control);
  const MutableRowsView x = alloc_rows(arena, std::ssize(args.tokens), config_.state_width());
  const AttentionProblem& problem = config_.groups[g].problem;
  const std::int64_t rows = std::ssize(args.tokens);
  auto* room =
      args.choices.empty() ? nullptr : arena.take_array<std::int32_t>(rows * problem.top_k);
  const std::span<Selection> selections = make_selections(ops, problem, args.segments, room);
  const bool streams = config_.hyper.streams > 0;
  if (streams) {
    join_streams(ops, args, x);
  } else {
    join_draft(ops, args, x);
  }
  LayerContext c = context(ops, args, **rope, config_.layers, args.segments, selections);
  c.choices = args.choices;
  c.choice_rows = args.choice_rows;
  {
    const Arena::Scope draft(arena);
    const MutableRowsView h = alloc_activations(ops, rows, config_.hidden);
    first_norm(ops, config_.layers, x, h);
    const bool normed = ends_in_norm(ops);
    std::optional<InputNorm> next;
    if (normed) next = InputNorm{weights_->draft.out_norm};
    if (auto ok = layer(c, x, h, next); !ok) return ok;
    if (normed && !args.logit_rows.empty()) {
      gather_rows(ops, constant(h), args.logit_rows, args.hidden);
    }
  }
  if (args.logit_rows.empty()) return {};
  // A row that sees more than top_k keys is in a segment with lists of that width; the others are
  // not read again.
  if (room != nullptr && args.choice_rows.empty()) {
    gather_rows(ops, constant(slot_rows(room, rows, problem.top_k)), args.logit_rows,
                slot_rows(args.choices.data(), std::ssize(args.logit_rows), problem.top_k));
  }
  if (ends_in_norm(ops)) {
    head(ops, constant(args.hidden), args);
    return {};
  }
  MutableRowsView last = alloc_rows(arena, std::ssize(args.logit_rows), x.cols);
  gather_rows(ops, constant(x), args.logit_rows, last);
  if (streams) {
    cast_rows(ops, constant(last), args.hidden);
    last = head_streams(ops, weights_->draft.head_hyper, constant(last));
    const MutableRowsView normed = activations_of(ops, last);
    rms_norm(ops, constant(last), weights_->draft.out_norm, config_.norm_eps, normed);
    head(ops, constant(normed), args);
    return {};
  }
  rms_norm(ops, constant(last), weights_->draft.out_norm, config_.norm_eps, args.hidden);
  head(ops, constant(args.hidden), args);
  return {};
}

}  // namespace

std::unique_ptr<Model> make_decoder(const ModelConfig& config,
                                    std::unique_ptr<ModelWeights> weights) {
  return std::make_unique<Decoder>(config, std::move(weights));
}

}  // namespace lathe
