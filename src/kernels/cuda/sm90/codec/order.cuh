// Orders tokens by the part of the pool that their slot is in.
//
// With unordered slots, the tokens of one sector of the pool are written at different times, so the
// sector goes to memory several times. If tokens are ordered by part of the pool, these writes
// merge in L2. The rows are then read in random order, which costs less because rows are whole
// sectors.
//
// Two launches with blocks of 4096 tokens: the first counts the slots in each of 256 parts, the
// second writes the list. A block's tokens of one part are contiguous, so whole sectors are
// written. The order of blocks within a part is arbitrary.
#pragma once

#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/sm90/codec/codec_params.h"

namespace lathe::cuda {

// Slots of a block's tokens; a thread's slots are kOrderThreads apart.
struct OrderSlots {
  std::int64_t first;  // this thread's first token
  std::int32_t slot[kOrderEach];

  __device__ __forceinline__ explicit OrderSlots(const OrderParams& p)
      : first(std::int64_t{blockIdx.x} * kOrderRows + threadIdx.x) {
    LATHE_UNROLL
    for (int i = 0; i < kOrderEach; ++i) slot[i] = has(p, i) ? p.slots[token(i)] : 0;
  }
  __device__ __forceinline__ std::int64_t token(int i) const { return first + i * kOrderThreads; }
  __device__ __forceinline__ bool has(const OrderParams& p, int i) const {
    return token(i) < p.count;
  }
};

// A hole gets an arbitrary part.
__device__ __forceinline__ std::uint32_t part_of_slot(const OrderParams& p, std::int32_t slot) {
  const std::uint32_t part = static_cast<std::uint32_t>(slot) >> p.shift;
  return part < kOrderParts ? part : kOrderParts - 1;
}

// Grid: order_blocks(count). Totals start at 0.
static __global__ void __launch_bounds__(kOrderThreads)
    order_count_kernel(const __grid_constant__ OrderParams p) {
  static_assert(kOrderParts == kOrderThreads);
  __shared__ std::uint32_t counts[kOrderParts];
  const OrderSlots mine(p);
  counts[threadIdx.x] = 0;
  sync_block();
  LATHE_UNROLL
  for (int i = 0; i < kOrderEach; ++i) {
    if (mine.has(p, i)) atomicAdd(&counts[part_of_slot(p, mine.slot[i])], 1u);
  }
  sync_block();
  const std::uint32_t count = counts[threadIdx.x];
  p.places[blockIdx.x * kOrderParts + threadIdx.x] =
      count == 0 ? 0 : atomicAdd(p.totals + threadIdx.x, count);
}

// Sum of the values of the threads before this one. `warps` may be reused after a barrier.
__device__ __forceinline__ std::uint32_t sum_before(std::uint32_t value, std::uint32_t* warps) {
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  std::uint32_t sum = value;
  LATHE_UNROLL
  for (int d = 1; d < 32; d *= 2) {
    const std::uint32_t before = shuffle_up(sum, d);
    if (lane >= static_cast<std::uint32_t>(d)) sum += before;
  }
  if (lane == 31) warps[warp] = sum;
  sync_block();
  std::uint32_t before = sum - value;
  for (std::uint32_t w = 0; w < warp; ++w) before += warps[w];
  return before;
}

// Same grid, after order_count_kernel.
static __global__ void __launch_bounds__(kOrderThreads)
    order_list_kernel(const __grid_constant__ OrderParams p) {
  __shared__ std::uint32_t counts[kOrderParts];  // this block's tokens per part
  __shared__ std::uint32_t begins[kOrderParts];  // start of a part in `entries`
  __shared__ std::uint32_t ahead[kOrderParts];   // add to that to get the place in the list
  __shared__ std::uint32_t warp_sums[2][kOrderThreads / 32];
  __shared__ OrderEntry entries[kOrderRows];
  const std::uint32_t thread = threadIdx.x;
  const OrderSlots mine(p);
  counts[thread] = 0;
  const std::uint32_t place = p.places[blockIdx.x * kOrderParts + thread] +
                              sum_before(p.totals[thread], warp_sums[0]);  // has a barrier
  std::uint32_t rank[kOrderEach];
  LATHE_UNROLL
  for (int i = 0; i < kOrderEach; ++i) {
    rank[i] = mine.has(p, i) ? atomicAdd(&counts[part_of_slot(p, mine.slot[i])], 1u) : 0;
  }
  sync_block();
  const std::uint32_t begin = sum_before(counts[thread], warp_sums[1]);
  begins[thread] = begin;
  ahead[thread] = place - begin;
  sync_block();
  LATHE_UNROLL
  for (int i = 0; i < kOrderEach; ++i) {
    if (!mine.has(p, i)) continue;
    entries[begins[part_of_slot(p, mine.slot[i])] + rank[i]] = {
        static_cast<std::uint32_t>(mine.token(i)), mine.slot[i]};
  }
  sync_block();
  LATHE_UNROLL
  for (int i = 0; i < kOrderEach; ++i) {
    if (!mine.has(p, i)) continue;
    const std::uint32_t at = thread + static_cast<std::uint32_t>(i * kOrderThreads);
    const OrderEntry e = entries[at];
    p.order[at + ahead[part_of_slot(p, e.slot)]] = e;
  }
}

}  // namespace lathe::cuda
