// Work lists (attn/work_list.h) of any number of rows: units are summed up over the rows, then
// items, and every item and worker finds its place by binary search.
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
  if (row >= p.rows) return 0;
  return (keys_of(p, row) + p.unit - 1) / p.unit;
}

// Where the share of each worker begins; the first ones take the remainder.
struct Shares {
  std::int64_t base;
  std::int64_t extra;

  __device__ __forceinline__ Shares(std::int64_t units, std::int64_t workers)
      : base(units / workers), extra(units % workers) {}
  __device__ __forceinline__ std::int64_t begin(std::int64_t worker) const {
    return worker * base + (worker < extra ? worker : extra);
  }
  // Whose share a unit lies in.
  __device__ __forceinline__ std::int64_t owner(std::int64_t unit) const {
    const std::int64_t large = extra * (base + 1);
    return unit < large ? unit / (base + 1) : extra + (unit - large) / base;
  }
};

// Items of a row whose units are [begin, begin + units).
__device__ __forceinline__ long long items_of(const WorkParams& p, const Shares& shares,
                                              std::int64_t begin, std::int64_t units) {
  if (units == 0 || p.fixed) return units;
  return shares.owner(begin + units - 1) - shares.owner(begin) + 1;
}

// Grid: scan_tiles(rows), as of the next two.
static __global__ void __launch_bounds__(kScanThreads, 1)
    work_sums_kernel(const __grid_constant__ WorkParams p) {
  __shared__ ScanShared shared;
  long long mine = 0;
  for (int i = 0; i < kScanPerThread; ++i) mine += units_of(p, scan_begin() + i);
  long long total;
  block_prefix(mine, shared, total);
  if (threadIdx.x == 0) p.sums[blockIdx.x] = total;
}

// Units before each row, and the items of each tile; if one tile is all, items before each row.
static __global__ void __launch_bounds__(kScanThreads, 1)
    work_units_kernel(const __grid_constant__ WorkParams p) {
  __shared__ ScanShared shared;
  const std::int64_t at = scan_begin();
  long long values[kScanPerThread];
  long long mine = 0;
  LATHE_UNROLL
  for (int i = 0; i < kScanPerThread; ++i) mine += values[i] = units_of(p, at + i);
  long long total;
  long long sum = block_prefix(mine, shared, total);
  const bool alone = gridDim.x == 1;
  if (!alone) {
    sum += block_sum(p.sums, blockIdx.x, shared);
    total = block_sum(p.sums, gridDim.x, shared);
  }
  store_prefix(p.row_units, p.rows, at, sum, values);
  const Shares shares(total, p.workers);
  mine = 0;
  LATHE_UNROLL
  for (int i = 0; i < kScanPerThread; ++i) {
    const long long units = values[i];
    mine += values[i] = items_of(p, shares, sum, units);
    sum += units;
  }
  long long items;
  const long long before = block_prefix(mine, shared, items);
  if (alone) {
    store_prefix(p.row_items, p.rows, at, before, values);
  } else if (threadIdx.x == 0) {
    p.sums[gridDim.x + blockIdx.x] = items;
  }
}

// Items before each row, where there are several tiles.
static __global__ void __launch_bounds__(kScanThreads, 1)
    work_rows_kernel(const __grid_constant__ WorkParams p) {
  __shared__ ScanShared shared;
  const std::int64_t at = scan_begin();
  const Shares shares(p.row_units[p.rows], p.workers);
  long long values[kScanPerThread];
  long long mine = 0;
  LATHE_UNROLL
  for (int i = 0; i < kScanPerThread; ++i) {
    const std::int64_t row = at + i;
    values[i] = row >= p.rows ? 0
                              : items_of(p, shares, p.row_units[row],
                                         p.row_units[row + 1] - p.row_units[row]);
    mine += values[i];
  }
  long long total;
  const long long sum = block_prefix(mine, shared, total);
  const long long carry = block_sum(p.sums + gridDim.x, blockIdx.x, shared);
  store_prefix(p.row_items, p.rows, at, sum + carry, values);
}

__device__ __forceinline__ void store_item(const WorkParams& p, const Shares& shares,
                                           std::int64_t i) {
  const std::int64_t row = last_not_above(p.row_items, p.rows, i);
  const std::int64_t split = i - p.row_items[row];
  const std::int64_t units = p.row_units[row];
  std::int64_t begin = units + split;
  std::int64_t end = begin + 1;
  if (!p.fixed) {
    const std::int64_t worker = shares.owner(units) + split;
    begin = shares.begin(worker) > units ? shares.begin(worker) : units;
    const std::int64_t row_end = p.row_units[row + 1];
    end = shares.begin(worker + 1) < row_end ? shares.begin(worker + 1) : row_end;
  }
  const std::int64_t keys = keys_of(p, row);
  const std::int64_t first = (begin - units) * p.unit;
  const std::int64_t last = (end - units) * p.unit < keys ? (end - units) * p.unit : keys;
  const std::int64_t base = p.firsts == nullptr ? 0 : p.firsts[row];
  reinterpret_cast<uint4*>(p.items)[i] = {
      static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(base + first),
      static_cast<std::uint32_t>(last - first), static_cast<std::uint32_t>(split)};
}

// Any grid of kStepThreads. Items past the room are counted and not stored.
static __global__ void __launch_bounds__(kStepThreads, 2)
    work_items_kernel(const __grid_constant__ WorkParams p) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * kStepThreads + threadIdx.x;
  const std::int64_t step = std::int64_t{gridDim.x} * kStepThreads;
  const std::int64_t total = p.rows == 0 ? 0 : p.row_units[p.rows];
  const std::int64_t items = p.rows == 0 ? 0 : p.row_items[p.rows];
  const Shares shares(total, p.workers);
  for (std::int64_t i = thread; i < items && i < p.room; i += step) store_item(p, shares, i);
  for (std::int64_t w = thread; w <= p.workers; w += step) {
    const std::int64_t unit = shares.begin(w);
    std::int64_t before = items;
    if (unit < total) {
      const std::int64_t row = last_not_above(p.row_units, p.rows, unit);
      before =
          p.fixed ? unit : p.row_items[row] + shares.owner(unit) - shares.owner(p.row_units[row]);
    }
    p.worker_items[w] = before;
  }
}

}  // namespace lathe::cuda
