// The arithmetic of the CPU indexer: one query row against a tile of keys in f32.
//
// Vector lanes are heads. So a key is decoded in the order in which it lies, and only the query,
// which meets every key, is transposed. The operations that make a logit, and their order, depend
// on heads and dim alone: tiles, neighbours and threads never change a bit of it.
#pragma once

#include <cstdint>

#include "base/float_formats.h"

namespace lathe {

/// Heads are padded to this many, with queries and weights of 0.
inline constexpr std::int64_t kIndexHeadPad = 16;
constexpr std::int64_t padded_index_heads(std::int64_t heads) {
  return (heads + kIndexHeadPad - 1) / kIndexHeadPad * kIndexHeadPad;
}

/// n e4m3 codes to f32, exactly; n a multiple of 16.
void index_decode(const std::uint8_t* codes, std::int64_t n, float* out);

/// One row's queries in the order in which the kernel wants them.
/// codes: [heads, dim]; weights: [heads]; q: [padded heads * dim] out; w: [padded heads] out.
void index_prepare(const e4m3* codes, const float* weights, std::int64_t heads, std::int64_t dim,
                   float* q, float* w);

/// logits[j] = scales[j] * sum_h relu(<q[h], keys[j]>) * w[h] for j < n. q, w: of index_prepare();
/// keys: [n, dim]; scales: [n]. A NaN in a key or scale gives a NaN.
void index_score(const float* q, const float* w, std::int64_t heads, std::int64_t dim,
                 const float* keys, const float* scales, std::int64_t n, float* logits);

}  // namespace lathe
