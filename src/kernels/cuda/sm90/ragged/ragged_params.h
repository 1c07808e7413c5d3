// The parameters of attention over expanded keys, plain values.
//
// The keys of all requests of a pass lie one after another, those of the heads of a pass side by
// side; the rope part, which heads share, stays with the latents:
//
//   expanded [keys, heads of the pass, qk_nope_head of the key | v_head of the value]
//   latents  [keys, nope | rope]
//
// Attention is that of grouped queries with a query head for each KV head (gqa_params.h).
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/gqa/gqa_params.h"

namespace lathe::cuda {

inline constexpr std::int32_t kRaggedRope = 64;

struct RaggedParams {
  GqaParams gqa;  // table and pages are read by ragged_slots alone, keys and values not at all

  // Of the pass, made by ragged_bases.
  std::int32_t* bases = nullptr;   // [requests + 1] keys before a request's
  std::int32_t* extent = nullptr;  // 0 and the number of all keys
  std::int32_t* slots = nullptr;   // [keys] of the pool, -1: no key; made by ragged_slots
  std::int32_t keys = 0;           // room for so many

  std::uint16_t* latents = nullptr;   // bf16 [keys, latent_width]
  std::int32_t latent_width = 0;      // nope + rope
  std::uint16_t* expanded = nullptr;  // bf16 [keys, kv_heads * head_width]
  std::int32_t head_width = 0;        // qk_nope_head + v_head
};

}  // namespace lathe::cuda
