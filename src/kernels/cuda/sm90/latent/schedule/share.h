// What the device shares work by, and what it says of split work tiles: plain values.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/latent/latent_limits.h"

namespace lathe::cuda {

/// Keys [first, first + count) of a work tile. The device's WorkItem, but where the device shares
/// work itself, `part` is the number of the item's partial, or -1: its work tile is not split.
struct alignas(16) LatentItem {
  std::int32_t work_tile = 0;
  std::int32_t first = 0;  // a multiple of a tile of keys
  std::int32_t count = 0;
  std::int32_t part = 0;
};

/// What a block of the combine does of each run of chunks (combine.cuh): a work tile of several
/// items, or of none, or a part of one of many. Partials [first, first + items) are its.
struct alignas(16) LatentSplitTile {
  std::int32_t row = 0;     // first row of q
  std::int32_t m_rows = 0;  // rows x heads
  std::int32_t first = 0;
  std::int16_t items = 0;
  std::int8_t part = 0, parts = 1;  // parts 0: no more work tiles
};
inline constexpr int kCombineAhead = 8;  // partials that a thread of the combine has in flight

/// What work costs, in units of which a step of keys has kLatentStepCost.
struct LatentWorkCosts {
  std::int32_t item = 0;   // beside its keys
  std::int32_t split = 0;  // of an item that leaves a partial, beside that
  // Of a combine, of each partial that it reads, and of each item of the work tile that has most.
  float combine = 0, partial = 0, depth = 0;
  // Where all lengths are equal: of an item, of a combine, of each item of a work tile.
  float equal_item = 0, equal_combine = 0, equal_depth = 0;
};

/// How a launch shares work tiles among workers, and where it writes to.
struct LatentSharing {
  LatentWorkCosts costs;
  std::int32_t step = 0;      // keys; work tiles are split at multiples of them
  std::int32_t fixed = 0;     // steps of a piece, about, where cuts follow a work tile's keys alone
  std::int32_t keys = 0;      // of a work tile, at most: a length on the device may be anything
  std::int32_t workers = 0;   // kShareWorkers at most
  std::int32_t partials = 0;  // that there is room for, two a worker or more
  LatentItem* items = nullptr;             // [work tiles + partials]
  std::int64_t* worker_items = nullptr;    // [workers + 1]
  LatentSplitTile* split_tiles = nullptr;  // [split_room]: parts of split work tiles, and ends
  std::int32_t split_room = 0;
};

inline constexpr int kLatentStepCost = 16;
static_assert(kLatentFixedPieces <= kCombineAhead);
inline constexpr int kShareTiles = 1024;              // work tiles, at most
inline constexpr int kShareWorkers = 255;             // at most
inline constexpr std::int64_t kShareSteps = 1 << 22;  // all work tiles have fewer

}  // namespace lathe::cuda
