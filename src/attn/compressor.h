// Sizes of a compressor's state (kernels/compress.h): in window_compressed layers, and where
// several tokens share an index key.
#pragma once

#include <cstdint>

#include "attn/problem.h"

namespace lathe {

/// Number of halves of a token's compressor output. In layers that select entries a token
/// contributes to two of them: the first half to the entry of the next compress_ratio tokens, the
/// second half to the entry of its own.
constexpr std::int32_t compressor_halves(const AttentionProblem& p) {
  return p.two_sources() && p.sparse() ? 2 : 1;
}

/// Floats of a running fold (kernels/compress.h): m, s and a for every channel of every half.
constexpr std::int64_t fold_floats(std::int32_t halves, std::int64_t dim) {
  return std::int64_t{3} * halves * dim;
}

/// Bytes of state that a layer keeps between the tokens of a request: the folds of unfinished
/// entries and of their index keys. 0 without entries.
constexpr std::int64_t compressor_bytes(const AttentionProblem& p) {
  if (p.index_pool > 0) return 4 * fold_floats(1, p.index_dim);
  return p.two_sources() ? 4 * fold_floats(compressor_halves(p), p.nope + p.rope + p.index_dim) : 0;
}

}  // namespace lathe
