// Work lists (attn/work_list.h) of any number of rows. Units (keys that are never cut) are summed up
// over the rows, so each worker's share begins at a known unit; where a row begins inside the list
// follows from the shares.
//
// Balanced items: each row that has keys begins one, and so does each worker's share that begins
// inside a row. A row is open if it ends inside a share. Up to unit u, which lies in the share of
// worker w, there begin w + (rows that ended open) items: every share's begin is an item's, and every
// row's end is the next row's begin, but a row that ends where a share begins counts once. So one
// scan over units and one over open rows give every place, and an item is written by its row or by
// its worker.
#pragma once

#include "kernels/cuda/sm90/step/scan.cuh"

namespace lathe::cuda {

// The keys of a row, 0 where its range is no range.
__device__ __forceinline__ std::int64_t keys_of(const WorkParams& p, std::int64_t row) {
  const std::int64_t count = p.counts[row];
  const std::int64_t first = p.firsts == nullptr ? 0 : p.firsts[row];
  return count > 0 && first >= 0 && first + count <= 0x7fffffff ? count : 0;
}

__device__ __forceinline__ long long units_of(const WorkParams& p, std::int64_t row) {
  const std::int64_t keys = row < p.rows ? keys_of(p, row) : 0;
  // keys - 1 keeps within FastDiv's 31 bits.
  return keys == 0 ? 0 : std::int64_t{p.unit(static_cast<std::uint32_t>(keys - 1))} + 1;
}

// n / divisor for quotients below 2^50, with `inverse` = 1 / divisor: the product of doubles is off by
// less than one, so its whole part by one at most. A fifth of the time of an integer division.
__device__ __forceinline__ std::int64_t divide(std::int64_t n, std::int64_t divisor,
                                               double inverse) {
  const auto quotient = static_cast<std::int64_t>(static_cast<double>(n) * inverse);
  const std::int64_t rest = n - quotient * divisor;
  return rest < 0 ? quotient - 1 : rest >= divisor ? quotient + 1 : quotient;
}

// Where the share of each worker begins; the first ones take the remainder.
struct Shares {
  std::int64_t base;
  std::int64_t extra;
  std::int64_t large;  // units of those who take some of the remainder
  double per_large;    // 1 / their units
  double per_base;

  __device__ __forceinline__ Shares(std::int64_t units, const WorkParams& p)
      : base(units >> 50 == 0 ? divide(units, p.workers, p.per_worker) : units / p.workers),
        extra(units - base * p.workers),
        large(extra * (base + 1)),
        per_large(1.0 / static_cast<double>(base + 1)),
        per_base(1.0 / static_cast<double>(base)) {}
  __device__ __forceinline__ std::int64_t begin(std::int64_t worker) const {
    return worker * base + (worker < extra ? worker : extra);
  }
  // Whose share a unit lies in. For the unit past all: the first worker without a share.
  __device__ __forceinline__ std::int64_t owner(std::int64_t unit) const {
    if (base == 0) return unit;
    const bool in_large = unit < large;
    const std::int64_t share = divide(in_large ? unit : unit - large, in_large ? base + 1 : base,
                                      in_large ? per_large : per_base);
    return in_large ? share : extra + share;
  }
  // The same, from the owner of a unit before it: rows are mostly shorter than shares.
  __device__ __forceinline__ std::int64_t owner_from(std::int64_t worker, std::int64_t unit) const {
    if (unit < begin(worker + 1)) return worker;
    if (unit < begin(worker + 2)) return worker + 1;
    return owner(unit);
  }
  // The first worker whose share begins at the unit or after it.
  __device__ __forceinline__ std::int64_t first_from(std::int64_t unit) const {
    const std::int64_t worker = owner(unit);
    return begin(worker) == unit ? worker : worker + 1;
  }
};

// The rows of a thread in a tile of kRows for each thread.
template <int kRows>
struct TileRows {
  long long units[kRows];
  long long before;      // units before the first of them
  long long begin, end;  // units before and up to the end of the tile
  long long total;       // of all tiles
};

template <int kRows>
__device__ __forceinline__ TileRows<kRows> tile_rows(const WorkParams& p) {
  __shared__ ScanShared<> shared;
  TileRows<kRows> tile;
  const std::int64_t at = (std::int64_t{blockIdx.x} * kScanThreads + threadIdx.x) * kRows;
  long long mine = 0;
  LATHE_UNROLL
  for (int i = 0; i < kRows; ++i) mine += tile.units[i] = units_of(p, at + i);
  tile.before = block_prefix(mine, shared, tile.total);
  tile.begin = 0;
  tile.end = tile.total;
  if (gridDim.x > 1) {
    tile.begin = tiles_before(p.sums, tile.total);
    tile.before += tile.begin;
    tile.end += tile.begin;
  }
  return tile;
}

// Balanced: in whose share each row of the thread begins, and how many of the rows are open.
template <int kRows>
struct RowOwners {
  std::int32_t worker[kRows + 1];  // the last one: where the last row ends
  std::int32_t open[kRows + 1];    // open rows of the thread before each

