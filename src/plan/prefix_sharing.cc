#include "plan/prefix_sharing.h"

#include <algorithm>

#include "attn/draft_rows.h"

namespace lathe {
namespace {

// Of a step with groups, in each layer: a second attention kernel, for latents with its combine and
// a copy of queries; and the join.
constexpr double kLaunchSeconds = 4e-6, kLatentLaunchSeconds = 10e-6;
// Above, tensor cores bound the attention of a row to latents, however often keys are read.
constexpr std::int32_t kMostLatentHeads = 64;

bool all_kernels_share(const Plan& plan) {
  for (const Phase phase : {Phase::decode, Phase::verify}) {
    for (const Route& r : plan.phase(phase).routes) {
      const Kernel* kernel = r.bound.kernel;
      if (kernel == nullptr || !kernel->capability.shared_prefixes || r.adapter) return false;
    }
  }
  return !plan.phase(Phase::decode).routes.empty();
}

bool is_latent(const AttentionProblem& p) { return p.kind != ProblemKind::grouped_query; }

// Of a row's part: f32 outputs and LSEs, or bf16 outputs of latents next to a copy of the queries.
// Narrow latents have f32 outputs without a copy, which is about as much.
std::int64_t row_part_bytes(const AttentionProblem& p) {
  const std::int64_t v_dim = p.v_dim();
  if (!is_latent(p)) return p.heads * (v_dim + 1) * 4;
  return p.heads * std::max((v_dim + 1) * 4, v_dim * 2 + 4 + std::int64_t{p.qk_dim()} * 2);
}

std::int64_t part_bytes(const AttentionProblem& p, std::int64_t requests,
                        std::int32_t draft_tokens) {
  // A recorded step that verifies drafts has as many rows as this.
  const std::int64_t rows = std::max(requests, recorded_verify_rows(requests, draft_tokens));
  return rows * (1 + kPrefixLevels) * row_part_bytes(p);
}

}  // namespace

PrefixSharing prefix_sharing(const Plan& plan, const Machine& machine, const PlanRequest& request) {
  const AttentionProblem& p = plan.problem;
  PrefixSharing s;
  if (request.separate_prefixes || request.batch_invariant || !all_kernels_share(plan)) return s;
  if (is_latent(p) && p.heads > kMostLatentHeads) return s;
  if (part_bytes(p, request.max_running_requests, request.draft_tokens) > kMostPrefixParts) {
    return s;
  }
  s.on = true;
  s.key_bytes = plan.main().layout.bytes_per_token();
  s.part_bytes = 2 * row_part_bytes(p);
  s.launch_bytes = static_cast<std::int64_t>(
      machine.bytes_per_second * (is_latent(p) ? kLatentLaunchSeconds : kLaunchSeconds));
  s.row_heads = is_latent(p) ? p.heads : p.heads / p.kv_heads;
  return s;
}

std::int64_t prefix_part_bytes(const Plan& plan, std::int64_t requests) {
  return plan.prefixes.on ? part_bytes(plan.problem, requests, plan.draft_tokens) : 0;
}

}  // namespace lathe
