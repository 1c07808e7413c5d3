#include "model/weights/tensor_table.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>

#include "model/config/split_sizes.h"
#include "model/weights/tensor_part.h"
#include "model/weights/tensor_table_v4.h"

namespace lathe {
namespace {

class Table {
 public:
  Table(const ModelConfig& config, ModelWeights& into, const Share& share)
      : c_(config), w_(into), share_(share) {}

  std::vector<TensorSpec> build() {
    // Room for most of them: moving 100,000 experts' entries again and again takes longer.
    const std::int64_t each = 32 + (c_.moe.stacked ? 0 : std::int64_t{3} * c_.moe.experts);
    out_.reserve(static_cast<std::size_t>(c_.cached_layers() * each));
    plain("model.embed_tokens.weight", c_.vocab, c_.hidden, w_.embedding).part.rows = share_.vocab;
    for (std::int32_t l = 0; l < c_.cached_layers(); ++l) layer(l);
    if (c_.drafts) draft(fmt::format("model.layers.{}.", c_.layers), w_.draft);
    norm("model.norm.weight", c_.hidden, w_.final_norm).factor = c_.logit_scale;
    if (c_.layer_inputs.width > 0) layer_inputs();
    if (!c_.hyper.head.empty()) hyper(c_.hyper.head, c_.hyper.streams, 1, w_.head_hyper);
    if (!c_.tied_embeddings) {
      TensorSpec& head = plain("lm_head.weight", c_.vocab, c_.hidden, w_.head);
      head.part.rows = share_.vocab;
      head.packable = true;
    }
    return std::move(out_);
  }

 private:
  void layer(std::int32_t l) {
    LayerWeights& w = w_.layers[static_cast<std::size_t>(l)];
    const bool mtp = l >= c_.layers && c_.draft_tensors == DraftTensors::mtp;
    const std::string stem = mtp ? "mtp.layers.0." : fmt::format("model.layers.{}.", l);
    const auto at = static_cast<std::size_t>(l);
    const bool has_experts = c_.moe.experts > 0 && c_.moe.layer_has_experts[at] != 0;
    input_norm(stem, c_.norms.attention, true, w.attention_norm, w.attention_gate);
    if (c_.hyper.streams > 0) {
      const std::int64_t n = c_.hyper.part_columns(), scales = c_.hyper.iterations > 0 ? 3 : 2;
      hyper(stem + std::string(c_.hyper.attention), n, scales, w.attention_hyper);
      hyper(stem + std::string(c_.hyper.ffn), n, scales, w.ffn_hyper);
    }
    if (c_.is_delta(l)) {
      delta_rule(stem, c_.delta.problem, w.delta);
    } else if (c_.is_mla()) {
      latent(stem + "self_attn.", c_.attention(l), w.mla);
    } else {
      grouped(stem + "self_attn.", c_.groups[c_.group_of(l)], c_.is_reader(l), w.gqa);
    }
    if (!c_.mla.own_indexer.empty() && c_.mla.own_indexer[at] != 0) {
      indexer(stem + "self_attn.indexer.", c_.attention(l), w.indexer);
    }
    named_norm(stem, c_.norms.attention_out, w.attention_out_norm);
    input_norm(stem, c_.norms.ffn, has_experts, w.ffn_norm, w.ffn_gate);
    named_norm(stem, c_.norms.ffn_out, w.ffn_out_norm);
    const ExpertNames& names = c_.moe.names;
    if (has_experts) {
      named_norm(stem, c_.norms.dense_out, w.dense_out_norm);
      named_norm(stem, c_.norms.experts, w.experts_norm);
      named_norm(stem, c_.norms.experts_out, w.experts_out_norm);
      experts(stem + std::string(names.part), w.moe);
    }
    if (!has_experts || !names.dense.empty()) {
      const std::string_view part = !names.dense.empty()   ? names.dense
                                    : !names.alone.empty() ? names.alone
                                                           : names.part;
      const std::int32_t wider = c_.is_reader(l) ? c_.reader_ffn : 1;
      ffn(stem + std::string(part), std::int64_t{wider} * c_.ffn, times(share_.ffn, wider), w.ffn);
    }
    if (const std::int64_t width = c_.layer_inputs.width; width > 0) {
      linear(stem + "per_layer_input_gate", width, c_.hidden, w.input_gate);
      linear(stem + "per_layer_projection", c_.hidden, width, w.input_out);
      norm(stem + "post_per_layer_input_norm.weight", c_.hidden, w.input_norm);
    }
    if (!c_.layer_scale.empty()) vector(stem + std::string(c_.layer_scale), 1, w.scale).ones = true;
  }

