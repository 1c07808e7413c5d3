// Builds the rows of a step: each row's request and position, the slot it is written to, and the
// keys it sees. Other blocks of the same launch build the tables.
#pragma once

#include "kernels/cuda/sm90/step/batch.cuh"

namespace lathe::cuda {

// Prefix sums of the requests' rows. Every block computes them itself: cheaper than another launch.
__device__ __forceinline__ void sum_rows(const BatchParams& b,
                                         std::int32_t (&tile_sums)[kScanTile + 1]) {
  __shared__ ScanShared<std::int32_t> shared;
  const int at = static_cast<int>(threadIdx.x) * kScanPerThread;
  std::int32_t values[kScanPerThread];
  std::int32_t mine = 0;
  LATHE_UNROLL
  for (int i = 0; i < kScanPerThread; ++i) {
    mine += values[i] = at + i < b.requests ? rows_of(b, at + i) : 0;
  }
  std::int32_t total;
  std::int32_t sum = block_prefix(mine, shared, total);
  LATHE_UNROLL
  for (int i = 0; i < kScanPerThread; ++i) {
    tile_sums[at + i] = sum;
    sum += values[i];
  }
  if (threadIdx.x + 1 == kScanThreads) tile_sums[kScanTile] = sum;
  sync_block();
}

struct RowPlace {
  std::int32_t request = -1;
  std::int32_t position = -1;
};

__device__ __forceinline__ RowPlace place_of(const BatchParams& b, const std::int32_t* q_indptr,
                                             std::int64_t t) {
  RowPlace place;
  if (b.requests > 0 && t < q_indptr[b.requests]) {
    const auto row = static_cast<std::int32_t>(t);
    const auto r = last_not_above(q_indptr, static_cast<std::int32_t>(b.requests), row);
    place.request = r;
    const std::int32_t position = length_sum(b.cached[r], row - q_indptr[r]);
    if (position >= 0 && position < kv_len(b, r)) place.position = position;
  }
  return place;
}

__device__ __forceinline__ void fill_row(const StepRowsParams& p, const std::int32_t* q_indptr,
                                         std::int64_t t) {
  const BatchParams& b = p.batch;
  const RowPlace place = place_of(b, q_indptr, t);
  const std::int32_t keys = place.position + 1;
  const std::int32_t window = keys < b.window ? keys : b.window;
  const std::int32_t entries = b.two_sources ? entries_of(b, keys) : 0;
  const std::int32_t ranked = b.two_sources ? entries : keys;
  std::int32_t chosen = b.window > 0 ? entries : keys;
  if (p.top_k > 0 && chosen > p.top_k) chosen = p.top_k;
  p.positions[t] = place.position;
  p.row_request[t] = place.request;
  p.row_lens[t] = keys;
  p.attend_lens[t] = chosen + (b.window > 0 ? window : 0);
  if (p.index_lens != nullptr) p.index_lens[t] = ranked;
  if (p.identity != nullptr) p.identity[t] = ranked <= p.top_k ? 1 : 0;
  if (p.window_lens != nullptr) p.window_lens[t] = window;
  p.out_slots[t] = place.request < 0 ? -1 : list_slot(b.main, place.request, place.position);
  if (!b.two_sources) return;
  const bool completes = keys > 0 && entries * static_cast<std::int32_t>(b.ratio.divisor) == keys;
  p.compressed_lens[t] = entries;
  p.compressed_out_slots[t] = completes ? list_slot(b.compressed, place.request, entries - 1) : -1;
}

__device__ __forceinline__ void fill_table(const BatchParams& b, const ListsParams& lists,
                                           const StepTableParams& table, bool of_entries,
                                           int block) {
  std::int32_t column;
  const std::int64_t r = table_row<kScanThreads>(table.lanes, block, column);
  if (r >= b.requests) return;
  const std::int32_t keys = kv_len(b, r);
  const std::int64_t held = of_entries ? entries_of(b, keys) : keys;
  const std::int64_t size = lists.page_size.divisor;
  const RequestPages pages(lists, r);
  fill_columns(table.out, r, table.width, column, table.lanes,
               [&](std::int64_t i) { return i * size < held ? pages(i) : -1; });
}

// Writes the positions of a row's window, a warp per row. A lane looks up several slots before it
// stores the first, because the compiler must assume that a store changes what the lookups read.
__device__ __forceinline__ void fill_windows(const StepRowsParams& p, const std::int32_t* q_indptr,
                                             int block) {
  constexpr int kWarps = kScanThreads / 32;
  constexpr int kAtOnce = 4;
  const ListsParams& lists = p.batch.main;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const std::int64_t first = std::int64_t{block} * kWarps + static_cast<int>(threadIdx.x / 32);
  for (std::int64_t t = first; t < p.rows; t += std::int64_t{p.window_blocks} * kWarps) {
    const RowPlace place = place_of(p.batch, q_indptr, t);
    const std::int32_t keys = place.position + 1;
    const auto begin =
        static_cast<std::uint32_t>(keys > p.batch.window ? keys - p.batch.window : 0);
    std::int32_t* out = p.window_slots + t * p.window_width;
    const auto width = static_cast<int>(p.window_width);
    if (place.request < 0) {
      for (int i = lane; i < width; i += 32) out[i] = -1;
      continue;
    }
    const RequestPages pages(lists, place.request);
    for (int i = lane; i < width; i += 32 * kAtOnce) {
      std::int32_t slots[kAtOnce];
      LATHE_UNROLL
      for (int k = 0; k < kAtOnce; ++k) {
        const std::uint32_t position = begin + static_cast<std::uint32_t>(i + 32 * k);
        const bool seen = position < static_cast<std::uint32_t>(keys);
        slots[k] = seen ? slot_on(lists.page_size, position, pages) : -1;
      }
      LATHE_UNROLL
      for (int k = 0; k < kAtOnce; ++k) {
        if (i + 32 * k < width) out[i + 32 * k] = slots[k];
      }
    }
  }
}

// Computes StepCounts, in one block.
__device__ __forceinline__ void fill_counts(const StepRowsParams& p, const std::int32_t* q_indptr) {
  __shared__ ScanShared<> shared;
  __shared__ std::int32_t most[2];
  const BatchParams& b = p.batch;
  if (threadIdx.x < 2) most[threadIdx.x] = 0;
  std::int32_t rows = 0;
  std::int32_t keys = 0;
  long long selecting = 0;
  // Keys that a row must see before the indexer has anything to choose.
  const std::int64_t enough = (std::int64_t{p.top_k} + 1) * (b.two_sources ? b.ratio.divisor : 1u);
  for (std::int64_t r = threadIdx.x; r < b.requests; r += kScanThreads) {
    const std::int32_t own = rows_of(b, r);
    const std::int32_t len = kv_len(b, r);
    const std::int64_t choosing = len + std::int64_t{1} - enough;
    rows = own > rows ? own : rows;
    keys = len > keys ? len : keys;
    if (p.top_k > 0 && choosing > 0) selecting += choosing < own ? choosing : own;
  }
  long long total;
  block_prefix(selecting, shared, total);
  atomicMax(&most[0], rows);
  atomicMax(&most[1], keys);
  sync_block();
  if (threadIdx.x != 0) return;
  p.counts[0] = b.requests == 0 ? 0 : q_indptr[b.requests];
  p.counts[1] = most[0];
  p.counts[2] = most[1];
  p.counts[3] = static_cast<std::int32_t>(total);
}

// Grid: as the parameters say, plus one block if counts are wanted. kSummed: q_indptr has been
// computed; otherwise the requests fit in one tile.
template <bool kSummed>
static __global__ void __launch_bounds__(kScanThreads, 2)
    step_rows_kernel(const __grid_constant__ StepRowsParams p) {
  let_next_begin();
  wait_for_previous();
  const BatchParams& b = p.batch;
  // Tables come last, because they need no prefix sums.
  const int tables = p.row_blocks + p.window_blocks + (p.counts != nullptr ? 1 : 0);
  const int block = static_cast<int>(blockIdx.x) - tables;
  if (block >= p.table.blocks) {
    return fill_table(b, b.compressed, p.compressed_table, true, block - p.table.blocks);
  }
  if (block >= 0) return fill_table(b, b.main, p.table, false, block);

  const std::int32_t* q_indptr = p.q_indptr;
  if constexpr (!kSummed) {
    __shared__ std::int32_t tile_sums[kScanTile + 1];
    sum_rows(b, tile_sums);
    q_indptr = tile_sums;
  }
  const int window = static_cast<int>(blockIdx.x) - p.row_blocks;
  if (window >= p.window_blocks) return fill_counts(p, q_indptr);
  if (window >= 0) return fill_windows(p, q_indptr, window);
  // Each row reads a different page's sector: an SM would be slow with more rows.
  if (threadIdx.x >= kBlockRows) return;
  const std::int64_t step = std::int64_t{p.row_blocks} * kBlockRows;
  const std::int64_t first = std::int64_t{blockIdx.x} * kBlockRows + threadIdx.x;
  for (std::int64_t t = first; t < p.rows; t += step) fill_row(p, q_indptr, t);
  for (std::int64_t r = first; r <= b.requests; r += step) {
    if (!kSummed) p.q_indptr[r] = q_indptr[r];
    if (r < b.requests) p.kv_lens[r] = kv_len(b, r);
  }
}

}  // namespace lathe::cuda
