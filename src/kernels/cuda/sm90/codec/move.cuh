// Records from slots to slots, or to and from a dense list.
#pragma once

#include "kernels/cuda/sm90/codec/batch.cuh"

namespace lathe::cuda {

template <class Unit>
__device__ __forceinline__ void move_batch(const MoveParams& p, const MovePlane& plane,
                                           std::int64_t first_row, const Batch& batch) {
  constexpr int kCount = move_rounds(sizeof(Unit));
  const Items<kCount> item(plane.cut.chunks, batch);
  const std::uint32_t lane_row = batch.first_row + lane_of_warp();
  const std::int64_t row = first_row + lane_row;
  Address from_of_lane = 0, to_of_lane = 0;
  bool hole = true;
  if (lane_row < batch.rows) {
    const Place src = place_of(p.pages, p.src_slots[row]);
    const Place dst = place_of(p.pages, p.dst_slots[row]);
    hole = src.hole || dst.hole;
    const auto dense = [&](const std::byte* data) {
      return address_of(data) + static_cast<Address>(plane.dense) +
             static_cast<Address>(row) * plane.step;
    };
    from_of_lane = p.dense_src != nullptr ? dense(p.dense_src) : src.part(plane.start, plane.step);
    to_of_lane = p.dense_dst != nullptr ? dense(p.dense_dst) : dst.part(plane.start, plane.step);
  }
  const std::uint32_t holes = warp_ballot(hole);
  Unit value[kCount];
  LATHE_UNROLL
  for (int u = 0; u < kCount; ++u) {
    const Address from = shuffle(from_of_lane, item.row[u]);
    value[u] = load_global<Unit>(from + Address{item.chunk[u]} * sizeof(Unit));
  }
  LATHE_UNROLL
  for (int u = 0; u < kCount; ++u) {
    const Address to = shuffle(to_of_lane, item.row[u]);
    if (item.has(u, holes)) {
      store_global(to + Address{item.chunk[u]} * sizeof(Unit), value[u]);
    }
  }
}

__device__ __forceinline__ void move_plane(const MoveParams& p, const MovePlane& plane,
                                           std::int64_t first_row, WarpBatches& batches) {
  batches.run(plane.cut, [&](const Batch& batch) {
    switch (plane.unit) {
      case 16:
        return move_batch<uint4>(p, plane, first_row, batch);
      case 8:
        return move_batch<uint2>(p, plane, first_row, batch);
      case 4:
        return move_batch<std::uint32_t>(p, plane, first_row, batch);
      default:
        return move_batch<unsigned char>(p, plane, first_row, batch);
    }
  });
}

// Grid: ceil(count / block_rows) blocks of p.threads.
static __global__ void __launch_bounds__(kCodecThreads, 2)
    move_kernel(const __grid_constant__ MoveParams p) {
  const std::int64_t first_row = std::int64_t{blockIdx.x} * p.block_rows;
  WarpBatches batches(rows_of_block(p.count, first_row, p.block_rows));
  move_plane(p, p.planes[0], first_row, batches);
  if (p.run_count == 2) move_plane(p, p.planes[1], first_row, batches);
}

}  // namespace lathe::cuda
