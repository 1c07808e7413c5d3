// What a compressor of window_compressed layers makes of tokens, in numbers (kernels/compress.h).
#pragma once

#include <cstdint>

#include "attn/problem.h"

namespace lathe {

/// Halves of what a token gives to entries: where entries are chosen, the first half goes to the
/// entry of the next compress_ratio tokens and the second to that of its own.
constexpr std::int32_t compressor_halves(const AttentionProblem& p) { return p.sparse() ? 2 : 1; }

/// Floats of a fold that is carried on: m, s and a of every channel of both halves.
constexpr std::int64_t fold_floats(std::int32_t halves, std::int64_t dim) {
  return std::int64_t{3} * halves * dim;
}

/// Bytes that a layer carries from token to token of a request: the folds of entries, and of their
/// index keys, that tokens have begun; 0 without entries.
constexpr std::int64_t compressor_bytes(const AttentionProblem& p) {
  return p.two_sources() ? 4 * fold_floats(compressor_halves(p), p.nope + p.rope + p.index_dim) : 0;
}

}  // namespace lathe
