// One task of a ragged call: rows of one request for one head, with the head's keys and values
// expanded chunk by chunk.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attn/attend.h"

namespace lathe {

/// Keys that a task holds expanded at a time. At DeepSeek's widths (192 and 128) a chunk is 320 KiB
/// of f32, which stays in a second-level cache; with the latents of a tile and the accumulators of
/// the task's rows it is all that a task keeps.
inline constexpr std::int64_t kRaggedChunkKeys = 256;

/// Most rows of a task: their queries and accumulators stay between chunks. The capability declares
/// it.
inline constexpr std::int32_t kRaggedTaskRows = 4096;

/// Rows of one request.
struct RaggedRows {
  std::int32_t request = 0;
  std::int32_t row = 0;  // in q
  std::int32_t rows = 0;
  std::int64_t position = 0;  // of the first row
};

/// Memory of one worker whose tasks have at most `rows` rows.
std::int64_t ragged_worker_bytes(const AttentionProblem& problem, std::int32_t rows);

/// Writes out and lse of the rows for one head. worker_memory is as large as for `most_rows`.
void run_ragged_task(const AttendArgs& args, const RaggedRows& rows, std::int32_t head,
                     std::int32_t most_rows, std::byte* worker_memory);

}  // namespace lathe