  void draft(const std::string& stem, DraftWeights& w) {
    if (c_.draft_tensors == DraftTensors::mtp) {
      norm("mtp.pre_fc_norm_embedding.weight", c_.hidden, w.embedding_norm);
      norm("mtp.pre_fc_norm_hidden.weight", c_.hidden, w.hidden_norm);
      linear("mtp.fc", c_.hidden, std::int64_t{2} * c_.hidden, w.join);
      norm("mtp.norm.weight", c_.hidden, w.out_norm);
      return;
    }
    norm(stem + "enorm.weight", c_.hidden, w.embedding_norm);
    norm(stem + "hnorm.weight", c_.hidden, w.hidden_norm);
    linear(stem + "eh_proj", c_.hidden, std::int64_t{2} * c_.hidden, w.join);
    norm(stem + "shared_head.norm.weight", c_.hidden, w.out_norm);
  }

  // The sum of both inputs is divided by the root of two: the norm's weight is, and the factor of
  // the embedding's rows (Decoder::layer_inputs()).
  void layer_inputs() {
    const std::int64_t all = std::int64_t{c_.layers} * c_.layer_inputs.width;
    plain("model.embed_tokens_per_layer.weight", c_.layer_inputs.vocab, all, w_.input_embedding);
    linear("model.per_layer_model_projection", all, c_.hidden, w_.input_projection);
    norm("model.per_layer_projection_norm.weight", c_.layer_inputs.width, w_.input_norm).factor =
        std::sqrt(0.5f);
  }

  // reads: another layer's keys and values.
  void grouped(const std::string& stem, const LayerGroupConfig& group, bool reads, GqaWeights& w) {
    const AttentionProblem& p = group.problem;
    const std::int64_t q_head = p.head_dim * (c_.output_gate == OutputGate::with_q ? 2 : 1);
    const Range q = times(share_.heads, q_head), out = times(share_.heads, p.v_head_dim);
    // Groups may differ in their key heads; share_ has the first group's.
    const Range kv_heads = share_of_kv_heads(p.kv_heads, share_.rank, share_.ranks);
    const Range k = times(kv_heads, p.head_dim), v = times(kv_heads, p.v_head_dim);
    const std::int64_t q_rows = p.heads * q_head, k_rows = p.kv_heads * p.head_dim;
    const std::int64_t v_rows = p.kv_heads * p.v_head_dim;
    const bool whole = c_.qk_norm == QkNorm::whole;  // the norm needs all heads
    if (whole) w.q_first = q.first, w.k_first = k.first;
    const FusedRows of_q{"q_proj", q_rows, whole ? Range{0, q_rows} : q, &w.q};
    const FusedRows of_k{"k_proj", k_rows, whole ? Range{0, k_rows} : k, &w.k};
    if (reads) {
      fused(stem, "", false, {of_q});
    } else if (group.values_are_keys) {
      fused(stem, "", false, {of_q, of_k});
    } else {
      fused(stem, "qkv_proj", c_.fused_qkv, {of_q, of_k, {"v_proj", v_rows, v, &w.v}});
    }
    linear(stem + "o_proj", c_.hidden, p.heads * p.v_head_dim, w.out).part.cols = out;
    if (c_.attention_bias) {
      vector(stem + "q_proj.bias", q_rows, w.q_bias).part.rows = whole ? Range{0, q_rows} : q;
      if (!reads) {
        vector(stem + "k_proj.bias", k_rows, w.k_bias).part.rows = whole ? Range{0, k_rows} : k;
        vector(stem + "v_proj.bias", v_rows, w.v_bias).part.rows = v;
      }
    }
    if (c_.attention_out_bias) out_bias(stem, w.out_bias);
    if (c_.qk_norm != QkNorm::none) {
      norm(stem + "q_norm.weight", whole ? q_rows : p.head_dim, w.q_norm);
      if (!reads) norm(stem + "k_norm.weight", whole ? k_rows : p.head_dim, w.k_norm);
    }
    if (p.sink) sink(stem, p, w.sink);
  }

