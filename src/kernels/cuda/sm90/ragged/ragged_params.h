// Launch parameters of attention over expanded keys, as plain values.
//
// Keys of all requests of a pass are consecutive; for each key, the heads of the pass are next to
// each other. All heads share the RoPE part, which stays with the latents:
//
//   expanded [keys, heads of the pass, qk_nope_head of the key | v_head of the value]
//   latents  [keys, nope | rope]
//
// Attention is grouped-query attention with one query head for each KV head (gqa_params.h).
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/gqa/gqa_params.h"
#include "kernels/cuda/sm90/ragged/ragged_limits.h"

namespace lathe::cuda {

struct RaggedParams {
  GqaParams gqa;  // only ragged_slots reads table and pages; keys and values are unused

  // Of the pass, filled by ragged_bases.
  std::int32_t* bases = nullptr;   // [requests + 1] number of keys before a request's
  std::int32_t* extent = nullptr;  // 0, and the number of all keys
  std::int32_t* slots = nullptr;   // [keys] slots in the pool, -1: no key; filled by ragged_slots
  std::int32_t keys = 0;           // capacity of the arrays

  std::uint16_t* latents = nullptr;   // bf16 [keys, latent_width]
  std::int32_t latent_width = 0;      // nope + rope
  std::uint16_t* expanded = nullptr;  // bf16 [keys, kv_heads * head_width]
  std::int32_t head_width = 0;        // qk_nope_head + v_head
};

}  // namespace lathe::cuda
