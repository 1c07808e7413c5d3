#include "model/layers/decoder.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/rows.h"
#include "model/layers/decoder_layer.h"
#include "model/layers/decoder_view.h"
#include "model/layers/draft_input.h"
#include "model/layers/embedding.h"
#include "model/layers/forward_args.h"
#include "model/layers/head.h"
#include "model/layers/input_norm.h"
#include "model/layers/layer_context.h"
#include "model/layers/layer_inputs.h"
#include "model/layers/non_finite_search.h"
#include "model/layers/rope_cache.h"
#include "ops/cache_write.h"
#include "ops/elementwise.h"

namespace lathe {
namespace {

class Decoder : public Model {
 public:
  Decoder(const ModelConfig& config, std::unique_ptr<ModelWeights> weights)
      : config_(config),
        weights_(std::move(weights)),
        vocab_first_(first_tokens(config_, weights_->share.ranks)),
        view_{config_, *weights_, vocab_first_} {
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
  static std::vector<std::int64_t> first_tokens(const ModelConfig& config, std::int32_t ranks) {
    std::vector<std::int64_t> out;
    for (std::int32_t r = 0; r < ranks; ++r) {
      out.push_back(share_of_vocab(config.vocab, r, ranks).first);
    }
    out.push_back(config.vocab);
    return out;
  }
  const LayerWeights& of_layer(std::int32_t layer) const {
    return weights_->layers[static_cast<std::size_t>(layer)];
  }
  InputNorm attention_norm(std::int32_t layer) const {
    const LayerWeights& w = of_layer(layer);
    return {w.attention_norm, &w.attention_gate};
  }
  // h = the norm of x before a layer. With several streams a layer begins with a mix of them
  // instead.
  void first_norm(const OpsContext& ops, std::int32_t layer, const MutableRowsView& x,
                  const MutableRowsView& h) const {
    if (config_.hyper.streams > 0) return;
    norm_input(ops, x, attention_norm(layer), config_.norm_eps, h);
  }
  LayerContext context(const OpsContext& ops, const ForwardArgs& args, const ModelRope& rope,
                       std::int32_t layer, std::span<const Segment> segments,
                       std::span<Selection> selections) const;

  ModelConfig config_;
  std::unique_ptr<ModelWeights> weights_;
  std::vector<std::int64_t> vocab_first_;  // as DecoderView's
  DecoderView view_;
  std::vector<std::size_t> group_of_;    // [cached_layers]
  std::vector<std::size_t> all_groups_;  // 0, 1, ..
  mutable RopeCache ropes_;
};

Result<ForwardResult> Decoder::forward(const OpsContext& ops, const ForwardArgs& args) const {
  check_args(ops, view_, args, all_groups_);
  const std::int64_t rows = std::ssize(args.tokens);
  if (rows == 0) return ForwardResult{};

  const auto rope = ropes_.tables(config_, args.cache->positions());
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
  embed_tokens(ops, view_, args.tokens, x);
  search.look(constant(x), {}, -1);
  const MutableRowsView inputs = layer_inputs(ops, config_, *weights_, args.tokens, x);
  const bool normed = ends_in_norm(ops, view_);
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
      if (auto ok = run_layer(c, of_layer(l), x, h, next); !ok) return ok.error();
      search.look(constant(x), {}, l);
    }
    if (normed) {
      if (!args.logit_rows.empty()) logits_of_normed(ops, view_, h, args, search);
      return search.result();
    }
  }
  if (args.hidden.rows > 0 && config_.hyper.streams > 0) {
    cast_rows(ops, constant(x), args.hidden);
  } else if (args.hidden.rows > 0) {
    rms_norm(ops, constant(x), weights_->final_norm, config_.norm_eps, args.hidden);
  }
  if (!args.logit_rows.empty()) {
    logits(ops, view_, x, args, search);
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
  check_args(ops, view_, args, std::span(&g, 1));
  LATHE_CHECK(args.before_rows.size() == args.tokens.size(), "every row has a hidden state");
  if (args.tokens.empty()) return {};
  const auto rope = ropes_.tables(config_, args.cache->positions());
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
  join_draft(ops, view_, args, x);
  LayerContext c = context(ops, args, **rope, config_.layers, args.segments, selections);
  c.choices = args.choices;
  c.choice_rows = args.choice_rows;
  {
    const Arena::Scope draft(arena);
    const MutableRowsView h = alloc_activations(ops, rows, config_.hidden);
    first_norm(ops, config_.layers, x, h);
    const bool normed = ends_in_norm(ops, view_);
    std::optional<InputNorm> next;
    if (normed) next = InputNorm{weights_->draft.out_norm};
    if (auto ok = run_layer(c, of_layer(config_.layers), x, h, next); !ok) return ok;
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
  if (ends_in_norm(ops, view_)) {
    head(ops, view_, constant(args.hidden), args);
    return {};
  }
  MutableRowsView last = alloc_rows(arena, std::ssize(args.logit_rows), x.cols);
  gather_rows(ops, constant(x), args.logit_rows, last);
  if (streams) {
    cast_rows(ops, constant(last), args.hidden);
    last = head_streams(ops, view_, weights_->draft.head_hyper, constant(last));
    const MutableRowsView normed = activations_of(ops, last);
    rms_norm(ops, constant(last), weights_->draft.out_norm, config_.norm_eps, normed);
    head(ops, view_, constant(normed), args);
    return {};
  }
  rms_norm(ops, constant(last), weights_->draft.out_norm, config_.norm_eps, args.hidden);
  head(ops, view_, constant(args.hidden), args);
  return {};
}

}  // namespace

std::unique_ptr<Model> make_decoder(const ModelConfig& config,
                                    std::unique_ptr<ModelWeights> weights) {
  return std::make_unique<Decoder>(config, std::move(weights));
}

}  // namespace lathe
