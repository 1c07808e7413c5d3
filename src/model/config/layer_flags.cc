#include "model/config/layer_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace lathe {
namespace {

enum class Family { grouped_query, mla, compressed };

Family family_of(const AttentionProblem& problem) {
  switch (problem.kind) {
    case ProblemKind::grouped_query:
      return Family::grouped_query;
    case ProblemKind::window_compressed:
      return Family::compressed;
    case ProblemKind::dense_latent:
    case ProblemKind::sparse_latent:
      return Family::mla;
  }
  return Family::mla;
}

std::string_view text_of(Family family) {
  switch (family) {
    case Family::grouped_query:
      return "grouped-query attention";
    case Family::mla:
      return "latent attention";
    case Family::compressed:
      return "compressed attention";
  }
  return "";
}

// Keeps the first refusal.
class FlagCheck {
 public:
  explicit FlagCheck(Family family) : family_(family) {}

  /// Refuses a field that is set, unless `with` holds.
  void needs(bool set, bool with, std::string_view field, std::string_view wanted,
             std::string_view offered) {
    if (!set || with || error_) return;
    error_ = Error{ErrorCode::unsupported, std::string(field), std::string(wanted),
                   std::string(offered), ""};
  }
  /// Refuses a field that is set, unless the layers are of one of the families.
  void only_in(bool set, std::initializer_list<Family> families, std::string_view field) {
    std::string wanted;
    for (const Family f : families) {
      wanted += fmt::format("{}{}", wanted.empty() ? "" : " or ", text_of(f));
    }
    needs(set, std::ranges::find(families, family_) != families.end(), field, wanted,
          text_of(family_));
  }
  Result<void> result() const {
    if (error_) return *error_;
    return {};
  }