  void sink(const std::string& stem, const AttentionProblem& p, Vector& to) {
    vector(stem + std::string(c_.sink_name), p.heads, to).part.rows = share_.heads;
  }

  // n: rows; scales: numbers that multiply them.
  void hyper(std::string_view name, std::int64_t n, std::int64_t scales, HyperWeights& w) {
    const std::string stem(name);
    plain(stem + "fn", n, std::int64_t{c_.hyper.streams} * c_.hidden, w.fn).f32 = true;
    vector(stem + "base", n, w.base);
    vector(stem + "scale", scales, w.scale);
  }

  void delta_rule(const std::string& stem, const DeltaRuleProblem& p, DeltaWeights& w) {
    switch (c_.delta.tensors) {
      case DeltaTensors::kimi:
      case DeltaTensors::bailing:
      case DeltaTensors::low_rank:
        return kimi_delta(stem + "self_attn.", p, w);
      case DeltaTensors::projections:
      case DeltaTensors::key_heads:
        return delta_net(stem + "linear_attn.", p, w);
    }
  }

  // Kimi-Linear's decay and gate have projections of low rank, as wide as a head.
  void kimi_delta(const std::string& stem, const DeltaRuleProblem& p, DeltaWeights& w) {
    const Range keys = times(share_.delta_keys, p.dk), values = times(share_.delta_values, p.dv);
    const Range gates = times(share_.delta_values, p.dk);
    linear(stem + "q_proj", p.key_cols(), c_.hidden, w.q).part.rows = keys;
    linear(stem + "k_proj", p.key_cols(), c_.hidden, w.k).part.rows = keys;
    linear(stem + "v_proj", p.value_cols(), c_.hidden, w.v).part.rows = values;
    const bool whole = c_.delta.tensors == DeltaTensors::bailing;
    if (whole) {
      linear(stem + "f_proj", p.gate_cols(), c_.hidden, w.decay).part.rows = gates;
      linear(stem + "g_proj", p.value_cols(), c_.hidden, w.gate).part.rows = values;
    } else {
      linear(stem + "f_a_proj", p.dk, c_.hidden, w.decay_down);
      linear(stem + "f_b_proj", p.gate_cols(), p.dk, w.decay).part.rows = gates;
      linear(stem + "g_a_proj", p.dv, c_.hidden, w.gate_down);
      linear(stem + "g_b_proj", p.value_cols(), p.dv, w.gate).part.rows = values;
    }
    linear(stem + "b_proj", p.heads, c_.hidden, w.beta).part.rows = share_.delta_values;
    const auto taps = [&](const char* name, std::int64_t columns, const Range& part, Vector& to) {
      TensorSpec& spec = vector(stem + name, columns * p.conv, to);
      spec.shape = {columns, 1, p.conv};
      spec.part.rows = times(part, p.conv);
    };
    taps("q_conv1d.weight", p.key_cols(), keys, w.q_conv);
    taps("k_conv1d.weight", p.key_cols(), keys, w.k_conv);
    taps("v_conv1d.weight", p.value_cols(), values, w.v_conv);
    TensorSpec& a_log = vector(stem + "A_log", p.heads, w.a_log);
    if (c_.delta.tensors == DeltaTensors::kimi) a_log.shape = {1, 1, p.heads, 1};
    a_log.part.rows = share_.delta_values;
    vector(stem + "dt_bias", p.gate_cols(), w.dt_bias).part.rows = gates;
    vector(stem + "o_norm.weight", p.dv, w.norm);
    linear(stem + "o_proj", c_.hidden, p.value_cols(), w.out).part.cols = values;
  }

