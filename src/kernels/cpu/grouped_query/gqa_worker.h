// What a grouped-query task needs around its arithmetic: memory, where keys lie, which of them a
// row sees, queries in and results out. The same for every SIMD target.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/grouped_query/gqa_task.h"

namespace lathe {

/// What a missing key reads as.
alignas(64) inline constexpr std::uint8_t kNoKey[4 * kGqaMaxHeadDim] = {};

/// Where the keys of a tile lie, at kv head 0; null where there is none or no row sees it.
struct TileKeys {
  const std::uint8_t* key[kTile];
  const std::uint8_t* value[kTile];
  std::int64_t first = -1;
  bool any = false;
  bool holes = false;  // some place between begin and end has no key
};

/// The memory of a worker.
struct GqaWorker {
  std::uint32_t* keys;    // [head_dim / 2 or head_dim, kTile]
  std::uint16_t* codes;   // [kTile, head_dim] bf16 made of e4m3
  std::uint32_t* values;  // [kTile, v_head_dim] bf16 or f32
  float* valid;           // [kTile]
  float* scores;          // [queries, kTile]
  float* q;               // [slice heads, queries, head_dim]
  float* acc;             // [slice heads, queries, v_head_dim] since the last fold
  float* folded;          // same, folded
  SoftState* states;      // [slice heads, queries]
  SoftState* total_states;
  RowRange* ranges;  // [queries]
  std::int64_t bytes;

  GqaWorker(const GqaJob& job, std::int64_t heads, std::byte* memory) {
    const std::int64_t queries = std::int64_t{job.block_rows} * job.group;
    std::int64_t at = 0;
    const auto take = [&](auto*& p, std::int64_t count) {
      p = memory == nullptr ? nullptr
                            : reinterpret_cast<std::remove_reference_t<decltype(p)>>(memory + at);
      at += (count * std::int64_t{sizeof(*p)} + 63) / 64 * 64;
    };
    constexpr std::int64_t kKeys = kTile;
    take(keys, job.head_dim * kKeys);
    take(codes, job.format == KeyFormat::e4m3 ? kKeys * job.head_dim : 0);
    take(values, kKeys * job.v_head_dim);
    take(valid, kKeys);
    take(scores, queries * kKeys);
    take(q, heads * queries * job.head_dim);
    take(acc, heads * queries * job.v_head_dim);
    take(folded, heads * queries * job.v_head_dim);
    take(states, heads * queries);
    take(total_states, heads * queries);
    take(ranges, queries);
    bytes = at;
  }
};

/// Finds the keys first .. first + kTile - 1 of the block that lie in from .. end - 1.
void find_keys(const GqaJob& job, const GqaBlock& block, std::int64_t first, std::int64_t from,
               std::int64_t end, TileKeys& tile);

/// What each query sees of the tile that starts at key `first`; true if all see the same.
bool find_ranges(const GqaJob& job, const GqaBlock& block, std::int64_t first, RowRange* ranges);

/// The block's queries of a kv head, scaled, to [rows, group, head_dim].
void load_queries(const GqaJob& job, const GqaBlock& block, std::int32_t kv_head, float* to);

/// Out and lse of one row and query head.
void write_result(const GqaJob& job, std::int64_t row, std::int32_t head, SoftState state,
                  const float* acc);

}  // namespace lathe
