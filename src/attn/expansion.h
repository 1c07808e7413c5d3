// Workspace sizes of a GPU that expands latents to per-head keys and values.
#pragma once

#include <cstdint>
#include <numeric>

#include "attn/problem.h"

namespace lathe {

/// Fewest heads that can be expanded together: their rows of kv_b must be whole blocks of 128,
/// because fp8 weights have a scale per block.
constexpr std::int32_t least_expanded_heads(const AttentionProblem& p) {
  const std::int32_t step = 128 / std::gcd(128, p.qk_nope_head + p.v_head);
  return p.heads % step == 0 ? step : p.heads;
}

/// Workspace bytes per key while `heads` heads are expanded at a time: the latent, the slot, and
/// keys and values in bf16.
constexpr std::int64_t expanded_key_bytes(const AttentionProblem& p, std::int64_t heads) {
  return 2 * std::int64_t{p.nope + p.rope} + 4 + heads * 2 * (p.qk_nope_head + p.v_head);
}

}  // namespace lathe
