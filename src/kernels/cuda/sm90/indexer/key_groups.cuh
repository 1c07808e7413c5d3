// Lists the tokens of selected index keys, where several tokens share one.
#pragma once

#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/sm90/indexer/indexer.h"

namespace lathe::cuda {

inline constexpr int kGroupThreads = 256;

/// A block for each row.
static __global__ void __launch_bounds__(kGroupThreads)
    list_groups_kernel(const __grid_constant__ ListGroups p) {
  __shared__ std::uint32_t listed;  // keys
  let_next_begin();
  wait_for_previous();
  const std::int64_t row = blockIdx.x;
  const std::int32_t* keys = p.keys + row * p.k;
  if (threadIdx.x == 0) listed = 0;
  sync_block();
  for (std::uint32_t i = threadIdx.x; i < p.k; i += kGroupThreads) {
    if (keys[i] >= 0) atomicMax(&listed, i + 1);
  }
  sync_block();
  const auto group = static_cast<std::int32_t>(p.group);
  const std::int32_t chosen = static_cast<std::int32_t>(listed) * group;
  const std::int32_t begun = p.lens[row] % group, first = p.own[row] - begun + 1;
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < p.width; i += kGroupThreads) {
    std::int32_t slot = -1;
    if (i < chosen) {
      const auto n = static_cast<std::int32_t>(p.key_of(static_cast<std::uint32_t>(i)));
      if (keys[n] >= 0) slot = keys[n] * group + i - n * group;
    } else if (i - chosen < begun) {
      slot = first + i - chosen;
    }
    p.slots[row * p.width + i] = slot;
  }
}

}  // namespace lathe::cuda
