#include "model/memory/gpu_budgets.h"

#include <algorithm>

#include "attn/draft_rows.h"
#include "base/dtype.h"
#include "kernels/limits.h"
#include "kernels/sampling.h"
#include "step/prefix_sizes.h"
#include "step/step.h"

namespace lathe {
namespace {

// The driver's memory per node of a recorded graph.
constexpr std::int64_t kNodeBytes = 3 << 10;

// share: the largest of a rank.
std::int64_t expert_rows(const ModelConfig& config, const Share& share, std::int64_t rows) {
  const MoeConfig& m = config.moe;
  const std::int64_t ffn = share.expert_width.count;
  const std::int64_t hidden = config.hidden;
  if (m.experts == 0) return 0;
  // Codes and scales of what e4m3 experts make of gate and up.
  const std::int64_t codes = config.has_fp8() && !config.mxfp4 ? ffn + ffn / 32 : 0;
  const std::int64_t choice = 2 * (ffn + hidden) + codes + 64;
  // Few rows go through the shared experts in the same launches, with sums for each part of K.
  const std::int64_t few = std::min(rows, cuda::kDenseTokens);
  const std::int64_t shared =
      m.shared == 0
          ? 0
          : few * (3 * share.shared.count + cuda::kMostSplit * 4 * hidden + 2 * hidden + 512) +
                4096;
  const std::int64_t wide = m.top_k * (4 * (2 * ffn + hidden) + 256) + 4 * m.experts + 64;
  return std::max({std::min(rows, cuda::kPlainExpertRows) * wide,
                   std::min(rows * m.top_k * choice, cuda::kExpertPassBytes + m.top_k * choice),
                   few * m.top_k * choice + shared}) +
         64 * std::int64_t{m.experts};
}

// Experts in GPTQ's act order in bf16, some at a time: the grouped GEMM does not take them packed.
std::int64_t widened_weights(const ModelConfig& config) {
  const MoeConfig& m = config.moe;
  if (!config.int4_order || m.experts == 0) return 0;
  return std::max(cuda::kWidenedBytes, 4 * std::int64_t{m.ffn} * config.hidden) + 256;
}

std::int64_t rope_tables(const ModelConfig& config, std::int64_t positions) {
  std::int64_t sum = 0;
  for (std::size_t g = 0; g < config.groups.size(); ++g) {
    const LayerGroupConfig& group = config.groups[g];
    const bool seen =
        std::any_of(config.groups.begin(), config.groups.begin() + static_cast<std::ptrdiff_t>(g),
                    [&](const LayerGroupConfig& other) { return other.rope == group.rope; });
    if (seen) continue;
    const AttentionProblem& p = group.problem;
    std::int64_t dims = group.rope.dim;
    if (p.kind == ProblemKind::sparse_latent) dims += group.rope.dim;
    if (group.query_growth) {
      dims += p.kind == ProblemKind::grouped_query ? group.rope.dim : p.qk_nope_head + p.rope;
    }
    sum += positions * dims * 4;
  }
  return sum;
}

// A step of more rows than are sampled at once has one graph for greedy sampling and one for the
// rest.
std::int64_t graphs_of(std::int64_t rows) { return rows > cuda::kSampledRows ? 2 : 1; }

// Graphs of steps of `rows` rows: one for each padded context, and more where requests may share
// prefixes.
std::int64_t graphs_of(const ModelPlan& plan, std::int64_t rows) {
  std::int64_t sum = 0;
  const std::int64_t longest = std::max<std::int64_t>(1, plan.context_length());
  for (std::int64_t n = 0; n < longest;) {
    n = padded_context(n + 1);
    std::int64_t sizes = 1;
    for (const GroupPlan& g : plan.groups) {
      sizes *= prefix_sizes(g.plan.prefixes, rows, std::min(n, longest)).count();
    }
    sum += sizes * graphs_of(rows);
  }
  return sum;
}

// Graphs of decode and verify steps and of a draft layer's passes, for each padded number of rows.
std::int64_t graphs(const ModelConfig& config, const ModelPlan& plan) {
  std::int64_t count = 0;
  const std::int64_t requests = plan.max_requests();
  for (std::int64_t n = 0; n < requests;) {
    n = std::min(padded_decode_rows(n + 1), requests);
    count += graphs_of(plan, n);
  }
  const std::int64_t drafted = recorded_verify_rows(requests, plan.draft_tokens());
  for (std::int64_t n = 1; n < drafted;) {
    n = padded_verify_rows(n + 1);
    count += graphs_of(plan, n);
  }
  const std::int64_t streams = config.hyper.streams > 0 ? 8 : 0;
  const std::int64_t layer = config.is_compressed() ? 60 : config.is_mla() ? 28 + streams : 20;
  const std::int64_t passes = config.drafts ? 2 : 1;
  return count * (layer * config.cached_layers() + 8 * passes) * kNodeBytes;
}

// Page tables of the two calls that latent attention with shared prefixes makes.
std::int64_t prefix_tables(const ModelPlan& plan, std::int64_t decoding) {
  std::int64_t bytes = 0;
  for (const GroupPlan& g : plan.groups) {
    if (!g.plan.prefixes.on || g.plan.problem.kind == ProblemKind::grouped_query) continue;
    const std::int64_t pages = g.plan.context_length / g.plan.main().page_size + 1;
    const std::int64_t tables = decoding + kPrefixLevels * decoding / 16 + kPrefixGroups + 1;
    bytes = std::max(bytes, 4 * tables * (pages + 2));
  }
  return bytes;
}

}  // namespace

std::vector<Budget> gpu_budgets(const ModelConfig& config, const ModelPlan& plan,
                                const Machine& machine) {
  const std::int64_t decoding =
      std::max(plan.max_requests(), recorded_verify_rows(plan.max_requests(), plan.draft_tokens()));
  const std::int64_t vocab = config.vocab;
  std::vector<Budget> out;
  const auto add = [&](BudgetKind kind, std::int64_t bytes) {
    if (bytes > 0) out.push_back({kind, bytes, 0});
  };
  const std::int64_t passes = config.drafts ? 2 : 1;  // the model's, and its draft layer's
  // One work list with the partials, and one for each group, which its layers share in a pass.
  const std::int64_t list =
      256 * (plan.max_rows() + decoding) + (1 << 20) + prefix_tables(plan, decoding);
  add(BudgetKind::schedules, (1 + passes * std::ssize(plan.groups)) * list);
  add(BudgetKind::expert_rows, expert_rows(config, plan.ranks.most, plan.max_rows() + decoding));
  add(BudgetKind::widened_weights, widened_weights(config));
  add(BudgetKind::logits, passes * decoding * plan.ranks.most.vocab.count * 4);
  add(BudgetKind::sampler, cuda::kSampledRows * (vocab + kSumBlock) * 8 + decoding * 512);
  add(BudgetKind::rope_tables, rope_tables(config, plan.context_length()));
  add(BudgetKind::norm_codes, cuda::kNormCodeBytes);
  const Plan& first = plan.groups.front().plan;
  if (first.phase(Phase::decode).routes.size() > 0) add(BudgetKind::graphs, graphs(config, plan));
  add(BudgetKind::reserve, machine.memory_bytes / 50);
  return out;
}

}  // namespace lathe
