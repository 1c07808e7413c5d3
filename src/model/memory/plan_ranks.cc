#include "model/memory/plan_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/config/split_sizes.h"
#include "model/memory/fit_model.h"
#include "plan/explain.h"
#include "plan/floor.h"

namespace lathe {
namespace {

// What a machine's memory gives of its peak when a kernel reads weights: 4.2 of 4.8 TB/s on an
// H200.
constexpr double kReadShare = 0.875;
constexpr std::int64_t kFloorContext = 4096;

std::int64_t expert_layers(const ModelConfig& config) {
  const auto& has = config.moe.layer_has_experts;
  if (config.moe.experts == 0) return 0;
  if (config.is_compressed()) return config.cached_layers();
  return std::ranges::count_if(has, [](std::uint8_t experts) { return experts != 0; });
}

std::array<std::int64_t, 8> counts(const Share& s) {
  return {s.heads.count,  s.kv_heads.count,     s.o_groups.count, s.ffn.count,
          s.shared.count, s.expert_width.count, s.experts.count,  s.vocab.count};
}

void add_tensor(const BlockTensor& tensor, std::vector<BlockTensor>& to) {
  if (std::ranges::find(to, tensor) == to.end()) to.push_back(tensor);
}

// Output projections in 4 bits, with columns that no rank can cut. p: of a group of layers.
// block_of: how many of so many columns those are.
template <class BlockOf>
void add_outputs(const ModelConfig& config, const AttentionProblem& p, bool always,
                 const BlockOf& block_of, std::vector<BlockTensor>& to) {
  const auto add = [&](const char* name, std::int32_t units, std::int64_t each) {
    add_tensor({name, units, each, block_of(units * each), always}, to);
  };
  if (config.is_compressed()) return add("wo_b", config.mla.o_groups, config.mla.o_lora);
  add("o_proj", p.heads, std::max(p.v_head, p.v_head_dim));
  const DeltaRuleProblem& delta = config.delta.problem;
  if (!config.delta.layers.empty()) add("linear_attn's output", delta.heads, delta.dv);
}

// Matrices in e4m3 with a scale for each block of rows and columns.
void add_fp8(const ModelConfig& config, const AttentionProblem& p, std::vector<BlockTensor>& to) {
  const auto add = [&](const char* name, std::int32_t units, std::int64_t each) {
    add_tensor({name, units, each, kWeightBlock, false}, to);
  };
  if (config.is_compressed()) {
    add("wq_b", p.heads, p.qk_dim());
    add("wo_a", config.mla.o_groups, config.mla.o_lora);
    add("wo_b", config.mla.o_groups, config.mla.o_lora);
  } else if (config.is_mla()) {
    const bool with_gate = config.output_gate == OutputGate::with_q_b;
    add(config.mla.q_lora > 0 ? "q_b_proj" : "q_proj", p.heads,
        p.qk_nope_head + p.rope + (with_gate ? p.v_head : 0));
    add("kv_b_proj", p.heads, p.qk_nope_head + p.v_head);
    if (config.output_gate == OutputGate::elements) add("gate_proj", p.heads, p.v_head);
    add("o_proj", p.heads, p.v_head);
  } else {
    add("q_proj", p.heads, p.head_dim);
    add("k_proj", p.kv_heads, p.head_dim);
    add("v_proj", p.kv_heads, p.v_head_dim);
    add("o_proj", p.heads, p.v_head_dim);
  }
  if (!config.delta.layers.empty()) {
    const DeltaRuleProblem& delta = config.delta.problem;
    add("linear_attn's q and k", delta.key_heads, delta.dk);
    add("linear_attn's v", delta.heads, delta.dv);
  }
}

// Tensors that a share must not cut inside a block of scales. p: of a group of layers.
void add_block_tensors(const ModelConfig& config, const AttentionProblem& p,
                       std::vector<BlockTensor>& to) {
  switch (config.quantization) {
    case Quantization::none:
    case Quantization::fp8_rows:
      return;
    case Quantization::int4:
      // Columns out of order are spread over all groups.
      return add_outputs(
          config, p, false,
          [&](std::int64_t cols) { return config.int4_order ? cols : split_block(config); }, to);
    case Quantization::mxfp4:
    case Quantization::nvfp4:
      return add_outputs(
          config, p, true, [&](std::int64_t) { return split_block(config); }, to);
    case Quantization::fp8_blocks:
      return add_fp8(config, p, to);
  }
}

}  // namespace

SplitModel split_model(const ModelConfig& config) {
  ShareBytes bytes(config);
  return split_model(config, bytes);
}

SplitModel split_model(const ModelConfig& config, ShareBytes& shares) {
  SplitModel out;
  out.sizes = split_sizes(config);
  out.top_k = config.moe.top_k;
  const RankBytes& bytes = shares.whole();
  const auto all = static_cast<double>(bytes.sum());
  out.ffn_part = static_cast<double>(bytes.at(WeightPart::dense)) / all;
  out.shared_part = static_cast<double>(bytes.at(WeightPart::shared)) / all;
  const std::int64_t with_experts = expert_layers(config);
  const bool both = !config.moe.names.dense.empty();  // layers have a dense part next to experts
  const std::int64_t dense = config.cached_layers() - (both ? 0 : with_experts);
  if (dense > 0) out.ffn_bytes = bytes.at(WeightPart::dense) / dense;
  if (with_experts > 0) out.shared_bytes = bytes.at(WeightPart::shared) / with_experts;
  // Groups of layers may have heads of other widths, and other numbers of them.
  for (const LayerGroupConfig& group : config.groups) {
    add_block_tensors(config, group.problem, out.tensors);
  }
  return out;
}

Result<RankPlan, std::vector<Reason>> plan_ranks(const ModelConfig& config, const Machine& machine,
                                                 const PlanRequest& request) {
  ShareBytes bytes(config);
  return plan_ranks(config, machine, request, bytes);
}

Result<RankPlan, std::vector<Reason>> plan_ranks(const ModelConfig& config, const Machine& machine,
                                                 const PlanRequest& request, ShareBytes& shares) {
  RankPlan out;
  out.whole = split_sizes(config);
  out.most = largest_share(out.whole, out.parallel);
  if (request.tp == 1) return out;
  // As in run_layer(): streams, and outputs with norms of their own, need all rows on all ranks.
  const bool divided = config.hyper.streams == 0 && config.norms.of_inputs_alone();
  const auto exchange =
      plan_exchange(machine, request, config.hidden, config.cached_layers(), divided);
  if (!exchange) return std::vector<Reason>{exchange.error()};
  SplitModel model = split_model(config, shares);
  model.whole_blocks = is_gpu(machine.device);
  const auto split = choose_split(model, request);
  if (!split) return split.error();
  out.device = machine.model;
  out.exchange = *exchange;
  // A dense part and experts are summed one by one, because each sum is normed.
  if (!config.moe.names.dense.empty()) out.exchange.in_layers += expert_layers(config);
  out.parallel = *split;
  out.most = largest_share(out.whole, out.parallel);
  // Ranks with as much of every part have as many bytes, but for rank 0's biases.
  std::vector<std::array<std::int64_t, 8>> seen;
  for (std::int32_t r = 0; r < request.tp; ++r) {
    const Share share = share_of(out.whole, out.parallel, r);
    if (std::ranges::find(seen, counts(share)) != seen.end()) continue;
    seen.push_back(counts(share));
    const RankBytes& bytes = shares.of(share);
    if (bytes.sum() <= out.weight_bytes) continue;
    out.fullest = r;
    out.weight_bytes = bytes.sum();
    out.replicated_bytes = bytes.replicated;
  }
  if (const Machine least = rank_machine(machine, request.tp);
      is_gpu(machine.device) && least.memory_bytes < machine.memory_bytes) {
    const auto at = std::ranges::min_element(machine.free_bytes) - machine.free_bytes.begin();
    out.notes.push_back(fmt::format("GPU {} has least free memory, {}: every rank plans for it", at,
                                    human_bytes(least.memory_bytes)));
  }
  return out;
}

std::vector<LayerGroup> rank_groups(const ModelConfig& config, const RankPlan& ranks) {
  std::vector<LayerGroup> out = config.layer_groups();
  for (LayerGroup& group : out) {
    group.problem = rank_problem(group.problem, ranks.parallel.tp);
    if (!group.delta) continue;
    group.delta->problem = rank_problem(group.delta->problem, ranks.parallel.tp);
    group.state_bytes = state_bytes(group.delta->problem, group.problem);
  }
  return out;
}

std::vector<RankFloor> decode_floors(const ModelConfig& config, const ModelPlan& plan,
                                     const Machine& machine, ShareBytes& shares) {
  const RankPlan& ranks = plan.ranks;
  const Parallel& parallel = ranks.parallel;
  if (!is_gpu(machine.device)) return {};
  const RankBytes& bytes = shares.of(share_of(ranks.whole, parallel, ranks.fullest));
  const std::int64_t experts = bytes.at(WeightPart::experts);
  const auto always = static_cast<double>(bytes.sum() - experts - bytes.at(WeightPart::embedding));
  std::vector<RankFloor> out;
  for (const std::int64_t rows : {1, 64, 256}) {
    if (rows > plan.max_requests()) break;
    double read = always;
    if (experts > 0) {
      const double all = config.moe.experts;
      const double used = 1 - std::pow(1 - config.moe.top_k / all, static_cast<double>(rows));
      read += static_cast<double>(experts) * used *
              number_imbalance(config.moe.experts, config.moe.top_k, parallel.expert_number, rows);
    }
    for (const GroupPlan& g : plan.groups) {
      // The states of the delta rule are read and written.
      if (g.group.delta) read += 2 * static_cast<double>(rows * g.group.all_state_bytes());
      read += static_cast<double>(rows) *
              decode_cache_bytes(g.plan, std::min(kFloorContext, plan.context_length()));
    }
    out.push_back({rows, read / (kReadShare * machine.bytes_per_second),
                   static_cast<double>(ranks.exchange.in_layers) *
                       exchange_seconds(ranks.exchange, parallel.tp, rows)});
  }
  return out;
}

}  // namespace lathe
