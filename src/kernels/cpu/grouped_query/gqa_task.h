// One task of a grouped-query call: a block of query rows over a run of keys, for some KV heads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attn/attend.h"
#include "kernels/cpu/grouped_query/gqa_plan.h"
#include "kernels/cpu/tile/tile_types.h"

namespace lathe {

/// Widest head. A missing key is read as a row of this many zeros.
inline constexpr std::int32_t kGqaMaxHeadDim = 512;

/// How keys and values are stored.
enum class KeyFormat { bf16, e4m3, f32 };

/// A call's arguments, as tasks need them. A token's key is at bytes + page * page_stride + start +
/// (offset in the page) * step, KV head after KV head, and so is its value. A compact buffer is one
/// page.
struct GqaJob {
  const AttendArgs* args = nullptr;
  std::int32_t kv_heads = 0;
  std::int32_t group = 0;
  std::int32_t head_dim = 0;
  std::int32_t v_head_dim = 0;

  KeyFormat format = KeyFormat::bf16;
  const std::byte* bytes = nullptr;
  std::int64_t pages = 0;
  std::int64_t page_stride = 0;
  std::int32_t page_size = 1;
  std::int64_t slots = 0;  // an index list's entries are valid from 0 to slots - 1
  std::int64_t key_start = 0;
  std::int64_t key_step = 0;
  std::int64_t value_start = 0;
  std::int64_t value_step = 0;

  float query_scale = 1;  // problem scale x log2 e x q scale x key scale
  float value_scale = 1;
  std::int64_t fold_keys = 0;

  // Partial results of blocks with several parts: part i, head h, row r of the block is at
  // (i * heads + h) * block_rows + r. An accumulator has v_head_dim elements.
  std::int32_t block_rows = 1;
  SoftState* part_states = nullptr;
  float* part_acc = nullptr;
};

/// Scratch of one worker, reused for all its tasks.
std::int64_t gqa_worker_bytes(const GqaJob& job, std::int32_t slice_heads);

/// Attends to one part of the block's keys for KV heads first_head .. end_head - 1. Writes out and
/// lse; if the block has several parts, writes the accumulators of part number `part` of the call.
void run_gqa_task(const GqaJob& job, const GqaBlock& block, std::int64_t part,
                  std::int32_t first_head, std::int32_t end_head, std::byte* worker_memory);

/// Folds the parts of a block, in ascending order, for one query head. Writes out and lse.
void combine_gqa_parts(const GqaJob& job, const GqaBlock& block, std::int32_t head,
                       std::byte* worker_memory);

}  // namespace lathe
