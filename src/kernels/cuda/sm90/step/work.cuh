// Builds work lists (attn/work_list.h) for any number of rows. A key block is a range of keys that
// is never split. Key blocks are summed up over the rows, so every worker's share starts at a known
// key block, and the start of each row in the list follows from the shares.
//
// Balanced items: an item starts at every row with keys, and wherever a worker's share starts
// inside a row. Call a row open if it ends inside a share. An item that starts at key block u, in
// the share of worker w, has w + (number of open rows that end at or before u) items before it:
// every start of a share starts an item, and every end of a row starts the next row's item, but a
// row that ends exactly where a share starts counts once. So a scan over key blocks and a scan over
// open rows give every index, and an item is written by its row or by its worker.
//
// These kernels are bound by the instructions of one block's threads, so counts use 32 bits where
// they fit.
#pragma once

#include "kernels/cuda/common/scan.cuh"
#include "kernels/cuda/sm90/step/step_params.h"

namespace lathe::cuda {

// Keys of a row; 0 if its range is invalid.
__device__ __forceinline__ std::uint32_t keys_of(const WorkParams& p, std::int64_t row) {
  const std::int32_t count = p.counts[row];
  const std::int32_t first = p.firsts == nullptr ? 0 : p.firsts[row];
  if (count <= 0 || first < 0) return 0;
  const auto keys = static_cast<std::uint32_t>(count);
  return static_cast<std::uint32_t>(first) + keys <= 0x7fffffffu ? keys : 0;
}

__device__ __forceinline__ std::uint32_t key_blocks_of(const WorkParams& p, std::int64_t row) {
  const std::uint32_t keys = keys_of(p, row);
  // keys - 1 stays within FastDiv's 31 bits.
  return keys == 0 ? 0 : p.key_block(keys - 1) + 1;
}

// n / divisor for quotients below 2^50, with `inverse` = 1 / divisor. The product in double is off
// by less than one, so its integer part is off by at most one. A fifth of the time of an integer
// division.
template <class Count>
__device__ __forceinline__ Count divide(Count n, Count divisor, double inverse) {
  const auto quotient = static_cast<Count>(static_cast<double>(n) * inverse);
  const Count rest = n - quotient * divisor;
  return rest < 0 ? quotient - 1 : rest >= divisor ? quotient + 1 : quotient;
}

// Start of each worker's share; the first workers get the remainder.
template <class Count>
struct Shares {
  Count base;
  Count extra;
  Count large;       // key blocks of the workers with a larger share
  double per_large;  // 1 / key blocks of a larger share
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
  // Worker of a key block; for the key block past the last: the first worker without a share.
  __device__ __forceinline__ Count owner(Count key_block) const {
    if (base == 0) return key_block;
    const bool in_large = key_block < large;
    const Count share = divide(in_large ? key_block : key_block - large, in_large ? base + 1 : base,
                               in_large ? per_large : per_base);
    return in_large ? share : extra + share;
  }
  // First worker with a share that starts at the key block or later.
  __device__ __forceinline__ Count first_from(Count key_block) const {
    const Count worker = owner(key_block);
    return begin(worker) == key_block ? worker : worker + 1;
  }
};

// A thread's rows within a tile, kRows each.
template <int kRows>
struct TileRows {
  std::int64_t first;  // first row of the tile
  int rows;            // rows of the tile
  int local;           // the thread's first row within the tile
  std::uint32_t key_blocks[kRows];
  long long before;      // key blocks before the thread's first row
  long long begin, end;  // key blocks before the tile and up to its end
  long long total;       // key blocks of all tiles
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

// Leaves room for the ends of the shares after the last one.
__device__ __forceinline__ bool fits_32_bits(long long key_blocks, const WorkParams& p) {
  return key_blocks < 1 << 29 && p.workers < 1 << 29;
}

// For balanced items: the worker where each of the thread's rows starts, and its open rows.
template <int kRows, class Count>
struct RowOwners {
  Count worker[kRows];
  int open[kRows + 1];  // open rows of the thread before each row

  __device__ __forceinline__ RowOwners(const TileRows<kRows>& tile, const Shares<Count>& shares) {
    auto end = static_cast<Count>(tile.before);
    Count at = shares.owner(end);
    Count next = shares.begin(at + 1);  // start of the following share
    open[0] = 0;
    LATHE_UNROLL
    for (int i = 0; i < kRows; ++i) {
      worker[i] = at;
      open[i + 1] = open[i];
      if (tile.key_blocks[i] == 0) continue;
      end += static_cast<Count>(tile.key_blocks[i]);
      if (end >= next) {
        // Rows are mostly shorter than shares: tries the following share first.
        at = end < shares.begin(at + 2) ? at + 1 : shares.owner(end);
        next = shares.begin(at + 1);
        if (end == shares.begin(at)) continue;
      }
      ++open[i + 1];
    }
  }
};

// Stores the item with key blocks [begin, end) of a row, counted from the row's first key block.
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

// All blocks of a tile sum up its rows; each then writes one slice of the results.
struct Slice {
  std::int64_t thread;  // index among the threads of all slices
  std::int64_t threads;
  bool writes_rows;  // this thread's rows belong to the slice

  __device__ __forceinline__ Slice()
      : thread(std::int64_t{blockIdx.y} * kScanThreads + threadIdx.x),
        threads(std::int64_t{gridDim.y} * kScanThreads),
        writes_rows(threadIdx.x * gridDim.y / kScanThreads == blockIdx.y) {}
};

// Grid: tiles of rows. Sums the key blocks of each tile.
static __global__ void __launch_bounds__(kScanThreads, 1)
    work_key_blocks_kernel(const __grid_constant__ WorkParams p) {
  let_next_begin();
  wait_for_previous();
  store_tile_sum(p.tile_sums,
                 [&](std::int64_t row) { return row < p.rows ? key_blocks_of(p, row) : 0; });
}

// Grid: tiles of rows, after the key blocks. Counts the open rows of each tile.
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
  // Workers whose share starts in this tile. The last tile also handles workers without a share,
  // and the end.
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

// Grid: tiles of rows x slices of a tile. Items beyond the capacity are counted but not stored.
template <int kRows>
static __global__ void __launch_bounds__(kScanThreads, 1)
    work_balanced_kernel(const __grid_constant__ WorkParams p) {
  // Key blocks, and open rows of the tile, before each row of the tile.
  __shared__ std::int64_t row_key_blocks[kScanThreads * kRows + 1];
  __shared__ std::uint16_t row_open[kScanThreads * kRows];
  let_next_begin();
  wait_for_previous();
  const auto tile = tile_rows<kRows>(p);
  if (fits_32_bits(tile.total, p)) {
    balanced_items(p, tile, reinterpret_cast<std::int32_t*>(row_key_blocks), row_open);
  } else {
    balanced_items(p, tile, row_key_blocks, row_open);
  }
}

// Counts key blocks from the start of the tile.
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

// Grid: tiles of rows x slices of a tile. One item per key block.
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
