// Row counts of decode steps and of steps that verify drafts, and the sizes they are padded to.
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

/// Rows of the recorded (CUDA graph) step that decodes `rows` rows: they are rounded up to 1, 2, 4,
/// 8, 16, 24, 32, 48, 64, a multiple of 32 up to 256, or a multiple of 64, so a few recordings
/// serve all batches. A step has at most the plan's number of requests: more are cut to that.
constexpr std::int64_t padded_decode_rows(std::int64_t rows) {
  const std::int64_t step = rows <= 2     ? 1
                            : rows <= 4   ? 2
                            : rows <= 8   ? 4
                            : rows <= 32  ? 8
                            : rows <= 64  ? 16
                            : rows <= 256 ? 32
                                          : 64;
  return (rows + step - 1) / step * step;
}

/// The same for a step that verifies drafts, of `rows` rows.
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
