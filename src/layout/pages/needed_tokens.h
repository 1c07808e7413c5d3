// Tokens before a boundary whose keys later rows read.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lathe {

/// Tokens before `boundary` that a request needs to go on from there: the last window_tokens, or
/// with chunk_tokens those of the chunk that the boundary is in, and at least one. window_tokens is
/// above 0 and bounds the result. At most `boundary`.
constexpr std::int64_t needed_tokens(std::int64_t boundary, std::int64_t window_tokens,
                                     std::int64_t chunk_tokens) {
  const std::int64_t needed =
      chunk_tokens > 0 ? std::max<std::int64_t>(1, boundary % chunk_tokens) : window_tokens;
  return std::min(boundary, needed);
}

}  // namespace lathe
