// What expanding a key of a latent cache to per-head keys and values takes on a GPU.
#pragma once

#include <cstdint>
#include <numeric>

#include "attn/problem.h"

namespace lathe {

/// Heads that are expanded together at least: their rows of kv_b are whole blocks of 128, which
/// have a factor each in fp8.
constexpr std::int32_t least_expanded_heads(const AttentionProblem& p) {
  const std::int32_t step = 128 / std::gcd(128, p.qk_nope_head + p.v_head);
  return p.heads % step == 0 ? step : p.heads;
}

/// Bytes of workspace for a key whose keys and values of `heads` heads are there at a time, in
/// bf16, beside its latent and its slot.
constexpr std::int64_t expanded_key_bytes(const AttentionProblem& p, std::int64_t heads) {
  return 2 * std::int64_t{p.nope + p.rope} + 4 + heads * 2 * (p.qk_nope_head + p.v_head);
}

}  // namespace lathe
