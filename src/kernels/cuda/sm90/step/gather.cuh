// Builds the compact buffer's lists for a batch: which slots it holds, and where in it a row finds
// its keys.
#pragma once

#include "kernels/cuda/sm90/step/batch.cuh"

namespace lathe::cuda {

// Keys that are gathered for a request, or entries; 0 for what has no row to look at them.
__device__ __forceinline__ long long gathered(const GatherParams& p, bool entries, std::int64_t r) {
  const BatchParams& b = p.batch;
  if (r >= b.requests || rows_of(b, r) == 0) return 0;
  const std::int32_t keys = kv_len(b, r);
  if (keys <= 0) return 0;
  return entries ? entries_of(b, keys) : keys - window_begin(b, r);
}

// Grid: tiles of requests x lists, as of the next: keys, and entries where there are two sources.
static __global__ void __launch_bounds__(kScanThreads, 1)
    gather_sums_kernel(const __grid_constant__ GatherParams p) {
  let_next_begin();
  wait_for_previous();
  store_tile_sum(p.tile_sums + std::int64_t{blockIdx.y} * gridDim.x,
                 [&](std::int64_t r) { return gathered(p, blockIdx.y == 1, r); });
}

static __global__ void __launch_bounds__(kScanThreads, 1)
    gather_prefix_kernel(const __grid_constant__ GatherParams p) {
  let_next_begin();
  wait_for_previous();
  std::int64_t* out = blockIdx.y == 1 ? p.entry_indptr : p.indptr;
  for_prefix_sums(
      p.batch.requests, p.tile_sums + std::int64_t{blockIdx.y} * gridDim.x,
      [&](std::int64_t r) { return gathered(p, blockIdx.y == 1, r); },
      [&](std::int64_t r, long long sum) { out[r] = sum; });
}

__device__ __forceinline__ void gather_slots(const GatherParams& p, bool entries, int block) {
  const std::int64_t* indptr = entries ? p.entry_indptr : p.indptr;
  const ListsParams& lists = entries ? p.batch.compressed : p.batch.main;
  std::int32_t* out = entries ? p.entry_slots : p.slots;
  const std::int64_t room = entries ? p.entry_room : p.room;
  const std::int64_t step = std::int64_t{entries ? p.entry_blocks : p.key_blocks} * kStepThreads;
  const std::int64_t total = indptr[p.batch.requests];
  for (std::int64_t i = std::int64_t{block} * kStepThreads + threadIdx.x; i < room; i += step) {
    std::int32_t slot = -1;
    if (i < total) {
      const std::int64_t r = last_not_above(indptr, p.batch.requests, i);
      const std::int64_t first = entries ? 0 : window_begin(p.batch, r);
      slot = list_slot(lists, r, first + i - indptr[r]);
    }
    out[i] = slot;
  }
}

// Grid: the blocks that the parameters give.
static __global__ void __launch_bounds__(kStepThreads)
    gather_kernel(const __grid_constant__ GatherParams p) {
  let_next_begin();
  wait_for_previous();
  const BatchParams& b = p.batch;
  const int block = static_cast<int>(blockIdx.x);
  if (block < p.key_blocks) return gather_slots(p, false, block);
  if (block < p.key_blocks + p.entry_blocks) return gather_slots(p, true, block - p.key_blocks);
  const std::int64_t first =
      std::int64_t{block - p.key_blocks - p.entry_blocks} * kStepThreads + threadIdx.x;
  for (std::int64_t t = first; t < p.rows; t += std::int64_t{p.row_blocks} * kStepThreads) {
    std::int64_t offset = -1;
    std::int64_t base = -1;
    std::int32_t start = -1;
    if (b.requests > 0 && t < p.q_indptr[b.requests]) {
      const std::int64_t r = last_not_above(p.q_indptr, b.requests, static_cast<std::int32_t>(t));
      const std::int64_t entries = b.two_sources ? p.entry_indptr[b.requests] : 0;
      offset = b.window == 0 ? p.indptr[r] : b.two_sources ? p.entry_indptr[r] : 0;
      base = entries + p.indptr[r];
      start = window_begin(b, r);
    }
    p.ragged_offset[t] = static_cast<std::int32_t>(offset);
    if (p.window_base != nullptr) p.window_base[t] = static_cast<std::int32_t>(base);
    if (p.window_start != nullptr) p.window_start[t] = start;
  }
}

}  // namespace lathe::cuda
