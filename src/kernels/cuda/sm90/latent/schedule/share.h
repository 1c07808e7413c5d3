// Parameters for sharing work on the device, and its description of split work tiles, as plain
// values.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/latent/latent_limits.h"

namespace lathe::cuda {

/// Keys [first, first + count) of a work tile. Like WorkItem, but where the device shares work,
/// `part` is the index of the item's partial, or -1 if its work tile is not split.
struct alignas(16) LatentItem {
  std::int32_t work_tile = 0;
  std::int32_t first = 0;  // a multiple of a tile of keys
  std::int32_t count = 0;
  std::int32_t part = 0;
};

/// What a block of the combine does for each run of chunks (combine.cuh): a work tile of several
/// items or of none, or one part of a tile with many. Its partials are [first, first + items).
struct alignas(16) LatentSplitTile {
  std::int32_t row = 0;     // first row of q
  std::int32_t m_rows = 0;  // rows x heads
  std::int32_t first = 0;
  std::int16_t items = 0;
  std::int8_t part = 0, parts = 1;  // parts 0: no more work tiles
};
inline constexpr int kCombineAhead = 8;  // partials that a combine thread loads at a time

/// Costs of work. A step of keys costs kLatentStepCost.
struct LatentWorkCosts {
  std::int32_t item = 0;   // in addition to its keys
  std::int32_t split = 0;  // added for an item that writes a partial
  // A combine, each partial that it reads, and each item of the work tile that has most.
  float combine = 0, partial = 0, depth = 0;
  // Where all lengths are equal: an item, a combine, each item of a work tile.
  float equal_item = 0, equal_combine = 0, equal_depth = 0;
};

/// How a launch shares work tiles among workers, and where it writes the lists.
struct LatentSharing {
  LatentWorkCosts costs;
  std::int32_t step = 0;        // keys; splits are at multiples of it
  std::int32_t fixed = 0;       // about the steps of a split, if batch-invariant
  std::int32_t keys = 0;        // most keys of a work tile; lengths on the device are unchecked
  std::int32_t workers = 0;     // at most kShareWorkers
  std::int32_t partials = 0;    // capacity, at least two a worker
  LatentItem* items = nullptr;  // [work tiles + partials]
  std::int64_t* worker_items = nullptr;    // [workers + 1]
  LatentSplitTile* split_tiles = nullptr;  // [split_room] split work tiles, then end marks
  std::int32_t split_room = 0;
};

inline constexpr int kLatentStepCost = 16;
static_assert(kLatentFixedPieces <= kCombineAhead);
inline constexpr int kShareTiles = 1024;              // most work tiles
inline constexpr int kShareWorkers = 255;             // most workers
inline constexpr std::int64_t kShareSteps = 1 << 22;  // all work tiles have fewer

}  // namespace lathe::cuda
