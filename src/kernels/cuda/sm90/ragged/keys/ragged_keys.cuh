// Lists the keys of a pass: where each request's keys begin, and the slot of each key.
#pragma once

#include "kernels/cuda/sm90/gqa/schedule/gqa_schedule.cuh"
#include "kernels/cuda/sm90/ragged/ragged_params.h"

namespace lathe::cuda {

inline constexpr int kRaggedSlotThreads = 256;

/// One block. A request without rows has no keys. At most p.keys keys are counted.
static __global__ void __launch_bounds__(kGqaScheduleThreads)
    ragged_bases_kernel(const __grid_constant__ RaggedParams p) {
  __shared__ long long sums[kGqaScheduleThreads / 32];
  const GqaParams& g = p.gqa;
  GqaScan scan{sums};
  const auto room = [&](std::int64_t keys) {
    return static_cast<std::int32_t>(keys < p.keys ? keys : p.keys);
  };
  for (std::int32_t first = 0; first < g.requests; first += kGqaScheduleThreads) {
    const std::int32_t r = first + static_cast<std::int32_t>(threadIdx.x);
    std::int64_t keys = 0;
    if (r < g.requests) {
      const GqaRows rows(g, r);
      keys = rows.end > rows.begin ? g.kv_lens[r] : 0;
      keys = keys < 0 ? 0 : keys > g.max_keys ? g.max_keys : keys;
    }
    const std::int64_t all = scan.add(keys);
    if (r < g.requests) p.bases[r + 1] = room(all);
  }
  if (threadIdx.x == 0) {
    p.bases[0] = p.extent[0] = 0;
    p.extent[1] = room(scan.before);
  }
}

/// Grid: blocks that together cover p.keys.
static __global__ void __launch_bounds__(kRaggedSlotThreads)
    ragged_slots_kernel(const __grid_constant__ RaggedParams p) {
  wait_for_previous();
  const GqaParams& g = p.gqa;
  const auto i = static_cast<std::int32_t>(blockIdx.x * kRaggedSlotThreads + threadIdx.x);
  if (i >= p.keys) return;
  std::int32_t slot = -1;
  if (i < p.extent[1]) {
    const std::int32_t r = last_at_most(p.bases, g.requests, i);
    const std::int32_t key = i - p.bases[r];
    const auto in_table = static_cast<std::int32_t>(g.page_size(static_cast<std::uint32_t>(key)));
    const std::int32_t page = g.table[std::int64_t{r} * g.table_width + in_table];
    const auto size = static_cast<std::int32_t>(g.page_size.divisor);
    if (page >= 0 && page < g.pages) slot = page * size + (key - in_table * size);
  }
  p.slots[i] = slot;
}

}  // namespace lathe::cuda
