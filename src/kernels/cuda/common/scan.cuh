// Prefix sums over a block and over tiles. A tile's carry is the sum of all earlier tiles. Every
// block computes it itself: with 4096 values in a tile there are few.
#pragma once

#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/common/scan.h"

namespace lathe::cuda {

template <class T = long long>
struct ScanShared {
  T warps[32];  // of kScanThreads threads
};

// Sum of the values of the threads before this one; `total` is the sum of all. Uses one barrier, so
// each call needs its own `shared`. Every warp adds up the warps' totals itself: if one did, the
// others would wait at a second barrier.
template <class T>
__device__ __forceinline__ T block_prefix(T value, ScanShared<T>& shared, T& total) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  T sum = value;
  for (int d = 1; d < 32; d *= 2) {
    const T before = shuffle_up(sum, d);
    if (lane >= d) sum += before;
  }
  if (lane == 31) shared.warps[warp] = sum;
  sync_block();
  const T own = shared.warps[lane];
  T warps = own;
  for (int d = 1; d < 32; d *= 2) {
    const T before = shuffle_up(warps, d);
    if (lane >= d) warps += before;
  }
  total = shuffle(warps, 31);
  return sum - value + shuffle(warps - own, warp);
}

// Sum of the tiles before this block's; `total` is the sum of all. Every warp computes it itself,
// without a barrier.
__device__ __forceinline__ long long tiles_before(const std::int64_t* tile_sums, long long& total) {
  long long before = 0;
  total = 0;
  for (unsigned i = threadIdx.x % 32; i < gridDim.x; i += 32) {
    const long long sum = tile_sums[i];
    total += sum;
    if (i < blockIdx.x) before += sum;
  }
  for (int d = 16; d > 0; d /= 2) {
    before += shuffle_xor(before, d);
    total += shuffle_xor(total, d);
  }
  return before;
}

// Index of this thread's first value.
__device__ __forceinline__ std::int64_t scan_begin() {
  return std::int64_t{blockIdx.x} * kScanTile + std::int64_t{threadIdx.x} * kScanPerThread;
}

// Stores the sum of tile blockIdx.x of value(0), value(1), ...
template <class Value>
__device__ __forceinline__ void store_tile_sum(std::int64_t* tile_sums, Value value) {
  __shared__ ScanShared<> shared;
  long long mine = 0;
  for (int i = 0; i < kScanPerThread; ++i) mine += value(scan_begin() + i);
  long long total;
  block_prefix(mine, shared, total);
  if (threadIdx.x == 0) tile_sums[blockIdx.x] = total;
}

// Calls store(i, sum of the values before i) for the values of tile blockIdx.x, and for i = count
// in the last tile. value(i) must be 0 for i >= count. With more than one tile, `tile_sums` must be
// filled.
template <class Value, class Store>
__device__ __forceinline__ void for_prefix_sums(std::int64_t count, const std::int64_t* tile_sums,
                                                Value value, Store store) {
  __shared__ ScanShared<> shared;
  const std::int64_t at = scan_begin();
  long long values[kScanPerThread];
  long long mine = 0;
  LATHE_UNROLL
  for (int i = 0; i < kScanPerThread; ++i) mine += values[i] = value(at + i);
  long long total;
  long long sum = block_prefix(mine, shared, total);
  if (gridDim.x > 1) sum += tiles_before(tile_sums, total);
  if (count == 0 && at == 0) store(0, 0);
  LATHE_UNROLL
  for (int i = 0; i < kScanPerThread; ++i) {
    if (at + i < count) store(at + i, sum);
    sum += values[i];
    if (at + i + 1 == count) store(count, sum);
  }
}

// Index of the last of n ascending values that is <= x. The first must be <= x.
template <class T, class N>
__device__ __forceinline__ N last_not_above(const T* values, N n, T x) {
  N low = 0;
  N high = n;
  while (high - low > 1) {
    const N middle = low + (high - low) / 2;
    (values[middle] <= x ? low : high) = middle;
  }
  return low;
}

}  // namespace lathe::cuda