  __device__ __forceinline__ RowOwners(const TileRows<kRows>& tile, const Shares& shares) {
    long long end = tile.before;
    worker[0] = static_cast<std::int32_t>(shares.owner(end));
    open[0] = 0;
    LATHE_UNROLL
    for (int i = 0; i < kRows; ++i) {
      end += tile.units[i];
      worker[i + 1] = worker[i];
      open[i + 1] = open[i];
      if (tile.units[i] == 0) continue;
      worker[i + 1] = static_cast<std::int32_t>(shares.owner_from(worker[i], end));
      if (shares.begin(worker[i + 1]) != end) ++open[i + 1];
    }
  }
};

// Item of the units [begin, end) of a row, counted from the row's first.
__device__ __forceinline__ void store_item(const WorkParams& p, std::int64_t item, std::int64_t row,
                                           std::int64_t begin, std::int64_t end,
                                           std::int64_t split) {
  if (item >= p.room) return;
  const std::int64_t keys = keys_of(p, row);
  const std::int64_t unit = p.unit.divisor;
  const std::int64_t last = end * unit < keys ? end * unit : keys;
  const std::int64_t base = p.firsts == nullptr ? 0 : p.firsts[row];
  reinterpret_cast<uint4*>(p.items)[item] = {
      static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(base + begin * unit),
      static_cast<std::uint32_t>(last - begin * unit), static_cast<std::uint32_t>(split)};
}

// Grid: tiles of rows. The units of each.
static __global__ void __launch_bounds__(kScanThreads, 1)
    work_units_kernel(const __grid_constant__ WorkParams p) {
  let_next_begin();
  wait_for_previous();
  store_tile_sum(p.sums, [&](std::int64_t row) { return units_of(p, row); });
}

// Grid: tiles of rows. The open rows of each, behind the units.
static __global__ void __launch_bounds__(kScanThreads, 1)
    work_open_kernel(const __grid_constant__ WorkParams p) {
  __shared__ ScanShared<std::int32_t> shared;
  let_next_begin();
  wait_for_previous();
  const auto tile = tile_rows<kScanPerThread>(p);
  const RowOwners<kScanPerThread> owners(tile, Shares(tile.total, p));
  std::int32_t total;
  block_prefix(owners.open[kScanPerThread], shared, total);
  if (threadIdx.x == 0) p.sums[gridDim.x + blockIdx.x] = total;
}

// The blocks of a tile all sum up its rows; each writes a slice of what follows from the sums.
struct Slice {
  std::int64_t thread;  // of those of all slices
  std::int64_t threads;
  bool writes_rows;  // the rows of this thread lie in the slice

