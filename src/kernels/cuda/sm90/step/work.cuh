// Work lists (attn/work_list.h) of any number of rows. Key blocks (keys that are never cut) are
// summed up over the rows, so each worker's share begins at a known key block; where a row begins
// inside the list follows from the shares.
//
// Balanced items: each row that has keys begins one, and so does each worker's share that begins
// inside a row. A row is open if it ends inside a share. Up to key block u, which lies in the share
// of worker w, there begin w + (rows that ended open) items: every share's begin is an item's, and
// every row's end is the next row's begin, but a row that ends where a share begins counts once. So
// one scan over key blocks and one over open rows give every place, and an item is written by its
// row or by its worker.
//
// These kernels are bound by the instructions of one block's threads, so whatever fits is counted
// in 32 bits.
#pragma once

#include "kernels/cuda/common/scan.cuh"
#include "kernels/cuda/sm90/step/step_params.h"

namespace lathe::cuda {

// The keys of a row, 0 where its range is invalid.
__device__ __forceinline__ std::uint32_t keys_of(const WorkParams& p, std::int64_t row) {
  const std::int32_t count = p.counts[row];
  const std::int32_t first = p.firsts == nullptr ? 0 : p.firsts[row];
  if (count <= 0 || first < 0) return 0;
  const auto keys = static_cast<std::uint32_t>(count);
  return static_cast<std::uint32_t>(first) + keys <= 0x7fffffffu ? keys : 0;
}

__device__ __forceinline__ std::uint32_t key_blocks_of(const WorkParams& p, std::int64_t row) {
  const std::uint32_t keys = keys_of(p, row);
  // keys - 1 keeps within FastDiv's 31 bits.
  return keys == 0 ? 0 : p.key_block(keys - 1) + 1;
}

// n / divisor for quotients below 2^50, with `inverse` = 1 / divisor: the product of doubles is off
// by less than one, so its whole part by one at most. A fifth of the time of an integer division.
template <class Count>
__device__ __forceinline__ Count divide(Count n, Count divisor, double inverse) {
  const auto quotient = static_cast<Count>(static_cast<double>(n) * inverse);
  const Count rest = n - quotient * divisor;
  return rest < 0 ? quotient - 1 : rest >= divisor ? quotient + 1 : quotient;
}

// Where the share of each worker begins; the first ones take the remainder.
template <class Count>
struct Shares {
  Count base;
  Count extra;
  Count large;       // key blocks of those who take some of the remainder
  double per_large;  // 1 / their key blocks
  double per_base;

  __device__ __forceinline__ Shares(std::int64_t key_blocks, const WorkParams& p) {
    const std::int64_t whole = key_blocks >> 50 == 0 ? divide(key_blocks, p.workers, p.per_worker)
                                                     : key_blocks / p.workers;
    base = static_cast<Count>(whole);
    extra = static_cast<Count>(key_blocks - whole * p.workers);
    large = extra * (base + 1);
    per_large = 1.0 / static_cast<double>(base + 1);
    per_base = 1.0 / static_cast<double>(base);
  }
  __device__ __forceinline__ Count begin(Count worker) const {
    return worker * base + (worker < extra ? worker : extra);
  }
  // Whose share a key block lies in. For the key block past all: the first worker without a share.
  __device__ __forceinline__ Count owner(Count key_block) const {
    if (base == 0) return key_block;
    const bool in_large = key_block < large;
    const Count share = divide(in_large ? key_block : key_block - large, in_large ? base + 1 : base,
                               in_large ? per_large : per_base);
    return in_large ? share : extra + share;
  }
  // The first worker whose share begins at the key block or after it.
  __device__ __forceinline__ Count first_from(Count key_block) const {
    const Count worker = owner(key_block);
    return begin(worker) == key_block ? worker : worker + 1;
  }
};

// The rows of a thread in a tile of kRows for each thread.
template <int kRows>
struct TileRows {
  std::int64_t first;  // row of the tile
  int rows;            // of the tile
  int local;           // the thread's first one, in the tile
  std::uint32_t key_blocks[kRows];
  long long before;      // key blocks before the first of them
  long long begin, end;  // key blocks before and up to the end of the tile
  long long total;       // of all tiles
};

template <int kRows>
__device__ __forceinline__ TileRows<kRows> tile_rows(const WorkParams& p) {
  constexpr int kTile = kScanThreads * kRows;
  __shared__ ScanShared<> shared;
  TileRows<kRows> tile;
  tile.first = std::int64_t{blockIdx.x} * kTile;
  tile.rows = static_cast<int>(p.rows - tile.first < kTile ? p.rows - tile.first : kTile);
  tile.local = static_cast<int>(threadIdx.x) * kRows;
  long long mine = 0;
  LATHE_UNROLL
  for (int i = 0; i < kRows; ++i) {
    const int row = tile.local + i;
    tile.key_blocks[i] = row < tile.rows ? key_blocks_of(p, tile.first + row) : 0;
    mine += tile.key_blocks[i];
  }
  tile.before = block_prefix(mine, shared, tile.total);
  tile.begin = 0;
  tile.end = tile.total;
  if (gridDim.x > 1) {
    tile.begin = tiles_before(p.tile_sums, tile.total);
    tile.before += tile.begin;
    tile.end += tile.begin;
  }
  return tile;
}

// Room for the ends of shares next to the last one.
__device__ __forceinline__ bool fits_32_bits(long long key_blocks, const WorkParams& p) {
  return key_blocks < 1 << 29 && p.workers < 1 << 29;
}

// Balanced: in whose share each row of the thread begins, and how many of the rows are open.
template <int kRows, class Count>
struct RowOwners {
  Count worker[kRows];
  int open[kRows + 1];  // open rows of the thread before each

