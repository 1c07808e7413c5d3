// Prefix sums over a block and over tiles. A tile's carry is the sum of the tiles before it, which
// every block adds up for itself: with 4096 values in a tile those are few.
#pragma once

#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/sm90/step/step_params.h"

namespace lathe::cuda {

struct ScanShared {
  long long warps[32];  // of kScanThreads threads
};

// Sum of the values of the threads before this one; `total` is that of all.
__device__ __forceinline__ long long block_prefix(long long value, ScanShared& shared,
                                                  long long& total) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  long long sum = value;
  for (int d = 1; d < 32; d *= 2) {
    const long long before = shuffle_up(sum, d);
    if (lane >= d) sum += before;
  }
  sync_block();  // the array may still be read from an earlier call
  if (lane == 31) shared.warps[warp] = sum;
  sync_block();
  if (warp == 0) {
    long long warps = shared.warps[lane];
    for (int d = 1; d < 32; d *= 2) {
      const long long before = shuffle_up(warps, d);
      if (lane >= d) warps += before;
    }
    shared.warps[lane] = warps;
  }
  sync_block();
  total = shared.warps[31];
  return sum - value + (warp == 0 ? 0 : shared.warps[warp - 1]);
}

// Sum of n values, known to all threads.
__device__ __forceinline__ long long block_sum(const std::int64_t* values, std::int64_t n,
                                               ScanShared& shared) {
  long long mine = 0;
  for (std::int64_t i = threadIdx.x; i < n; i += kScanThreads) mine += values[i];
  long long total;
  block_prefix(mine, shared, total);
  return total;
}

// out[i] = sum of the values before i, for the values of this thread, which begin at `at` with the
// sum `sum`; out[count] = sum of all.
template <class T>
__device__ __forceinline__ void store_prefix(T* out, std::int64_t count, std::int64_t at,
                                             long long sum,
                                             const long long (&values)[kScanPerThread]) {
  if (count == 0 && at == 0) out[0] = 0;
  LATHE_UNROLL
  for (int i = 0; i < kScanPerThread; ++i) {
    if (at + i < count) out[at + i] = static_cast<T>(sum);
    sum += values[i];
    if (at + i + 1 == count) out[count] = static_cast<T>(sum);
  }
}

// The first value of this thread.
__device__ __forceinline__ std::int64_t scan_begin() {
  return std::int64_t{blockIdx.x} * kScanTile + std::int64_t{threadIdx.x} * kScanPerThread;
}

// Index of the last of n values that is <= x. They rise; the first is <= x.
template <class T>
__device__ __forceinline__ std::int64_t last_not_above(const T* values, std::int64_t n, T x) {
  std::int64_t low = 0;
  std::int64_t high = n;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (values[middle] <= x ? low : high) = middle;
  }
  return low;
}

}  // namespace lathe::cuda
