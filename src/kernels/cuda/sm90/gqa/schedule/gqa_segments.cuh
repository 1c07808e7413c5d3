// Walks through the work items of a worker, one after another, in the same way for every role of a
// block.
#pragma once

#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/sm90/gqa/gqa_params.h"

namespace lathe::cuda {

/// Consecutive tiles of an item.
struct GqaSegment {
  GqaBlock block;
  std::int32_t head;     // KV head
  std::int32_t tile;     // of the item
  std::int32_t count;    // of tiles
  std::int32_t partial;  // -1: all of the item's tiles

  /// kTile: keys of a tile.
  template <int kTile>
  __device__ std::int32_t first_key() const {
    return (block.tile + tile) * kTile;
  }
};

struct GqaSegments {
  const GqaParams& p;
  std::int32_t worker;
  std::int64_t left = 0;  // tiles
  GqaStart at = {};

  __device__ GqaSegments(const GqaParams& params, std::int32_t w) : p(params), worker(w) {
    const GqaTotals totals = *p.schedule.totals;
    left = totals.tiles - w * totals.share;
    if (left > totals.share) left = totals.share;
    if (left > 0) at = p.schedule.starts[w];
  }
  /// False where there is no more.
  __device__ bool next(GqaSegment& s) {
    if (left <= 0) return false;
    s.block = p.schedule.blocks[at.block];
    s.head = at.head;
    s.tile = at.tile;
    const std::int32_t rest = s.block.tiles - at.tile;
    s.count = left < rest ? static_cast<std::int32_t>(left) : rest;
    s.partial = at.tile > 0 ? 2 * worker : s.count < rest ? 2 * worker + 1 : -1;
    left -= s.count;
    at.tile = 0;
    if (++at.head == p.kv_heads) {
      at.head = 0;
      ++at.block;
    }
    return true;
  }
};

}  // namespace lathe::cuda
