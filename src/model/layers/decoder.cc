#include "model/layers/decoder.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include "base/check.h"
#include "base/float_formats.h"
#include "base/rows.h"
#include "model/layers/compressed_layer.h"
#include "model/layers/feed_forward.h"
#include "model/layers/gqa_attention.h"
#include "model/layers/layer_context.h"
#include "model/layers/mla_attention.h"
#include "ops/cache_write.h"
#include "ops/elementwise.h"
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
  void check_args(const ForwardArgs& args, std::span<const std::size_t> groups) const;
  Result<void> layer(const LayerContext& c, const MutableRowsView& x) const;
  LayerContext context(const OpsContext& ops, const ForwardArgs& args, const ModelRope& rope,
                       std::int32_t layer, std::span<const Segment> segments,
                       std::span<Selection> selections) const;
  void join_streams(const OpsContext& ops, const ForwardArgs& args, const MutableRowsView& x) const;
  void join_draft(const OpsContext& ops, const ForwardArgs& args, const MutableRowsView& x) const;
  float embedding_scale() const;
  MutableRowsView head_streams(const OpsContext& ops, const HyperWeights& w,
                               const RowsView& x) const;
  void copy_stream(const OpsContext& ops, const MutableRowsView& x) const;
  void embed_tokens(const OpsContext& ops, std::span<const std::int32_t> tokens,
                    const MutableRowsView& x) const;
  void logits(const OpsContext& ops, const MutableRowsView& x, const ForwardArgs& args) const;

  ModelConfig config_;
  std::unique_ptr<ModelWeights> weights_;
  std::vector<std::size_t> group_of_;    // [cached_layers]
  std::vector<std::size_t> all_groups_;  // 0, 1, ..
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
  RopeTables tables{std::move(*main), std::nullopt};
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
  if (rope_ != nullptr && rope_->positions >= positions) return rope_;
  ModelRope rope;
  rope.positions = positions;
  for (std::size_t g = 0; g < config_.groups.size(); ++g) {
    const LayerGroupConfig& group = config_.groups[g];
    std::size_t equal = 0;
    while (equal < g &&
           (config_.groups[equal].rope != group.rope ||
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

// A layer of grouped-query or latent attention, then dense or with experts. The combinations that
// it computes are in model/config/layer_flags.h, which refuses all others: only grouped-query
// attention and dense_ffn() can leave their output in `added`, for post_norms; mla_attention() and
// moe_layer() always add to x.
Result<void> Decoder::layer(const LayerContext& c, const MutableRowsView& x) const {
  const auto at = static_cast<std::size_t>(c.layer);
  const LayerWeights& w = weights_->layers[at];
  if (config_.is_compressed()) return compressed_layer(c, w, x);
  const Arena::Scope scope(*c.ops.tensors);
  const MutableRowsView h = alloc_activations(c.ops, x.rows, x.cols);
  // The output of a part of the layer, if it is normed before it is added to x.
  const MutableRowsView added = config_.post_norms ? alloc_rows(*c.ops.tensors, x.rows, x.cols) : x;

  rms_norm(c.ops, constant(x), w.attention_norm, config_.norm_eps, h);
  const bool indexed = !config_.mla.own_indexer.empty() && config_.mla.own_indexer[at] != 0;
  const Result<void> attended =
      config_.is_mla() ? mla_attention(c, w.mla, indexed ? &w.indexer : nullptr, constant(h), x)
                       : gqa_attention(c, w.gqa, constant(h), added, !config_.post_norms);
  if (!attended) return attended;
  if (config_.post_norms) {
    add_rms_norm(c.ops, constant(added), w.attention_out_norm, config_.norm_eps, x);
  }

  rms_norm(c.ops, constant(x), w.ffn_norm, config_.norm_eps, h);
  if (w.moe.experts.gate.count() > 0) {
    moe_layer(c.ops, config_, w.moe, constant(h), x);
    return {};
  }
  dense_ffn(c.ops, config_.activation, w.ffn, constant(h), added, !config_.post_norms);
  if (config_.post_norms) {
    add_rms_norm(c.ops, constant(added), w.ffn_out_norm, config_.norm_eps, x);
  }
  return {};
}

// As in transformers, the factor is rounded to the embeddings' dtype.
float Decoder::embedding_scale() const {
  if (!config_.scaled_embeddings) return 1;
  const float scale = std::sqrt(static_cast<float>(config_.hidden));
  switch (weights_->embedding.dtype) {
    case DType::bf16:
      return to_f32(to_bf16(scale));
    case DType::f16:
      return to_f32(to_f16(scale));
    default:
      return scale;
  }
}

// Mixes the streams into the final norm's input.
MutableRowsView Decoder::head_streams(const OpsContext& ops, const HyperWeights& w,
                                      const RowsView& x) const {
  const MutableRowsView out = alloc_rows(*ops.tensors, x.rows, config_.hidden);
  const MutableRowsView product = alloc_rows(*ops.tensors, x.rows, w.fn.rows);
  matmul(ops, {x, w.fn, product});
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
  embed(ops, weights_->embedding, tokens, first, embedding_scale());
  copy_stream(ops, x);
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

void Decoder::logits(const OpsContext& ops, const MutableRowsView& x,
                     const ForwardArgs& args) const {
  const Arena::Scope scope(*ops.tensors);
  MutableRowsView last = alloc_rows(*ops.tensors, std::ssize(args.logit_rows), x.cols);
  gather_rows(ops, constant(x), args.logit_rows, last);
  if (config_.hyper.streams > 0) last = head_streams(ops, weights_->head_hyper, constant(last));
  const MutableRowsView h = activations_of(ops, last);
  rms_norm(ops, constant(last), weights_->final_norm, config_.norm_eps, h);
  matmul(ops, {constant(h), weights_->head, args.logits});
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
  embed(ops, weights_->embedding, args.tokens, first, embedding_scale());
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

void Decoder::check_args(const ForwardArgs& args, std::span<const std::size_t> groups) const {
  LATHE_CHECK(args.cache != nullptr && args.cache->groups() == config_.groups.size(),
              "the cache was planned for another model");
  LATHE_CHECK(args.segments.size() % groups.size() == 0, "every layer group has the same segments");
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::size_t g = groups[i];
    LATHE_CHECK(args.cache->plan(g).problem == config_.groups[g].problem,
                "the cache was planned for another model");
    LATHE_CHECK(args.cache->plan().groups[g].group.layers == config_.groups[g].layers,
                "the cache has the model's layers");
    std::int64_t covered = 0;
    for (const Segment& s : args.segments_of(i, groups.size())) {
      LATHE_CHECK(s.first_row == covered, "segments cover all rows, in order");
      covered += s.step->rows;
    }
    LATHE_CHECK(covered == std::ssize(args.tokens), "segments cover all rows, in order");
  }
  LATHE_CHECK(args.logits.rows == std::ssize(args.logit_rows), "logits of logit_rows");
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
  check_args(args, all_groups_);
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
  for (std::int32_t l = 0; l < config_.layers; ++l) {
    const std::size_t g = group_of_[static_cast<std::size_t>(l)];
    const LayerContext c =
        context(ops, args, **rope, l, args.segments_of(g, groups), selections[g]);
    if (auto ok = layer(c, x); !ok) return ok.error();
    search.look(constant(x), {}, l);
  }
  if (args.hidden.rows > 0 && config_.hyper.streams > 0) {
    cast_rows(ops, constant(x), args.hidden);
  } else if (args.hidden.rows > 0) {
    rms_norm(ops, constant(x), weights_->final_norm, config_.norm_eps, args.hidden);
  }
  if (!args.logit_rows.empty()) {
    logits(ops, x, args);
    search.look(constant(args.logits), args.logit_rows, config_.layers);
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
  check_args(args, std::span(&g, 1));
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
  if (auto ok = layer(c, x); !ok) return ok;
  if (args.logit_rows.empty()) return {};
  // A row that sees more than top_k keys is in a segment with lists of that width; the others are
  // not read again.
  if (room != nullptr && args.choice_rows.empty()) {
    gather_rows(ops, constant(slot_rows(room, rows, problem.top_k)), args.logit_rows,
                slot_rows(args.choices.data(), std::ssize(args.logit_rows), problem.top_k));
  }
  MutableRowsView last = alloc_rows(arena, std::ssize(args.logit_rows), x.cols);
  gather_rows(ops, constant(x), args.logit_rows, last);
  if (streams) {
    cast_rows(ops, constant(last), args.hidden);
    last = head_streams(ops, weights_->draft.head_hyper, constant(last));
    const MutableRowsView h = activations_of(ops, last);
    rms_norm(ops, constant(last), weights_->draft.out_norm, config_.norm_eps, h);
    matmul(ops, {constant(h), weights_->head, args.logits});
    return {};
  }
  rms_norm(ops, constant(last), weights_->draft.out_norm, config_.norm_eps, args.hidden);
  matmul(ops, {constant(args.hidden), weights_->head, args.logits});
  return {};
}

}  // namespace

std::unique_ptr<Model> make_decoder(const ModelConfig& config,
                                    std::unique_ptr<ModelWeights> weights) {
  return std::make_unique<Decoder>(config, std::move(weights));
}

}  // namespace lathe
