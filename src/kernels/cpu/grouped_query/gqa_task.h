// One task of a grouped-query call: a block of query rows over a run of keys for some kv heads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attn/attend.h"
#include "kernels/cpu/grouped_query/gqa_plan.h"
#include "kernels/cpu/tile/tile_types.h"

namespace lathe {

/// Widest head; a missing key reads as this many zeros.
inline constexpr std::int32_t kGqaMaxHeadDim = 512;

/// How keys and values are stored.
enum class KeyFormat { bf16, e4m3, f32 };

/// A call seen from a task. Key and value of a token lie at bytes + page * page_stride + start +
/// offset in the page * step, kv head after kv head; a compact buffer is one page.
struct GqaJob {
  const AttendArgs* args = nullptr;
  std::int32_t kv_heads = 0;
  std::int32_t group = 0;
  std::int32_t head_dim = 0;
  std::int32_t v_head_dim = 0;
  std::int32_t window = 0;

  KeyFormat format = KeyFormat::bf16;
  const std::byte* bytes = nullptr;
  std::int64_t pages = 0;
  std::int64_t page_stride = 0;
  std::int32_t page_size = 1;
  std::int64_t slots = 0;  // valid values of an index list
  std::int64_t key_start = 0;
  std::int64_t key_step = 0;
  std::int64_t value_start = 0;
  std::int64_t value_step = 0;

  float query_scale = 1;  // problem scale, log2 e, q scale and key scale
  float value_scale = 1;
  std::int64_t fold_keys = 0;

  // Results of blocks in several parts: part i, head h, row r of the block at
  // (i * heads + h) * block_rows + r; accumulators of v_head_dim each.
  std::int32_t block_rows = 1;
  SoftState* part_states = nullptr;
  float* part_acc = nullptr;
};

/// Memory of one worker, reused by task after task.
std::int64_t gqa_worker_bytes(const GqaJob& job, std::int32_t slice_heads);

/// Attends keys first .. end-1 of the block for kv heads first_head .. end_head-1: writes out and
/// lse, or, where the block has several parts, the accumulators of part number `part` of the call.
void run_gqa_task(const GqaJob& job, const GqaBlock& block, std::int64_t part,
                  std::int32_t first_head, std::int32_t end_head, std::byte* worker_memory);

/// Folds the parts of a block in ascending order for one query head, and writes out and lse.
void combine_gqa_parts(const GqaJob& job, const GqaBlock& block, std::int32_t head,
                       std::byte* worker_memory);

}  // namespace lathe
