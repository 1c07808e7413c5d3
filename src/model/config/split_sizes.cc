#include "model/config/split_sizes.h"

#include <algorithm>

#include "kernels/linear.h"

namespace lathe {

std::int64_t split_block(const ModelConfig& config) {
  constexpr std::int64_t kPlainBlock = 16;
  switch (config.quantization) {
    case Quantization::fp8_blocks:
      return kWeightBlock;
    case Quantization::int4:
      return config.int4_group;
    case Quantization::mxfp4:
    case Quantization::nvfp4:
      return kMxBlock;
    case Quantization::none:
    case Quantization::fp8_rows:
      break;
  }
  return kPlainBlock;
}

SplitSizes split_sizes(const ModelConfig& config) {
  const AttentionProblem& p = config.groups.front().problem;
  SplitSizes out;
  out.heads = p.heads;
  out.kv_heads = p.kv_heads;
  for (const LayerGroupConfig& group : config.groups) {
    if (group.problem.kv_heads != p.kv_heads) out.other_kv_heads = group.problem.kv_heads;
  }
  out.o_groups = config.mla.o_groups;
  if (const DeltaRuleProblem& delta = config.delta.problem; !config.delta.layers.empty()) {
    out.delta_keys = delta.key_heads;
    out.delta_values = delta.heads / delta.key_heads;
  }
  out.experts = config.moe.experts;
  out.vocab = config.vocab;
  out.ffn_block = split_block(config);
  out.expert_block = config.mxfp4 ? kMxBlock : out.ffn_block;
  const auto& layers = config.moe.layer_has_experts;
  const bool dense =
      !config.is_compressed() && (out.experts == 0 || !config.moe.names.dense.empty() ||
                                  std::ranges::find(layers, std::uint8_t{0}) != layers.end());
  if (dense) out.ffn = config.ffn;
  if (out.experts > 0) {
    out.expert_width = config.moe.ffn;
    out.shared = config.moe.shared_width();
  }
  return out;
}

ModelConfig rank_config(ModelConfig config, std::int32_t ranks) {
  for (LayerGroupConfig& group : config.groups) group.problem = rank_problem(group.problem, ranks);
  if (config.draft_group) {
    config.draft_group->problem = rank_problem(config.draft_group->problem, ranks);
  }
  config.delta.problem = rank_problem(config.delta.problem, ranks);
  config.mla.o_groups /= ranks;
  return config;
}

}  // namespace lathe
