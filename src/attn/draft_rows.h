// Rows that steps with drafts bring.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lathe {

/// Most drafts of each request while so many run.
constexpr std::int64_t drafts_at(std::int64_t running) {
  return running >= 64 ? 0 : running >= 32 ? 1 : running >= 8 ? 3 : 7;
}

/// Rows that those who decode bring at most, of up to `requests` with up to `draft_tokens` drafts.
constexpr std::int64_t decoding_rows(std::int64_t requests, std::int64_t draft_tokens) {
  std::int64_t most = requests;
  for (const std::int64_t running : {7, 31, 63}) {
    const std::int64_t n = std::min(requests, running);
    most = std::max(most, n * (1 + std::min(draft_tokens, drafts_at(n))));
  }
  return most;
}

/// Rows of the recorded step that checks drafts and holds so many: few sizes serve many batches.
constexpr std::int64_t padded_verify_rows(std::int64_t rows) {
  const std::int64_t step = rows <= 8 ? 1 : rows <= 16 ? 4 : rows <= 64 ? 16 : 32;
  return (rows + step - 1) / step * step;
}

/// Rows, and requests with those that only fill up, of the largest such step; 0: there are none.
constexpr std::int64_t recorded_verify_rows(std::int64_t requests, std::int64_t draft_tokens) {
  return draft_tokens > 0 ? padded_verify_rows(decoding_rows(requests, draft_tokens)) : 0;
}

}  // namespace lathe
