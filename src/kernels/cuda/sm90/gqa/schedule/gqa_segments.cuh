// Iterates over a worker's work items. Every role of a block iterates in the same way.
#pragma once

#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/sm90/gqa/gqa_params.h"

namespace lathe::cuda {

/// Consecutive tiles of a work item that one worker computes.
struct GqaSegment {
  GqaBlock block;
  std::int32_t head;     // KV head
  std::int32_t tile;     // first tile, of the item
  std::int32_t count;    // tiles
  std::int32_t partial;  // index of the partial; -1: the whole item, no partial

  /// kTile: keys of a tile.
  template <int kTile>
  __device__ std::int32_t first_key() const {
    return (block.tile + tile) * kTile;
  }
};

/// The query row of an M row, counted from the block's first one, and its head.
__device__ inline std::int32_t gqa_row_of(const GqaParams& p, const GqaBlock& b, int m_row) {
  return static_cast<std::int32_t>(p.group(static_cast<std::uint32_t>(b.head + m_row)));
}
__device__ inline std::int32_t gqa_head_of(const GqaParams& p, const GqaSegment& item, int m_row,
                                           std::int32_t row) {
  const auto heads = static_cast<std::int32_t>(p.group.divisor);
  return item.head * heads + item.block.head + m_row - row * heads;
}

/// Row of q of a block's row.
__device__ inline std::int64_t gqa_q_row(const GqaParams& p, std::int32_t row) {
  return p.slot_rows == nullptr ? row : p.slot_rows[row];
}

struct GqaSegments {
  const GqaParams& p;
  std::int32_t worker;
  std::int64_t left = 0;  // of its share, in tiles
  GqaStart at = {};

  __device__ GqaSegments(const GqaParams& params, std::int32_t w) : p(params), worker(w) {
    at = p.schedule.starts[w];
    left = at.left;
  }
  /// False when the worker has no more work.
  __device__ bool next(GqaSegment& s) {
    s.tile = at.tile > 0 ? at.tile : 0;
    // The item's tiles begin beyond the share: the next worker computes all of them.
    if (left <= s.tile - at.tile) return false;
    s.block = p.schedule.blocks[at.block];
    s.head = at.head;
    const std::int64_t end = at.tile + left;
    const std::int32_t last = end < s.block.tiles ? static_cast<std::int32_t>(end) : s.block.tiles;
    s.count = last - s.tile;
    s.partial = s.tile > 0             ? 2 * worker
                : last < s.block.tiles ? 2 * worker + 1
                : s.block.partial >= 0 ? s.block.partial + s.head
                                       : -1;
    left -= last - at.tile;
    at.tile = -p.item_cost;
    if (++at.head == p.kv_heads) {
      at.head = 0;
      ++at.block;
    }
    return true;
  }
};

}  // namespace lathe::cuda
