#include "plan/prefix_sharing.h"

#include <fmt/format.h>

#include <algorithm>

#include "attn/draft_rows.h"

namespace lathe {
namespace {

constexpr std::int32_t kMostHeadDim = 256;  // wider heads have not been measured

// Shares of an H200's 4.8 TB/s and 989 TFLOP/s. Keys that requests have in common are mostly in L2,
// so each request reads them faster than memory would; e4m3 keys, which are widened, are read at
// two thirds of the rate of bf16.
constexpr double kBf16ReadShare = 1.75, kFp8ReadShare = 1.17, kFlopsShare = 0.45;
// A call with groups waits for one attention kernel after the other and for the join.
constexpr double kLaunchSeconds = 20e-6;
// A row of 32 heads of 128. Its parts are a third of it; the rest is that its own keys are a work
// item of their own.
constexpr double kRowSeconds = 0.1e-6;

bool all_kernels_share(const Plan& plan) {
  for (const Phase phase : {Phase::decode, Phase::verify}) {
    for (const Route& r : plan.phase(phase).routes) {
      const Kernel* kernel = r.bound.kernel;
      if (kernel == nullptr || !kernel->capability.shared_prefixes || r.adapter) return false;
    }
  }
  return !plan.phase(Phase::decode).routes.empty();
}

// f32 outputs and LSEs, on each level and of the own keys.
std::int64_t part_bytes(const AttentionProblem& p, std::int64_t requests,
                        std::int32_t draft_tokens) {
  // A recorded step that verifies drafts has as many rows as this.
  const std::int64_t rows = std::max(requests, recorded_verify_rows(requests, draft_tokens));
  return rows * (1 + kPrefixLevels) * p.heads * (std::int64_t{p.v_dim()} + 1) * 4;
}

std::int64_t picoseconds(double seconds) { return static_cast<std::int64_t>(seconds * 1e12 + 0.5); }

}  // namespace

std::string what_separates_prefixes(const Plan& plan, const PlanRequest& request) {
  const AttentionProblem& p = plan.problem;
  if (request.batch_invariant) return "--batch-invariant";
  if (p.kind != ProblemKind::grouped_query) return "latent attention";
  if (p.head_dim > kMostHeadDim) return fmt::format("heads of {}", p.head_dim);
  if (!all_kernels_share(plan)) return "a kernel that reads them for each";
  if (part_bytes(p, request.max_running_requests, request.draft_tokens) > kMostPrefixParts) {
    return fmt::format("parts of --max-running-requests {} rows", request.max_running_requests);
  }
  return "";
}

PrefixSharing prefix_sharing(const Plan& plan, const Machine& machine, const PlanRequest& request) {
  const AttentionProblem& p = plan.problem;
  PrefixSharing s;
  if (request.separate_prefixes || !what_separates_prefixes(plan, request).empty()) return s;
  const CacheLayout& layout = plan.main().layout;
  const bool wide = layout.value_dtype() == DType::bf16;
  const double heads = p.heads, width = p.qk_dim() + p.v_dim();
  s.on = true;
  s.key_ps = picoseconds(static_cast<double>(layout.bytes_per_token()) /
                         (machine.bytes_per_second * (wide ? kBf16ReadShare : kFp8ReadShare)));
  s.row_key_ps = picoseconds(2 * heads * width / (machine.bf16_flops * kFlopsShare));
  s.row_ps = picoseconds(kRowSeconds * heads * width / (32 * 256));
  s.launch_ps = picoseconds(kLaunchSeconds);
  s.row_heads = p.heads / p.kv_heads;
  return s;
}

std::int64_t prefix_part_bytes(const Plan& plan, std::int64_t requests) {
  return plan.prefixes.on ? part_bytes(plan.problem, requests, plan.draft_tokens) : 0;
}

}  // namespace lathe