  void delta_net(const std::string& stem, const DeltaRuleProblem& p, DeltaWeights& w) {
    const Range keys = times(share_.delta_keys, p.dk), values = times(share_.delta_values, p.dv);
    if (c_.delta.tensors == DeltaTensors::key_heads) {
      const std::int64_t head = 2 * (p.dk + p.value_cols() / p.key_heads);
      const std::int64_t numbers = 2 * (p.heads / p.key_heads);
      linear(stem + "in_proj_qkvz", p.key_heads * head, c_.hidden, w.qkvz).part.rows =
          times(share_.delta_keys, head);
      linear(stem + "in_proj_ba", p.key_heads * numbers, c_.hidden, w.ba).part.rows =
          times(share_.delta_keys, numbers);
    } else {
      fused(stem, "in_proj_qkv", true,
            {{"", p.key_cols(), keys, &w.q},
             {"", p.key_cols(), keys, &w.k},
             {"", p.value_cols(), values, &w.v}});
      linear(stem + "in_proj_z", p.value_cols(), c_.hidden, w.gate).part.rows = values;
      linear(stem + "in_proj_b", p.heads, c_.hidden, w.beta).part.rows = share_.delta_values;
      linear(stem + "in_proj_a", p.heads, c_.hidden, w.decay).part.rows = share_.delta_values;
    }
    convolution(stem + "conv1d.weight", p, keys, 0, w.q_conv);
    convolution(stem + "conv1d.weight", p, keys, p.key_cols(), w.k_conv);
    convolution(stem + "conv1d.weight", p, values, 2 * p.key_cols(), w.v_conv);
    vector(stem + "A_log", p.heads, w.a_log).part.rows = share_.delta_values;
    vector(stem + "dt_bias", p.heads, w.dt_bias).part.rows = share_.delta_values;
    vector(stem + "norm.weight", p.dv, w.norm);
    linear(stem + "out_proj", c_.hidden, p.value_cols(), w.out).part.cols = values;
  }

  // Some of the channels of one tensor for q, k and v: those of `columns`, of a part that begins at
  // channel `first`.
  void convolution(std::string name, const DeltaRuleProblem& p, const Range& columns,
                   std::int64_t first, Vector& to) {
    TensorSpec& spec = vector(std::move(name), p.channels() * p.conv, to);
    spec.shape = {p.channels(), 1, p.conv};
    spec.part.rows = times(Range{first + columns.first, columns.count}, p.conv);
  }

  void latent(const std::string& stem, const AttentionProblem& p, MlaWeights& w) {
    const bool with_q = c_.output_gate == OutputGate::with_q_b;
    const std::int64_t q_head = p.qk_nope_head + p.rope + (with_q ? p.v_head : 0);
    const std::int64_t q_rows = p.heads * q_head;
    const std::int64_t kv = p.qk_nope_head + p.v_head;
    const Range q = times(share_.heads, q_head);
    if (c_.mla.q_lora > 0) {
      linear(stem + "q_a_proj", c_.mla.q_lora, c_.hidden, w.q_a);
      norm(stem + "q_a_layernorm.weight", c_.mla.q_lora, w.q_a_norm);
      linear(stem + "q_b_proj", q_rows, (with_q ? 2 : 1) * c_.mla.q_lora, w.q_b).part.rows = q;
    } else {
      linear(stem + "q_proj", q_rows, c_.hidden, w.q_b).part.rows = q;
    }
    linear(stem + "kv_a_proj_with_mqa", p.nope + p.rope, c_.hidden, w.kv_a);
    norm(stem + "kv_a_layernorm.weight", p.nope, w.kv_a_norm);
    TensorSpec& kv_b = linear(stem + "kv_b_proj", p.heads * kv, p.nope, w.kv_b);
    kv_b.part.rows = times(share_.heads, kv);
    kv_b.split = true;
    linear(stem + "o_proj", c_.hidden, std::int64_t{p.heads} * p.v_head, w.out).part.cols =
        times(share_.heads, p.v_head);
    if (c_.output_gate == OutputGate::heads) {
      linear(stem + "g_proj", p.heads, c_.hidden, w.gate).part.rows = share_.heads;
    }
    if (c_.output_gate == OutputGate::elements) {
      linear(stem + "gate_proj", std::int64_t{p.heads} * p.v_head, c_.hidden, w.gate).part.rows =
          times(share_.heads, p.v_head);
    }
    if (p.sink) sink(stem, p, w.sink);
    if (c_.attention_bias) {
      if (c_.mla.q_lora > 0) vector(stem + "q_a_proj.bias", c_.mla.q_lora, w.q_a_bias);
      vector(stem + "kv_a_proj_with_mqa.bias", p.nope + p.rope, w.kv_a_bias);
    }
    if (c_.attention_out_bias) out_bias(stem, w.out_bias);
  }

