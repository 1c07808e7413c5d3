// The indexer's exact top-k, one block per row. Four passes over 8-bit digits find the k-th best
// key; then the positions of better keys, and of the first equal ones, are stored in order.
#pragma once

#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/sm90/indexer/indexer.h"

namespace lathe::cuda {

inline constexpr int kSelectThreads = 256, kSelectWarps = kSelectThreads / 32;
inline constexpr int kDigits = 256;

/// Ascending as scores are; -0 equals 0; NaN is 0, which no other score is.
__device__ inline std::uint32_t score_key(float score) {
  if (score != score) return 0;
  const std::uint32_t bits = float_to_bits(score == 0 ? 0.f : score);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

struct Threshold {
  std::uint32_t key = 0;   // of the k-th best
  std::int64_t equal = 0;  // how many keys equal to it are selected
};

/// Precondition: the row has more than k keys.
__device__ inline Threshold find_threshold(const float* scores, std::int64_t len, std::int64_t k,
                                           std::uint32_t* counts /* [kDigits] shared */) {
  __shared__ std::uint32_t chosen;
  __shared__ long long left;
  std::uint32_t prefix = 0;
  std::int64_t rest = k;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = static_cast<int>(threadIdx.x); i < kDigits; i += kSelectThreads) counts[i] = 0;
    sync_block();
    for (std::int64_t i = threadIdx.x; i < len; i += kSelectThreads) {
      const std::uint32_t key = score_key(scores[i]);
      const bool same = shift == 24 || key >> (shift + 8) == prefix >> (shift + 8);
      if (key != 0 && same) atomicAdd(&counts[key >> shift & 0xffu], 1u);
    }
    sync_block();
    if (threadIdx.x == 0) {
      std::int64_t above = 0;
      int digit = kDigits - 1;
      while (digit > 0 && above + counts[digit] < rest) above += counts[digit--];
      chosen = static_cast<std::uint32_t>(digit);
      left = rest - above;
    }
    sync_block();
    prefix |= chosen << shift;
    rest = left;
    sync_block();
  }
  return {prefix, rest};
}

/// Number of earlier threads that set `mine`; total: of all threads.
__device__ inline std::int32_t count_before(bool mine, std::uint32_t* room /* [kSelectWarps] */,
                                            std::int32_t& total) {
  const std::uint32_t lanes = warp_ballot(mine);
  const auto bits = [](std::uint32_t v) {
    std::int32_t n = 0;
    for (; v != 0; v &= v - 1) ++n;
    return n;
  };
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane == 0) room[warp] = static_cast<std::uint32_t>(bits(lanes));
  sync_block();
  std::int32_t before = bits(lanes & ((1u << lane) - 1u));
  total = 0;
  for (std::uint32_t w = 0; w < kSelectWarps; ++w) {
    const auto of_warp = static_cast<std::int32_t>(room[w]);
    if (w < warp) before += of_warp;
    total += of_warp;
  }
  sync_block();
  return before;
}

__device__ inline std::int32_t slot_at(const SelectSlots& p, std::int64_t request,
                                       std::int64_t position) {
  if (request < 0 || position / p.page_tokens >= p.width) return -1;
  const std::int32_t page = p.page_table[request * p.width + position / p.page_tokens];
  if (page < 0 || page >= p.pages) return -1;
  return page * p.page_tokens + static_cast<std::int32_t>(position % p.page_tokens);
}

static __global__ void __launch_bounds__(kSelectThreads)
    select_slots_kernel(const __grid_constant__ SelectSlots p) {
  __shared__ std::uint32_t counts[kDigits];
  __shared__ std::uint32_t room[kSelectWarps];
  let_next_begin();
  wait_for_previous();
  const std::int64_t row = blockIdx.x;
  const std::int64_t len = p.lens[row];
  const std::int64_t request = p.request[row];
  const float* scores = p.logits + row * p.cols;
  std::int32_t* slots = p.slots + row * p.k;
  const bool all = len <= p.k;
  const Threshold t = all ? Threshold{} : find_threshold(scores, len, p.k, counts);
  std::int64_t taken = 0, equal = 0;
  for (std::int64_t first = 0; first < len; first += kSelectThreads) {
    const std::int64_t position = first + threadIdx.x;
    const bool inside = position < len;
    bool mine = inside;
    std::int32_t equals = 0;
    if (!all) {
      const std::uint32_t key = inside ? score_key(scores[position]) : 0;
      const bool ties = key == t.key && key != 0;
      const std::int64_t before = equal + count_before(ties, room, equals);
      mine = key > t.key || (ties && before < t.equal);
    }
    std::int32_t total = 0;
    const std::int64_t place = taken + count_before(mine, room, total);
    if (mine) slots[place] = slot_at(p, request, position);
    taken += total;
    equal += equals;
  }
  for (std::int64_t i = taken + threadIdx.x; i < p.k; i += kSelectThreads) slots[i] = -1;
}

static __global__ void __launch_bounds__(kSelectThreads)
    take_choices_kernel(const __grid_constant__ TakeChoices p) {
  let_next_begin();
  wait_for_previous();
  const std::int64_t row = blockIdx.x;
  const std::int64_t choice = p.choice_rows[row];
  const std::int64_t keys = choice >= 0 ? p.choice_width : p.select.lens[row];
  for (std::int64_t i = threadIdx.x; i < p.select.k; i += kSelectThreads) {
    std::int32_t slot = -1;
    if (i < keys) {
      slot = choice >= 0 ? p.choices[choice * p.choice_width + i]
                         : slot_at(p.select, p.select.request[row], i);
    }
    p.select.slots[row * p.select.k + i] = slot;
  }
}

static __global__ void __launch_bounds__(kSelectThreads)
    count_up_kernel(std::int32_t* slots, const std::int32_t* like, std::int64_t count) {
  wait_for_previous();
  const std::int64_t i = std::int64_t{blockIdx.x} * kSelectThreads + threadIdx.x;
  if (i >= count) return;
  slots[i] = like != nullptr && like[i] < 0 ? -1 : static_cast<std::int32_t>(i);
}

}  // namespace lathe::cuda