 private:
  Family family_;
  std::optional<Error> error_;
};

void check_attention(const ModelConfig& c, FlagCheck& check) {
  const AttentionProblem& problem = c.groups.front().problem;
  check.only_in(c.attention_bias, {Family::grouped_query, Family::mla}, "attention_bias");
  check.only_in(c.attention_out_bias, {Family::grouped_query, Family::mla}, "attention_out_bias");
  check.only_in(c.qk_norm != QkNorm::none, {Family::grouped_query}, "qk_norm");
  check.only_in(c.output_gate == OutputGate::with_q, {Family::grouped_query}, "output_gate");
  for (const OutputGate gate : {OutputGate::heads, OutputGate::elements, OutputGate::with_q_b}) {
    check.only_in(c.output_gate == gate, {Family::mla}, "output_gate");
  }
  check.needs(c.output_gate == OutputGate::with_q_b, c.mla.q_lora > 0, "output_gate",
              "a compressed query (q_lora_rank)", "none");
  check.needs(c.output_gate == OutputGate::with_q, c.qk_norm != QkNorm::whole && !c.fused_qkv,
              "output_gate", "norms of heads or none, and q_proj alone", "others");
  check.only_in(!c.delta.layers.empty(), {Family::grouped_query, Family::mla}, "delta");
  check.only_in(c.fused_qkv, {Family::grouped_query}, "fused_qkv");
  check.only_in(c.value_norm, {Family::grouped_query}, "value_norm");
  check.only_in(c.value_scale != 1, {Family::grouped_query}, "value_scale");
  for (const LayerGroupConfig& group : c.groups) {
    check.only_in(group.unit_qk_norm, {Family::grouped_query}, "unit_qk_norm");
    check.needs(group.unit_qk_norm, c.qk_norm == QkNorm::none, "unit_qk_norm",
                "no other norm of q and k", "one");
    check.only_in(group.values_are_keys, {Family::grouped_query}, "values_are_keys");
    check.needs(group.values_are_keys,
                !c.attention_bias && !c.fused_qkv && c.qk_norm != QkNorm::whole, "values_are_keys",
                "a k_proj of its own, without bias, and norms of heads", "others");
  }
  for (const LayerGroupConfig& group : c.groups) {
    const bool reads = !group.readers.empty();
    check.only_in(reads, {Family::grouped_query}, "readers");
    check.needs(reads,
                !c.fused_qkv && c.qk_norm != QkNorm::whole && c.output_gate == OutputGate::none &&
                    !group.query_growth && !group.layers.empty(),
                "readers", "a q_proj of its own, norms of heads or none, and a layer to read from",
                "others");
  }
  check.only_in(c.fused_gate_up, {Family::grouped_query, Family::mla}, "fused_gate_up");
  check.needs(!c.mla.own_indexer.empty(), problem.kind == ProblemKind::sparse_latent,
              "mla.own_indexer", "a sparse_latent problem", name(problem.kind));
  const auto indexed = [&](std::int32_t layer) {
    return !c.mla.own_indexer.empty() && c.mla.own_indexer[static_cast<std::size_t>(layer)] != 0;
  };
  const std::vector<std::int32_t>& layers = c.groups.front().layers;
  check.needs(problem.kind == ProblemKind::sparse_latent, indexed(layers.front()),
              "mla.own_indexer", "an indexer in the first layer of a sparse_latent problem",
              "none");
  check.needs(!c.delta.layers.empty(), std::ranges::none_of(c.delta.layers, indexed),
              "mla.own_indexer", "indexers in layers with attention", "one in a delta-rule layer");
  check.needs(problem.index_pool > 0,
              std::ranges::all_of(layers, indexed) && layers.size() <= c.delta.layers.size(),
              "index_pool",
              "an indexer in every layer with attention, and as many delta-rule layers, whose "
              "states hold the keys that these have begun",
              "others");
  check.only_in(c.mla.o_groups > 0, {Family::compressed}, "mla.o_groups");
  check.only_in(c.mla.o_groups == 0, {Family::grouped_query, Family::mla}, "no mla.o_groups");
}

void check_norms(const ModelConfig& c, FlagCheck& check) {
  check.only_in(c.norms.of_outputs(), {Family::grouped_query}, "norms.attention_out");
  const bool two_parts = c.moe.experts > 0 && !c.moe.names.dense.empty();
  check.needs(c.norms.of_outputs(), c.moe.experts == 0 || two_parts, "norms.attention_out",
              "dense layers, or experts next to a dense part", "experts");
  check.needs(two_parts,
              c.norms.of_outputs() && !c.norms.dense_out.empty() && !c.norms.experts.empty() &&
                  !c.norms.experts_out.empty(),
              "moe.names.dense", "norms of the outputs, and of the experts' input", "others");
  check.only_in(!two_parts && !c.norms.experts_out.empty(), {Family::mla}, "norms.experts_out");
  check.needs(!two_parts && !c.norms.experts_out.empty(), c.moe.experts > 0 && c.hyper.streams == 0,
              "norms.experts_out", "experts, and one stream", "others");
  check.needs(two_parts, c.moe.shared == 0 && !c.moe.stacked, "moe.names.dense",
              "experts one by one, none of them shared", "others");
  check.needs(c.layer_inputs.width > 0, !c.layer_scale.empty() && c.moe.experts == 0,
              "layer_inputs", "dense layers with a layer_scale", "others");
  check.needs(!c.layer_scale.empty(), c.norms.of_outputs(), "layer_scale", "norms of outputs",
              "none");
  check.needs(true, c.norms.attention_out.empty() == c.norms.ffn_out.empty(), "norms",
              "norms of both outputs or of none", "one");
  check.needs(true, c.norms.attention.empty() == c.norms.ffn.empty(), "norms",
              "norms before both parts or before none", "one");
  check.needs(c.norms.attention.empty(), c.norms.of_outputs(), "norms.attention",
              "norms of outputs where none is before them", "none");
  check.only_in(c.logit_scale != 1, {Family::grouped_query, Family::mla}, "logit_scale");
  check.only_in(c.norm_offset != 0, {Family::grouped_query, Family::mla}, "norm_offset");
  check.only_in(c.norms.gate_rank > 0, {Family::mla}, "norms.gate_rank");
  check.needs(c.norms.gate_rank > 0, c.hyper.streams == 0 && c.delta.layers.empty(),
              "norms.gate_rank", "layers of attention, and one stream", "others");
  check.only_in(c.hyper.streams > 0, {Family::mla, Family::compressed}, "hyper");
  check.needs(c.hyper.streams > 0, c.is_compressed() || !c.hyper.attention.empty(), "hyper",
              "names of its tensors", "none");
  check.only_in(c.hyper.streams == 0, {Family::grouped_query, Family::mla}, "no hyper");
}

void check_experts(const ModelConfig& c, Family family, FlagCheck& check) {
  const MoeConfig& moe = c.moe;
  check.needs(moe.stacked && !moe.halves, moe.shared == 0, "moe.stacked", "no shared experts",
              fmt::format("{} shared", moe.shared));
  check.needs(moe.stacked, !moe.correction_bias, "moe.stacked", "no correction_bias",
              "correction_bias");
  check.needs(moe.shared_gate, moe.shared > 0, "moe.shared_gate", "shared experts", "none");
  check.only_in(moe.shared_gate, {Family::grouped_query, Family::mla}, "moe.shared_gate");
  check.only_in(moe.stacked, {Family::grouped_query, Family::mla}, "moe.stacked");
  check.needs(moe.halves, moe.stacked && !c.mxfp4, "moe.halves", "stacked experts, not in mxfp4",
              moe.stacked ? "mxfp4" : "others");
  check.only_in(moe.weighs_inputs, {Family::grouped_query, Family::mla}, "moe.weighs_inputs");
  check.only_in(moe.hash_layers > 0, {Family::compressed}, "moe.hash_layers");
  check.needs(c.mxfp4, moe.stacked || (family == Family::compressed && c.block_fp8), "mxfp4",
              "stacked experts, or compressed attention with block_fp8", text_of(family));
  if (family != Family::compressed) return;
  const bool all = moe.experts > 0 && std::ranges::count(moe.layer_has_experts, 0) == 0;
  check.needs(true, all && moe.shared > 0, "moe",
              "experts in every layer, some of them shared, with compressed attention",
              all ? "no shared experts" : "dense layers");
}

}  // namespace

Result<void> check_layer_flags(const ModelConfig& config) {
  const Family family = family_of(config.groups.front().problem);
  FlagCheck check(family);
  for (const LayerGroupConfig& group : config.groups) {
    check.needs(true, family_of(group.problem) == family, "groups", "layers of one family",
                fmt::format("{} and {}", text_of(family), text_of(family_of(group.problem))));
    const bool sink = group.problem.sink;
    check.only_in(!sink, {Family::grouped_query, Family::mla}, "attention without a sink");
  }
  check_attention(config, check);
  check_norms(config, check);
  check_experts(config, family, check);
  return check.result();
}

}  // namespace lathe