  void indexer(const std::string& stem, const AttentionProblem& p, IndexerWeights& w) {
    linear(stem + "wq_b", std::int64_t{p.index_heads} * p.index_dim, c_.mla.q_lora, w.q).compared =
        true;
    linear(stem + "wk", p.index_dim, c_.hidden, w.k).compared = true;
    vector(stem + "k_norm.weight", p.index_dim, w.k_norm);
    vector(stem + "k_norm.bias", p.index_dim, w.k_norm_bias);
    linear(stem + "weights_proj", p.index_heads, c_.hidden, w.weights).compared = true;
    if (p.index_pool == 0) return;
    plain(stem + "index_kpool_compress_gate", p.index_dim, c_.hidden, w.compressor.gate).compared =
        true;
    TensorSpec& bias = vector(stem + "index_kpool_compress_ape",
                              std::int64_t{p.index_pool} * p.index_dim, w.compressor.position_bias);
    bias.shape = {p.index_pool, p.index_dim};
  }

  void stacked_experts(const std::string& stem, MoeWeights& w) {
    const std::int64_t count = c_.moe.experts, width = c_.moe.ffn;
    const Range& local = share_.expert_width;
    const bool biased = !c_.moe.halves;
    const std::string router(biased ? "router.weight" : c_.moe.names.router);
    plain(stem + router, count, c_.hidden, w.router).compared = true;
    if (biased) vector(stem + "router.bias", count, w.router_bias);
    w.experts.gate = WeightStack::of(share_.experts.count, DType::f32, 2 * local.count, c_.hidden);
    w.experts.down = WeightStack::of(share_.experts.count, DType::f32, c_.hidden, local.count);
    TensorSpec& gate =
        whole_stack(stem + "experts.gate_up_proj", 2 * width, c_.hidden, w.experts.gate);
    gate.halves = c_.moe.halves;
    gate.part.rows = times(local, 2);
    whole_stack(stem + "experts.down_proj", c_.hidden, width, w.experts.down).part.cols = local;
    if (!biased) return shared_experts(stem, w);
    stack_bias(stem + "experts.gate_up_proj_bias", 2 * width, w.experts.gate_bias).part.rows =
        times(local, 2);
    TensorSpec& bias = stack_bias(stem + "experts.down_proj_bias", c_.hidden, w.experts.down_bias);
    if (local.first > 0 || local.count == 0) bias.part.rows = {};
  }

