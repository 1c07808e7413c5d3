// PlanRequest: what the user asked for. The planner resolves "auto" and honours or rejects anything
// else.
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
  std::string prefill = "auto";   // --prefill-attention-backend: a kind, another project's name for
                                  // it, or a kernel's name
  std::string decode = "auto";    // --decode-attention-backend
  std::string layout = "auto";    // --kv-layout: a name, or a serialised layout
  std::string kv_dtype = "auto";  // --kv-cache-dtype: bf16, fp8_e4m3, fp4_e2m1
  std::int32_t page_size = 0;     // --page-size: tokens per page; 0 = auto

  std::int64_t chunked_prefill_size = 8192;  // rows of one extend step
  std::int64_t max_running_requests = 256;   // rows of one decode step
  std::int64_t context_length = 131072;      // tokens of the longest request
  // Drafts of a request in a step, so a verify step has 1 + draft_tokens rows of each; 0 = none.
  std::int32_t draft_tokens = 0;
  std::int32_t layers = 61;           // that share one plan
  std::int32_t index_layers = 0;      // of them, with an index cache; 0 = all
  std::int64_t max_total_tokens = 0;  // tokens that the cache must hold; 0 = what fits
  bool cuda_graph = true;             // decode steps are captured and replayed
  // --batch-invariant: attention gives a request the same bits whatever is beside it, on a GPU,
  // too.
  bool batch_invariant = false;

  std::int64_t logits_budget = std::int64_t{512} << 20;  // bytes
  std::int64_t gather_budget = std::int64_t{1} << 30;    // bytes
  // Bytes of a model's intermediate tensors; 0: what the rows of a step need, those of absorbed
  // attention in tiles of kAbsorbedTile bytes.
  std::int64_t activations_budget = 0;

  const std::string& backend(Side side) const { return side == Side::prefill ? prefill : decode; }
  std::string& backend(Side side) { return side == Side::prefill ? prefill : decode; }

  bool operator==(const PlanRequest&) const = default;
};

constexpr std::string_view flag_of(Side side) {
  return side == Side::prefill ? "--prefill-attention-backend" : "--decode-attention-backend";
}

/// A resolved backend flag: any kernel, every kernel of a kind, or one kernel.
struct BackendChoice {
  std::optional<KernelKind> kind;
  std::optional<std::string> kernel;

  bool automatic() const { return !kind && !kernel; }
  bool matches(const Capability& c) const {
    if (kernel) return c.name == *kernel;
    return !kind || c.kind == *kind;
  }
};

/// Other systems' names for a kind, "flashmla_sparse, ..."; empty where there is none.
std::string other_names(KernelKind kind);

/// Resolves kernel names first, then kinds, then other projects' names (flashmla_sparse,
/// flashmla_kv, trtllm, fa3, ...). Errors: an unknown name, listing the known ones.
Result<BackendChoice> parse_backend(const std::string& text, Side side, const Registry& registry);

/// Errors: negative or zero sizes, naming the flag.
Result<void> check_plan_request(const PlanRequest& request);

}  // namespace lathe
