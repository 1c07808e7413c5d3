// Records of a plane from slots to slots, or to and from a dense list.
#pragma once

#include "kernels/cuda/sm90/codec/block_rows.cuh"

namespace lathe::cuda {

// Grid: ceil(count / block_rows) blocks of kCodecThreads. Unit: what an access moves.
template <class Unit>
static __global__ void __launch_bounds__(kCodecThreads)
    move_kernel(const __grid_constant__ MoveParams p) {
  __shared__ std::int64_t from[kMaxBlockRows];  // bytes; -1: skipped
  __shared__ std::int64_t to[kMaxBlockRows];
  const int rows = rows_of_block(p.count, p.block_rows);
  for (int r = static_cast<int>(threadIdx.x); r < rows; r += kCodecThreads) {
    const std::int64_t i = std::int64_t{blockIdx.x} * p.block_rows + r;
    const std::int64_t src = p.src_slots[i];
    const std::int64_t dst = p.dst_slots[i];
    const auto offset = [&](std::int64_t slot, bool dense) {
      if (dense) return i * p.step;
      const std::uint32_t page = p.page_size(static_cast<std::uint32_t>(slot));
      const std::int64_t token = slot - std::int64_t{page} * p.page_size.divisor;
      return std::int64_t{page} * p.page_stride + p.start + token * p.step;
    };
    from[r] = -1;
    if (src < 0 || src >= p.slots || dst < 0 || dst >= p.slots) continue;
    from[r] = offset(src, p.src_dense);
    to[r] = offset(dst, p.dst_dense);
  }
  sync_block();
  const std::uint32_t total = static_cast<std::uint32_t>(rows) * p.units.divisor;
  for (std::uint32_t base = threadIdx.x; base < total; base += kCodecThreads * kUnroll) {
    Unit value[kUnroll];
    Unit* at[kUnroll];
    LATHE_UNROLL
    for (int u = 0; u < kUnroll; ++u) {
      const std::uint32_t i = base + static_cast<std::uint32_t>(u) * kCodecThreads;
      at[u] = nullptr;
      if (i >= total) continue;
      std::uint32_t unit;
      const std::uint32_t row = row_of(p.units, i, unit);
      if (from[row] < 0) continue;
      value[u] = reinterpret_cast<const Unit*>(p.src + from[row])[unit];
      at[u] = reinterpret_cast<Unit*>(p.dst + to[row]) + unit;
    }
    LATHE_UNROLL
    for (int u = 0; u < kUnroll; ++u) {
      if (at[u] != nullptr) *at[u] = value[u];
    }
  }
}

}  // namespace lathe::cuda
