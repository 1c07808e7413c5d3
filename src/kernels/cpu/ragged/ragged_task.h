// One task of a `ragged` call: rows of one request, and one head. Expands the head's keys and
// values chunk by chunk.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attn/attend.h"

namespace lathe {

/// Keys that a task expands at a time. At DeepSeek's widths (192 and 128) a chunk is 320 KiB of
/// f32, which stays in a second-level cache. Besides it a task keeps only the latents of a tile and
/// the accumulators of its rows.
inline constexpr std::int64_t kRaggedChunkKeys = 256;

/// Most rows of a task, as it keeps their queries and accumulators from chunk to chunk. The
/// capability declares it.
inline constexpr std::int32_t kRaggedTaskRows = 4096;

/// Rows of one request.
struct RaggedRows {
  std::int32_t request = 0;
  std::int32_t row = 0;  // first row of q
  std::int32_t rows = 0;
  std::int64_t position = 0;  // position of the first row
};

/// Bytes of scratch of one worker for tasks of the call of at most `rows` rows.
std::int64_t ragged_worker_bytes(const AttendArgs& args, std::int32_t rows);

/// Writes out and lse of the rows for one head. worker_memory has ragged_worker_bytes() for
/// `most_rows`.
void run_ragged_task(const AttendArgs& args, const RaggedRows& rows, std::int32_t head,
                     std::int32_t most_rows, std::byte* worker_memory);

}  // namespace lathe
