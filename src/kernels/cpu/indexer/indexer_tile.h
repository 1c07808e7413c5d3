// The arithmetic of the CPU indexer: one query row against a tile of keys in f32.
//
// Vector lanes are heads, so keys are decoded in their stored order, and only the query, which is
// used for every key, is transposed. A logit's operations and their order depend on heads and dim
// alone: tiles, other rows and threads never change its bits.
#pragma once

#include <cstdint>

#include "base/float_formats.h"

namespace lathe {

/// Heads are padded to a multiple of this, with queries and weights of 0.
inline constexpr std::int64_t kIndexHeadPad = 16;
constexpr std::int64_t padded_index_heads(std::int64_t heads) {
  return (heads + kIndexHeadPad - 1) / kIndexHeadPad * kIndexHeadPad;
}

/// Widens n e4m3 codes to f32, exactly; n is a multiple of 16.
void index_decode(const std::uint8_t* codes, std::int64_t n, float* out);

/// Packs one row's queries for index_score(). codes: [heads, dim]; weights: [heads]; q: [padded
/// heads * dim] out; w: [padded heads] out.
void index_prepare(const e4m3* codes, const float* weights, std::int64_t heads, std::int64_t dim,
                   float* q, float* w);

/// logits[j] = scales[j] * sum_h relu(<q[h], keys[j]>) * w[h] for j < n. q, w: from
/// index_prepare(); keys: [n, dim]; scales: [n]. NaN in a key or scale gives NaN.
void index_score(const float* q, const float* w, std::int64_t heads, std::int64_t dim,
                 const float* keys, const float* scales, std::int64_t n, float* logits);

}  // namespace lathe
