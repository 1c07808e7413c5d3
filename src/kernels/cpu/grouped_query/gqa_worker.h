// The parts of a grouped-query task that are the same for every SIMD target: scratch, finding keys,
// which keys a row sees, loading queries and storing results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/grouped_query/gqa_task.h"

namespace lathe {

/// The bytes of a missing key.
alignas(64) inline constexpr std::uint8_t kNoKey[4 * kGqaMaxHeadDim] = {};

/// Addresses of a tile's keys and values, at KV head 0; null if there is no key or no row sees it.
struct TileKeys {
  const std::uint8_t* key[kTile];
  const std::uint8_t* value[kTile];
  std::int64_t first = -1;
  bool any = false;
  bool holes = false;  // a key between begin and end is missing
};

/// One worker's scratch.
struct GqaWorker {
  std::uint32_t* keys;    // [head_dim / 2 or head_dim, kTile]
  std::uint16_t* codes;   // [kTile, head_dim] e4m3 widened to bf16
  std::uint32_t* values;  // [kTile, v_head_dim] bf16 or f32
  float* valid;           // [kTile]
  float* scores;          // [queries, kTile]
  float* q;               // [slice heads, queries, head_dim]
  float* acc;             // [slice heads, queries, v_head_dim] accumulated since the last fold
  float* folded;          // [slice heads, queries, v_head_dim] folded so far
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

/// Finds the keys first .. first + kTile - 1 of the block, as far as they are in from .. end - 1.
void find_keys(const GqaJob& job, const GqaBlock& block, std::int64_t first, std::int64_t from,
               std::int64_t end, TileKeys& tile);

/// Writes the range that each query sees of the tile at key `first`. Returns true if all are equal.
bool find_ranges(const GqaJob& job, const GqaBlock& block, std::int64_t first, RowRange* ranges);

/// Loads the block's queries of a KV head, scaled, to [rows, group, head_dim].
void load_queries(const GqaJob& job, const GqaBlock& block, std::int32_t kv_head, float* to);

/// Writes out and lse of one row and query head.
void write_result(const GqaJob& job, std::int64_t row, std::int32_t head, SoftState state,
                  const float* acc);

}  // namespace lathe
