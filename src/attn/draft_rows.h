// Row counts of steps that verify drafts.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lathe {

/// Most drafts per request while `running` requests run.
constexpr std::int64_t drafts_at(std::int64_t running) {
  return running >= 64 ? 0 : running >= 32 ? 1 : running >= 8 ? 3 : 7;
}

/// Most rows of a decode step with up to `requests` requests and up to `draft_tokens` drafts each.
constexpr std::int64_t decoding_rows(std::int64_t requests, std::int64_t draft_tokens) {
  std::int64_t most = requests;
  for (const std::int64_t running : {7, 31, 63}) {
    const std::int64_t n = std::min(requests, running);
    most = std::max(most, n * (1 + std::min(draft_tokens, drafts_at(n))));
  }
  return most;
}

/// Rows of the recorded (CUDA graph) step that verifies `rows` rows: they are rounded up, so a few
/// recordings serve all batches.
constexpr std::int64_t padded_verify_rows(std::int64_t rows) {
  const std::int64_t step = rows <= 8 ? 1 : rows <= 16 ? 4 : rows <= 64 ? 16 : 32;
  return (rows + step - 1) / step * step;
}

/// Rows of the largest such step, which is also its number of requests, padding included. 0: no
/// drafts.
constexpr std::int64_t recorded_verify_rows(std::int64_t requests, std::int64_t draft_tokens) {
  return draft_tokens > 0 ? padded_verify_rows(decoding_rows(requests, draft_tokens)) : 0;
}

}  // namespace lathe