  void experts(const std::string& stem, MoeWeights& w) {
    if (c_.moe.stacked) return stacked_experts(stem, w);
    const ExpertNames& names = c_.moe.names;
    plain(stem + std::string(names.router), c_.moe.experts, c_.hidden, w.router).compared = true;
    if (c_.moe.correction_bias) {
      vector(stem + std::string(names.correction_bias), c_.moe.experts, w.bias);
    }
    if (!names.router_scale.empty()) {
      TensorSpec& scale = vector(stem + std::string(names.router_scale), c_.hidden, w.router_norm);
      scale.factor = 1 / std::sqrt(static_cast<float>(c_.hidden));
      scale.ones = true;
    }
    if (!names.expert_scale.empty()) {
      vector(stem + std::string(names.expert_scale), c_.moe.experts, w.expert_scale).ones = true;
    }
    const std::int64_t count = share_.experts.count, width = share_.expert_width.count;
    ExpertStacks& e = w.experts;
    e.gate = e.up = WeightStack::of(count, DType::f32, width, c_.hidden);
    e.down = WeightStack::of(count, DType::f32, c_.hidden, width);
    for (std::int32_t i = 0; i < c_.moe.experts; ++i) {
      const auto expert = [&](std::string_view name) {
        return fmt::format("{}experts.{}.{}", stem, i, name);
      };
      const TensorPart up = expert_part(share_, i, {share_.expert_width, {0, c_.hidden}});
      const TensorPart down = expert_part(share_, i, {{0, c_.hidden}, share_.expert_width});
      const std::int64_t ffn = c_.moe.ffn;
      stacked(expert(names.gate), ffn, c_.hidden, up, i, e.gate, e.gate).of_stack = {
          stem + "experts.gate_up_proj", c_.moe.experts, 2 * ffn, i, 0};
      stacked(expert(names.up), ffn, c_.hidden, up, i, e.up, e.gate).of_stack = {
          stem + "experts.gate_up_proj", c_.moe.experts, 2 * ffn, i, ffn};
      stacked(expert(names.down), c_.hidden, ffn, down, i, e.down, e.down).of_stack = {
          stem + "experts.down_proj", c_.moe.experts, c_.hidden, i, 0};
    }
    shared_experts(stem, w);
  }

  void shared_experts(const std::string& stem, MoeWeights& w) {
    if (c_.moe.shared == 0) return;
    ffn(stem + std::string(c_.moe.names.shared), c_.moe.shared_width(), share_.shared, w.shared);
    if (c_.moe.shared_gate) {
      plain(stem + "shared_expert_gate.weight", 1, c_.hidden, w.shared_gate);
    }
  }

  // width: of the whole layer; share: this rank's of it.
  void ffn(const std::string& stem, std::int64_t width, const Range& share, FfnWeights& w) {
    fused(stem, "gate_up_proj", c_.fused_gate_up,
          {{"gate_proj", width, share, &w.gate}, {"up_proj", width, share, &w.up}});
    linear(stem + "down_proj", c_.hidden, width, w.down).part.cols = share;
  }