  __device__ __forceinline__ RowOwners(const TileRows<kRows>& tile, const Shares<Count>& shares) {
    auto end = static_cast<Count>(tile.before);
    Count at = shares.owner(end);
    Count next = shares.begin(at + 1);  // where the share after it begins
    open[0] = 0;
    LATHE_UNROLL
    for (int i = 0; i < kRows; ++i) {
      worker[i] = at;
      open[i + 1] = open[i];
      if (tile.key_blocks[i] == 0) continue;
      end += static_cast<Count>(tile.key_blocks[i]);
      if (end >= next) {
        // Rows are mostly shorter than shares: the next one, or else any.
        at = end < shares.begin(at + 2) ? at + 1 : shares.owner(end);
        next = shares.begin(at + 1);
        if (end == shares.begin(at)) continue;
      }
      ++open[i + 1];
    }
  }
};

// Item of the key blocks [begin, end) of a row, counted from the row's first.
__device__ __forceinline__ void store_item(const WorkParams& p, std::int64_t item, std::int64_t row,
                                           std::uint32_t begin, std::uint32_t end,
                                           std::uint32_t split) {
  if (item >= p.room) return;
  const std::uint32_t first = begin * p.key_block.divisor;
  const std::uint32_t rest = keys_of(p, row) - first;
  const std::uint32_t most = (end - begin) * p.key_block.divisor;
  const std::uint32_t base = p.firsts == nullptr ? 0 : static_cast<std::uint32_t>(p.firsts[row]);
  reinterpret_cast<uint4*>(p.items)[item] = {static_cast<std::uint32_t>(row), base + first,
                                             most < rest ? most : rest, split};
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

// Grid: tiles of rows. The key blocks of each.
static __global__ void __launch_bounds__(kScanThreads, 1)
    work_key_blocks_kernel(const __grid_constant__ WorkParams p) {
  let_next_begin();
  wait_for_previous();
  store_tile_sum(p.tile_sums,
                 [&](std::int64_t row) { return row < p.rows ? key_blocks_of(p, row) : 0; });
}

// Grid: tiles of rows. The open rows of each, after the key blocks.
static __global__ void __launch_bounds__(kScanThreads, 1)
    work_open_kernel(const __grid_constant__ WorkParams p) {
  __shared__ ScanShared<int> shared;
  let_next_begin();
  wait_for_previous();
  const auto tile = tile_rows<kScanPerThread>(p);
  int open;
  if (fits_32_bits(tile.total, p)) {
    const Shares<std::int32_t> shares(tile.total, p);
    open = RowOwners<kScanPerThread, std::int32_t>(tile, shares).open[kScanPerThread];
  } else {
    const Shares<std::int64_t> shares(tile.total, p);
    open = RowOwners<kScanPerThread, std::int64_t>(tile, shares).open[kScanPerThread];
  }
  int total;
  block_prefix(open, shared, total);
  if (threadIdx.x == 0) p.tile_sums[gridDim.x + blockIdx.x] = total;
}

template <int kRows, class Count>
__device__ __forceinline__ void balanced_items(const WorkParams& p, const TileRows<kRows>& tile,
                                               Count* row_key_blocks, std::uint16_t* row_open) {
  __shared__ ScanShared<int> scan;
  const Shares<Count> shares(tile.total, p);
  const RowOwners<kRows, Count> owners(tile, shares);
  int tile_open;
  const int before = block_prefix(owners.open[kRows], scan, tile_open);
  long long all_open;
  const std::int64_t carry = gridDim.x > 1 ? tiles_before(p.tile_sums + gridDim.x, all_open) : 0;

  auto begin = static_cast<Count>(tile.before);
  LATHE_UNROLL
  for (int i = 0; i < kRows; ++i) {
    row_key_blocks[tile.local + i] = begin;
    row_open[tile.local + i] = static_cast<std::uint16_t>(before + owners.open[i]);
    begin += static_cast<Count>(tile.key_blocks[i]);
  }
  if (threadIdx.x + 1 == kScanThreads) row_key_blocks[kScanThreads * kRows] = begin;
  sync_block();

  const Slice slice;
  if (slice.writes_rows) {
    begin = static_cast<Count>(tile.before);
    LATHE_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const int local = tile.local + i;
      if (local >= tile.rows) break;
      const std::int64_t row = tile.first + local;
      const std::int64_t item = carry + owners.worker[i] + before + owners.open[i];
      p.row_items[row] = item;
      if (tile.key_blocks[i] == 0) continue;
      const Count share = shares.begin(owners.worker[i] + 1) - begin;
      const auto key_blocks = static_cast<Count>(tile.key_blocks[i]);
      store_item(p, item, row, 0,
                 static_cast<std::uint32_t>(share < key_blocks ? share : key_blocks), 0);
      begin += key_blocks;
    }
  }

  const bool last_tile = blockIdx.x + 1 == gridDim.x;
  const auto end = static_cast<Count>(tile.end);
  const std::int64_t items = carry + shares.owner(end) + tile_open;  // up to the end of the tile
  if (last_tile && slice.thread == 0) p.row_items[p.rows] = items;
  // Workers whose shares begin in this tile; those without a share, and the end, in the last one.
  const std::int64_t stop = last_tile ? p.workers + 1 : std::int64_t{shares.first_from(end)};
  for (std::int64_t w = shares.first_from(static_cast<Count>(tile.begin)) + slice.thread; w < stop;
       w += slice.threads) {
    const auto worker = static_cast<Count>(w);
    const Count share = shares.begin(worker);
    if (share >= end) {
      p.worker_items[w] = items;
      continue;
    }
    const int r = last_not_above(row_key_blocks, tile.rows, share);
    const std::int64_t item = w + carry + row_open[r];
    p.worker_items[w] = item;
    const Count row_begin = row_key_blocks[r];
    if (share == row_begin) continue;
    const Count row_end = row_key_blocks[r + 1];
    const Count share_end = shares.begin(worker + 1);
    store_item(p, item, tile.first + r, static_cast<std::uint32_t>(share - row_begin),
               static_cast<std::uint32_t>((share_end < row_end ? share_end : row_end) - row_begin),
               static_cast<std::uint32_t>(worker - shares.owner(row_begin)));
  }
}

// Grid: tiles of rows x slices of a tile, as of the next. Items past the room are counted and not
// stored.
template <int kRows>
static __global__ void __launch_bounds__(kScanThreads, 1)
    work_balanced_kernel(const __grid_constant__ WorkParams p) {
  __shared__ std::int64_t
      row_key_blocks[kScanThreads * kRows + 1];  // key blocks before each row of the tile
  __shared__ std::uint16_t row_open[kScanThreads * kRows];  // open rows of the tile before it
  let_next_begin();
  wait_for_previous();
  const auto tile = tile_rows<kRows>(p);
  if (fits_32_bits(tile.total, p)) {
    balanced_items(p, tile, reinterpret_cast<std::int32_t*>(row_key_blocks), row_open);
  } else {
    balanced_items(p, tile, row_key_blocks, row_open);
  }
}

// Key blocks of the tile are counted from its first.
template <class Count>
__device__ __forceinline__ void fixed_items(const WorkParams& p,
                                            const TileRows<kScanPerThread>& tile,
                                            Count* row_key_blocks) {
  auto begin = static_cast<Count>(tile.before - tile.begin);
  LATHE_UNROLL
  for (int i = 0; i < kScanPerThread; ++i) {
    row_key_blocks[tile.local + i] = begin;
    begin += static_cast<Count>(tile.key_blocks[i]);
  }
  sync_block();
  const Slice slice;
  const long long stop = tile.end < p.room ? tile.end : p.room;
  const auto stored = static_cast<Count>(stop > tile.begin ? stop - tile.begin : 0);
  for (auto i = static_cast<Count>(slice.thread); i < stored;
       i += static_cast<Count>(slice.threads)) {
    const int r = last_not_above(row_key_blocks, tile.rows, i);
    const auto split = static_cast<std::uint32_t>(i - row_key_blocks[r]);
    store_item(p, tile.begin + i, tile.first + r, split, split + 1, split);
  }
}

// an item per key block.
static __global__ void __launch_bounds__(kScanThreads, 1)
    work_fixed_kernel(const __grid_constant__ WorkParams p) {
  __shared__ std::int64_t row_key_blocks[kScanTile];
  let_next_begin();
  wait_for_previous();
  const auto tile = tile_rows<kScanPerThread>(p);
  const Slice slice;
  if (slice.writes_rows) {
    long long begin = tile.before;
    LATHE_UNROLL
    for (int i = 0; i < kScanPerThread; ++i) {
      if (tile.local + i < tile.rows) p.row_items[tile.first + tile.local + i] = begin;
      begin += tile.key_blocks[i];
    }
  }
  if (blockIdx.x + 1 == gridDim.x) {
    if (slice.thread == 0) p.row_items[p.rows] = tile.total;
    const Shares<std::int64_t> shares(tile.total, p);
    for (std::int64_t w = slice.thread; w <= p.workers; w += slice.threads) {
      p.worker_items[w] = shares.begin(w);
    }
  }
  if (tile.end - tile.begin < 1 << 30) {
    fixed_items(p, tile, reinterpret_cast<std::int32_t*>(row_key_blocks));
  } else {
    fixed_items(p, tile, row_key_blocks);
  }
}

}  // namespace lathe::cuda