  __device__ __forceinline__ Slice()
      : thread(std::int64_t{blockIdx.y} * kScanThreads + threadIdx.x),
        threads(std::int64_t{gridDim.y} * kScanThreads),
        writes_rows(threadIdx.x * gridDim.y / kScanThreads == blockIdx.y) {}
};

// Grid: tiles of rows x slices of a tile, as of the next. Items past the room are counted and not
// stored.
template <int kRows>
static __global__ void __launch_bounds__(kScanThreads, 1)
    work_balanced_kernel(const __grid_constant__ WorkParams p) {
  constexpr int kTile = kScanThreads * kRows;
  __shared__ ScanShared<std::int32_t> opens;
  __shared__ long long row_units[kTile + 1];  // units before each row of the tile
  __shared__ std::uint16_t row_open[kTile];   // open rows of the tile before it
  let_next_begin();
  wait_for_previous();
  const auto tile = tile_rows<kRows>(p);
  const Shares shares(tile.total, p);
  const RowOwners<kRows> owners(tile, shares);
  const Slice slice;
  std::int32_t tile_open;
  const std::int32_t before = block_prefix(owners.open[kRows], opens, tile_open);
  long long all_open;
  const std::int64_t open_carry = gridDim.x > 1 ? tiles_before(p.sums + gridDim.x, all_open) : 0;

  const std::int64_t first = std::int64_t{blockIdx.x} * kTile;
  const int local = static_cast<int>(threadIdx.x) * kRows;
  long long begin = tile.before;
  LATHE_UNROLL
  for (int i = 0; i < kRows; ++i) {
    const std::int64_t row = first + local + i;
    const long long end = begin + tile.units[i];
    const std::int32_t open = before + owners.open[i];
    row_units[local + i] = begin;
    row_open[local + i] = static_cast<std::uint16_t>(open);
    if (slice.writes_rows && row < p.rows) {
      const std::int64_t item = owners.worker[i] + open_carry + open;
      const std::int64_t share_end = shares.begin(owners.worker[i] + std::int64_t{1});
      p.row_items[row] = item;
      if (end > begin) store_item(p, item, row, 0, (share_end < end ? share_end : end) - begin, 0);
    }
    begin = end;
  }
  if (threadIdx.x + 1 == kScanThreads) row_units[kTile] = begin;
  sync_block();

  const bool last_tile = blockIdx.x + 1 == gridDim.x;
  const std::int64_t items = shares.owner(tile.end) + open_carry + tile_open;  // up to its end
  if (last_tile && slice.thread == 0) p.row_items[p.rows] = items;
  const auto rows = static_cast<int>(p.rows - first < kTile ? p.rows - first : kTile);
  // Workers whose shares begin in this tile; those without a share, and the end, in the last one.
  const std::int64_t stop = last_tile ? p.workers + 1 : shares.first_from(tile.end);
  for (std::int64_t w = shares.first_from(tile.begin) + slice.thread; w < stop;
       w += slice.threads) {
    const long long share = shares.begin(w);
    if (share >= tile.end) {
      p.worker_items[w] = items;
      continue;
    }
    const int r = last_not_above(row_units, rows, share);
    const std::int64_t item = w + open_carry + row_open[r];
    p.worker_items[w] = item;
    const std::int64_t units = row_units[r];
    if (share == units) continue;
    const std::int64_t row_end = row_units[r + 1];
    const std::int64_t share_end = shares.begin(w + 1);
    store_item(p, item, first + r, share - units,
               (share_end < row_end ? share_end : row_end) - units, w - shares.owner(units));
  }
}

// An item per unit.
static __global__ void __launch_bounds__(kScanThreads, 1)
    work_fixed_kernel(const __grid_constant__ WorkParams p) {
  __shared__ long long row_units[kScanTile];  // units before each row of the tile
  let_next_begin();
  wait_for_previous();
  const auto tile = tile_rows<kScanPerThread>(p);
  const Slice slice;
  const std::int64_t first = std::int64_t{blockIdx.x} * kScanTile;
  const int local = static_cast<int>(threadIdx.x) * kScanPerThread;
  long long begin = tile.before;
  LATHE_UNROLL
  for (int i = 0; i < kScanPerThread; ++i) {
    row_units[local + i] = begin;
    if (slice.writes_rows && first + local + i < p.rows) p.row_items[first + local + i] = begin;
    begin += tile.units[i];
  }
  sync_block();
  const auto rows = static_cast<int>(p.rows - first < kScanTile ? p.rows - first : kScanTile);
  const std::int64_t stored = tile.end < p.room ? tile.end : p.room;
  for (std::int64_t i = tile.begin + slice.thread; i < stored; i += slice.threads) {
    const int r = last_not_above(row_units, rows, static_cast<long long>(i));
    const std::int64_t split = i - row_units[r];
    store_item(p, i, first + r, split, split + 1, split);
  }
  if (blockIdx.x + 1 != gridDim.x) return;
  if (slice.thread == 0) p.row_items[p.rows] = tile.total;
  const Shares shares(tile.total, p);
  for (std::int64_t w = slice.thread; w <= p.workers; w += slice.threads) {
    p.worker_items[w] = shares.begin(w);
  }
}

}  // namespace lathe::cuda
