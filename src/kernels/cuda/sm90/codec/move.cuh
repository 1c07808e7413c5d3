// Copies records from slots to slots of one pool or of another, or to or from a dense list.
#pragma once

#include "kernels/cuda/sm90/codec/batch.cuh"

namespace lathe::cuda {

// A lane's accesses of a batch: access[u] of row[u], counted from the batch's first row. Past the
// end of the batch a lane repeats the last access.
template <int kCount>
struct Items {
  std::uint32_t row[kCount];
  std::uint32_t access[kCount];
  std::uint32_t first;
  std::uint32_t end;

  __device__ __forceinline__ Items(const FastDiv& accesses, std::uint32_t begin,
                                   std::uint32_t total, std::uint32_t batch)
      : first(begin + lane_of_warp()), end(begin + batch < total ? begin + batch : total) {
    const std::uint32_t first_row = accesses(begin);
    LATHE_UNROLL
    for (int u = 0; u < kCount; ++u) {
      const std::uint32_t at = first + static_cast<std::uint32_t>(u) * 32;
      const std::uint32_t i = at < end ? at : end - 1;
      const std::uint32_t r = accesses(i);
      access[u] = i - r * accesses.divisor;
      row[u] = r - first_row;
    }
  }
  // Whether access u is within the batch and its row is not a hole.
  __device__ __forceinline__ bool has(int u, std::uint32_t holes) const {
    return first + static_cast<std::uint32_t>(u) * 32 < end && (holes >> row[u] & 1u) == 0;
  }
};

// Each lane computes the address of one record of the batch; lanes with accesses to that record get
// it by shuffle.
template <class Access>
__device__ __forceinline__ void move_batch(const MoveParams& p, const MovePlane& plane,
                                           std::int64_t first_row, std::uint32_t rows,
                                           std::uint32_t batch) {
  constexpr int kCount = move_rounds(sizeof(Access));
  const std::uint32_t begin = batch * plane.lanes.batch;
  const std::uint32_t total = rows * plane.lanes.accesses.divisor;
  if (begin >= total) return;
  const Items<kCount> item(plane.lanes.accesses, begin, total, plane.lanes.batch);
  const std::uint32_t lane_row = plane.lanes.accesses(begin) + lane_of_warp();
  const std::int64_t row = first_row + lane_row;
  Address from_of_lane = 0, to_of_lane = 0;
  bool hole = true;
  if (lane_row < rows) {
    const Place src = place_of(p.src, p.src_slots[row]);
    const Place dst = place_of(p.dst, p.dst_slots[row]);
    hole = src.hole || dst.hole;
    const auto dense = [&](const std::byte* data) {
      return address_of(data) + static_cast<Address>(plane.dense) +
             static_cast<Address>(row) * plane.step;
    };
    from_of_lane =
        p.dense_src != nullptr ? dense(p.dense_src) : src.part(plane.src_start, plane.step);
    to_of_lane =
        p.dense_dst != nullptr ? dense(p.dense_dst) : dst.part(plane.dst_start, plane.step);
  }
  const std::uint32_t holes = warp_ballot(hole);
  Access value[kCount];
  LATHE_UNROLL
  for (int u = 0; u < kCount; ++u) {
    const Address from = shuffle(from_of_lane, item.row[u]);
    value[u] = load_global<Access>(from + Address{item.access[u]} * sizeof(Access));
  }
  LATHE_UNROLL
  for (int u = 0; u < kCount; ++u) {
    const Address to = shuffle(to_of_lane, item.row[u]);
    if (item.has(u, holes)) store_global(to + Address{item.access[u]} * sizeof(Access), value[u]);
  }
}

__device__ __forceinline__ void move_plane(const MoveParams& p, const MovePlane& plane,
                                           std::int64_t first_row, std::uint32_t rows,
                                           WarpBatches& batches) {
  batches.run(plane.lanes.batches, [&](std::uint32_t batch) {
    switch (plane.access) {
      case 16:
        return move_batch<uint4>(p, plane, first_row, rows, batch);
      case 8:
        return move_batch<uint2>(p, plane, first_row, rows, batch);
      case 4:
        return move_batch<std::uint32_t>(p, plane, first_row, rows, batch);
      default:
        return move_batch<unsigned char>(p, plane, first_row, rows, batch);
    }
  });
}

// Grid: ceil(count / block_rows) blocks of p.threads.
static __global__ void __launch_bounds__(kCodecThreads, 4)
    move_kernel(const __grid_constant__ MoveParams p) {
  const std::int64_t first_row = std::int64_t{blockIdx.x} * p.block_rows;
  const std::uint32_t rows = rows_of_block(p.count, first_row, p.block_rows);
  prefetch_list(p.src_slots, first_row, p.block_rows, p.count);
  prefetch_list(p.dst_slots, first_row, p.block_rows, p.count);
  WarpBatches batches;
  move_plane(p, p.planes[0], first_row, rows, batches);
  if (p.run_count == 2) move_plane(p, p.planes[1], first_row, rows, batches);
}

}  // namespace lathe::cuda
