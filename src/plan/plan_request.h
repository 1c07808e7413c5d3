// PlanRequest: what the user asks for. The planner chooses where it says "auto" and follows or
// refuses everything else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "attn/capability.h"
#include "base/result.h"
#include "plan/registry.h"

namespace lathe {

struct PlanRequest {
  std::string prefill = "auto";   // --prefill-attention-backend: a kind, another system's name for
                                  // it, or a kernel's name
  std::string decode = "auto";    // --decode-attention-backend
  std::string layout = "auto";    // --kv-layout: a name, or a serialised layout
  std::string kv_dtype = "auto";  // --kv-cache-dtype: bf16, fp8_e4m3, fp4_e2m1
  std::int32_t page_size = 0;     // --page-size: tokens per page; 0 = auto

  std::int64_t chunked_prefill_size = 8192;  // rows of one extend step
  std::int64_t max_running_requests = 256;   // rows of one decode step
  std::int64_t context_length = 131072;      // most tokens of a request
  // Most drafts of a request in a step: a verify step has up to 1 + draft_tokens rows per request.
  // 0 = no drafts.
  std::int32_t draft_tokens = 0;
  std::int32_t layers = 61;           // layers that share the plan
  std::int32_t index_layers = 0;      // layers with an index cache; 0 = all
  std::int64_t max_total_tokens = 0;  // tokens that the cache must hold; 0 = what fits
  bool cuda_graph = true;             // decode steps are captured and replayed
  // Ranks that share the model (attn/ranks.h), and how. The problems and kernels are a rank's.
  std::int32_t tp = 1;                  // --tp
  std::string expert_split = "auto";    // --expert-split: auto, width, number, or WxE
  bool expert_parallel = false;         // --enable-expert-parallel: as expert_split "number"
  std::int32_t ep_size = 0;             // --ep-size: E of WxE; 0 = any
  std::string exchange = "auto";        // --exchange: auto, peer, nccl
  std::string exchange_dtype = "auto";  // --exchange-dtype: auto, f32
  // --batch-invariant: attention's bits of a request do not depend on other requests, on a GPU too.
  bool batch_invariant = false;
  // --disable-cascade-attn: decode steps read keys that requests share for each of them.
  bool separate_prefixes = false;

  std::int64_t logits_budget = std::int64_t{512} << 20;  // bytes
  std::int64_t gather_budget = std::int64_t{1} << 30;    // bytes
  // Bytes of a model's intermediate tensors. 0: as many as the rows of a step need; absorbed
  // attention's are tiled to kAbsorbedTile bytes.
  std::int64_t activations_budget = 0;

  const std::string& backend(Side side) const { return side == Side::prefill ? prefill : decode; }
  std::string& backend(Side side) { return side == Side::prefill ? prefill : decode; }

  bool operator==(const PlanRequest&) const = default;
};

constexpr std::string_view flag_of(Side side) {
  return side == Side::prefill ? "--prefill-attention-backend" : "--decode-attention-backend";
}

/// A parsed backend flag: any kernel, the kernels of a kind, or one kernel.
struct BackendChoice {
  std::optional<KernelKind> kind;
  std::optional<std::string> kernel;

  bool automatic() const { return !kind && !kernel; }
  bool matches(const Capability& c) const {
    if (kernel) return c.name == *kernel;
    return !kind || c.kind == *kind;
  }
};

/// Other systems' names for a kind, "flashmla_sparse, ..."; empty if there are none.
std::string other_names(KernelKind kind);

/// Looks `text` up among kernel names, then kinds, then other systems' names (flashmla_sparse,
/// flashmla_kv, trtllm, fa3, ...). Error: an unknown name; it lists the known ones.
Result<BackendChoice> parse_backend(const std::string& text, Side side, const Registry& registry);

/// Errors: a number of ranks or of groups of experts that is not a power of two up to kMostRanks,
/// an unknown exchange, a flag of several ranks with --tp 1. They name the flag.
Result<void> check_ranks(const PlanRequest& request);

/// Errors: check_ranks()'s; negative or zero sizes. They name the flag.
Result<void> check_plan_request(const PlanRequest& request);

}  // namespace lathe