  // Rows of a matrix that may be part of a fused one.
  struct FusedRows {
    std::string_view name;  // alone
    std::int64_t rows;      // of the whole model
    Range share;            // of these rows, this rank's
    WeightView* to;
  };
  // Matrices of one input, each a tensor, or with `is_fused` one after the other in tensor `name`.
  void fused(const std::string& stem, std::string_view name, bool is_fused,
             std::initializer_list<FusedRows> matrices) {
    std::int64_t all = 0, first = 0;
    for (const FusedRows& m : matrices) all += m.rows;
    for (const FusedRows& m : matrices) {
      TensorSpec& spec = linear(stem + std::string(is_fused ? name : m.name),
                                is_fused ? all : m.rows, c_.hidden, *m.to);
      spec.part.rows = {m.share.first + (is_fused ? first : 0), m.share.count};
      first += m.rows;
    }
  }
  TensorSpec& linear(const std::string& stem, std::int64_t rows, std::int64_t cols,
                     WeightView& to) {
    TensorSpec& spec = plain(stem + ".weight", rows, cols, to);
    spec.linear = true;
    return spec;
  }
  // `like`: the matrix must have this stack's dtype.
  TensorSpec& stacked(const std::string& stem, std::int64_t rows, std::int64_t cols,
                      const TensorPart& part, std::int64_t expert, WeightStack& to,
                      const WeightStack& like) {
    TensorSpec& spec = out_.emplace_back();
    spec.name = stem + ".weight";
    spec.shape = {rows, cols};
    spec.part = part;
    spec.stack = &to;
    spec.place = part.empty() ? -1 : expert - share_.experts.first;
    spec.like = &like;
    spec.linear = true;
    return spec;
  }
  TensorSpec& plain(std::string name, std::int64_t rows, std::int64_t cols, WeightView& to) {
    TensorSpec& spec = out_.emplace_back();
    spec.name = std::move(name);
    spec.shape = {rows, cols};
    spec.part = {{0, 1}, {0, rows}, {0, cols}};
    spec.matrix = &to;
    return spec;
  }
  // rows, cols: of each matrix of the whole model.
  TensorSpec& whole_stack(const std::string& name, std::int64_t rows, std::int64_t cols,
                          WeightStack& to) {
    TensorSpec& spec = out_.emplace_back();
    spec.name = name;
    spec.shape = {c_.moe.experts, cols, rows};
    spec.part = {share_.experts, {0, rows}, {0, cols}};
    spec.stack = &to;
    spec.whole_stack = true;
    return spec;
  }
  TensorSpec& stack_bias(std::string name, std::int64_t rows, Vector& to) {
    TensorSpec& spec = vector(std::move(name), rows, to);
    spec.shape = {c_.moe.experts, rows};
    spec.part.matrices = share_.experts;
    return spec;
  }
  void out_bias(const std::string& stem, Vector& to) {
    TensorSpec& spec = vector(stem + "o_proj.bias", c_.hidden, to);
    if (share_.rank > 0) spec.part.rows = {};
  }
  TensorSpec& vector(std::string name, std::int64_t n, Vector& to) {
    TensorSpec& spec = out_.emplace_back();
    spec.name = std::move(name);
    spec.shape = {n};
    spec.part.rows = {0, n};
    spec.vector = &to;
    return spec;
  }
  // The weight of an RMSNorm. The indexer's k_norm is a LayerNorm, which has no offset.
  TensorSpec& norm(std::string name, std::int64_t n, Vector& to) {
    TensorSpec& spec = vector(std::move(name), n, to);
    spec.offset = c_.norm_offset;
    return spec;
  }
  // The norm of a part's input, which the layer may not have, and if `gated` its gate.
  void input_norm(const std::string& stem, std::string_view name, bool gated, Vector& to,
                  NormGate& gate) {
    if (!gated || c_.norms.gate_rank == 0) return named_norm(stem, name, to);
    const std::string of = fmt::format("{}{}.", stem, name);
    norm(of + "norm.weight", c_.hidden, to);
    plain(of + "W_down.weight", c_.norms.gate_rank, c_.hidden, gate.down);
    plain(of + "W_up.weight", c_.hidden, c_.norms.gate_rank, gate.up);
  }
  // A norm that the layer may not have.
  void named_norm(const std::string& stem, std::string_view name, Vector& to) {
    if (!name.empty()) norm(fmt::format("{}{}.weight", stem, name), c_.hidden, to);
  }

  const ModelConfig& c_;
  ModelWeights& w_;
  const Share& share_;
  std::vector<TensorSpec> out_;
};

}  // namespace

TensorPart expert_part(const Share& share, std::int64_t expert, const ExpertCut& cut) {
  if (!share.experts.contains(expert)) return {{0, 0}, {0, 0}, {0, 0}};
  return {{0, 1}, cut.rows, cut.cols};
}

std::vector<TensorSpec> tensor_table(const ModelConfig& config, ModelWeights& into,
                                     const Share& share) {
  return config.is_compressed() ? v4_table(config, into, share)
                                : Table(config, into, share).build();
}

std::vector<TensorSpec> tensor_table(const ModelConfig& config, ModelWeights& into) {
  return tensor_table(config, into, whole_share(split_sizes(config)));
}

std::string scale_name(const TensorSpec& spec) {
  return spec.name.substr(0, spec.name.rfind('.')) + ".scale";
}

namespace {

// Formats of 4-bit codes with scales of groups.
bool packs_codes(Quantization q) {
  return q == Quantization::int4 || q == Quantization::mxfp4 || q == Quantization::nvfp4;
}

// Columns of which a matrix of 4-bit codes has a multiple: a group, of NVFP4 two.
std::int64_t group_cols(const ModelConfig& config, DType dtype) {
  return dtype == DType::u4 ? config.int4_group : kMxBlock;
}

// What a whole matrix is stored in, if its columns are whole groups.
DType named_dtype(const ModelConfig& config, const TensorSpec& spec) {
  if (spec.vector != nullptr || spec.f32) return DType::f32;
  if ((spec.whole_stack || spec.may_be_mx) && config.mxfp4) return DType::e2m1;
  if (spec.whole_stack || !spec.linear) return DType::bf16;
  if (spec.split && packs_codes(config.quantization)) return DType::bf16;  // as loading widens it
  const bool cut = spec.joined && spec.stack->rows % kWeightBlock != 0;
  switch (config.quantization) {
    case Quantization::none:
      return DType::bf16;
    case Quantization::fp8_blocks:
    case Quantization::fp8_rows:
      return cut ? DType::bf16 : DType::e4m3;
    case Quantization::int4:
      return DType::u4;
    case Quantization::mxfp4:
    case Quantization::nvfp4:
      return DType::e2m1;
  }
  return DType::bf16;
}

// The whole matrix's; quantisers leave columns that are not whole groups in bf16.
DType whole_dummy_dtype(const ModelConfig& config, const TensorSpec& spec) {
  const DType dtype = named_dtype(config, spec);
  const bool codes = dtype == DType::u4 || dtype == DType::e2m1;
  return codes && spec.shape[1] % group_cols(config, dtype) != 0 ? DType::bf16 : dtype;
}

}  // namespace

bool has_nvfp4(const ModelConfig& config) {
  return config.quantization == Quantization::nvfp4 || config.nvfp4_experts;
}

bool dummy_is_widened(const ModelConfig& config, const TensorSpec& spec) {
  const Range& cols = spec.part.cols;
  return whole_dummy_dtype(config, spec) == DType::u4 &&
         (cols.first % config.int4_group != 0 || cols.count % config.int4_group != 0);
}

DType dummy_dtype(const ModelConfig& config, const TensorSpec& spec) {
  return dummy_is_widened(config, spec) ? DType::f32 : whole_dummy_dtype(config, spec);
}

std::int64_t dummy_bytes(const ModelConfig& config, const TensorSpec& spec) {
  const TensorPart& part = spec.part;
  const std::int64_t n = part.elements();
  if (spec.ids != nullptr) return 4 * n;
  const DType dtype = dummy_dtype(config, spec);
  const std::int64_t values = bytes_of(dtype, n);
  switch (dtype) {
    case DType::e2m1:
      return values + n / (has_nvfp4(config) ? kNvBlock : kMxBlock);
    case DType::u4:
      return values + (config.int4_zeros ? 3 : 2) * (n / config.int4_group);
    case DType::e4m3:
      return values + 4 * part.matrices.count * weight_blocks(part.rows.count) *
                          weight_blocks(part.cols.count);
    default:
      return values;
  }
}

bool ignored_tensor(const ModelConfig& config, std::string_view name) {
  if (config.tied_embeddings && name == "lm_head.weight") return true;
  if (name.ends_with("rotary_emb.inv_freq")) return true;
  // MiMo's draft layers
  if (name.starts_with("model.mtp_layers.") || name.starts_with("model.mtp.")) return true;
  if (config.draft_tensors == DraftTensors::mtp && name.starts_with("mtp.")) return true;
  // DeepSeek V4's draft layers have names of their own, whatever their number in the configuration.
  if (config.is_compressed()) {
    return name.starts_with("mtp.") || name.starts_with("model.mtp.") ||
           (config.tied_embeddings && name == "head.weight");
  }
  const std::optional<std::int32_t> layer = layer_of(name);
  return layer && *layer >= config.layers && *layer < config.layers + config.draft_layers;
}

std::string renamed(std::span<const Renamed> renames, std::string_view name) {
  std::string out(name);
  for (const auto& [from, to] : renames) {
    if (const std::size_t at = out.find(from); at != std::string::npos) {
      out.replace(at, from.size(), to);
    }
  }
  return out;
}

std::optional<std::int32_t> layer_of(std::string_view name) {
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers)) return std::nullopt;
  std::int32_t layer = -1;
  const char* last = name.data() + name.size();
  const auto [end, error] = std::from_chars(name.data() + kLayers.size(), last, layer);
  if (error != std::errc() || end == last || *end != '.') return std::nullopt;
  return layer;
}

}  // namespace lathe
