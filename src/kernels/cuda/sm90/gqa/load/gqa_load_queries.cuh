// The warp that copies queries to shared memory: those of an item while the consumers end the item
// before it. Each warpgroup has its own, so that none waits for the other.
#pragma once

#include "kernels/cuda/sm90/attention/swizzle.cuh"
#include "kernels/cuda/sm90/gqa/load/gqa_ring.cuh"
#include "kernels/cuda/sm90/gqa/schedule/gqa_segments.cuh"

namespace lathe::cuda {

/// Shared memory of queries: for each 64 M rows [dims] tiles of bf16 [64 M rows, 64], swizzled.
/// N: a GqaTileFormat with kMRows, kGroups and kQueryBytes.
template <class N>
struct GqaQueries {
  static constexpr int kSmallBytes = N::kGroups * 2 * 8;
  std::uint32_t tiles;     // [groups]
  std::uint32_t barriers;  // [groups] full, empty

  /// small: kSmallBytes.
  __device__ GqaQueries(std::uint32_t tiles_at, std::uint32_t small_at)
      : tiles(tiles_at), barriers(small_at) {}
  /// Call from one thread, before barriers are made visible.
  __device__ void init() const {
    for (int group = 0; group < N::kGroups; ++group) {
      barrier_init(full_at(group), 32);
      barrier_init(empty_at(group), 4);
    }
  }
  __device__ std::uint32_t full_at(int group) const {
    return barriers + static_cast<std::uint32_t>(16 * group);
  }
  __device__ std::uint32_t empty_at(int group) const { return full_at(group) + 8; }
  __device__ std::uint32_t of_group(int group) const {
    return tiles + static_cast<std::uint32_t>(group * N::kQueryBytes);
  }
};

template <class N>
struct GqaQueryProducer {
  static constexpr int kChunks = N::kDims * 8;  // of 8 elements in an M row

  const GqaParams& p;
  const GqaQueries<N>& queries;
  int lane;

  /// Past the block's M rows: of its last one.
  __device__ const std::uint16_t* find(const GqaSegment& item, int m_row) const {
    const int last = item.block.m_rows - 1, m = m_row < last ? m_row : last;
    const std::int32_t row = gqa_row_of(p, item.block, m);
    return p.q + gqa_q_row(p, item.block.row + row) * p.q_stride +
           std::int64_t{gqa_head_of(p, item, m, row)} * q_head<N>(p);
  }
  /// The rows of a warpgroup that this lane finds.
  struct Rows {
    const std::uint16_t* row[2];  // lane and lane + 32
  };
  __device__ Rows find_rows(const GqaSegment& item, int group) const {
    return {{find(item, group * 64 + lane), find(item, group * 64 + 32 + lane)}};
  }
  __device__ void prefetch(const Rows& rows) const {
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      LATHE_UNROLL
      for (int t = 0; t < N::kDims; ++t) {
        if (in_head<N>(p, 8 * t)) prefetch_global(rows.row[i] + 64 * t);
      }
    }
  }
  /// A row's words are copied by neighbouring lanes.
  __device__ void copy(const Rows& rows, int group) const {
    LATHE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const auto from = reinterpret_cast<unsigned long long>(rows.row[half]);
      const std::uint32_t to =
          queries.of_group(group) + static_cast<std::uint32_t>(half * 32 * 128);
      LATHE_UNROLL_BY(8)
      for (int i = 0; i < kChunks; ++i) {
        const int at = 32 * i + lane, row = at / kChunks, chunk = at % kChunks;
        const auto* words =
            reinterpret_cast<const std::uint16_t*>(shuffle(from, static_cast<std::uint32_t>(row)));
        // Past the head: zeros. The address need only be valid.
        const bool some = in_head<N>(p, chunk);
        copy_async(
            swizzled(to + static_cast<std::uint32_t>(chunk / 8 * (64 * 128)), row, chunk % 8),
            words + (some ? chunk * 8 : 0), some);
      }
    }
  }
  __device__ void run(std::int32_t worker) const {
    GqaSegments segments(p, worker);
    GqaSegment item;
    std::uint32_t parity = 1;
    while (segments.next(item)) {
      // Into L2 while the item before occupies their place.
      Rows rows[N::kGroups];
      LATHE_UNROLL
      for (int group = 0; group < N::kGroups; ++group) {
        rows[group] = find_rows(item, group);
        prefetch(rows[group]);
      }
      LATHE_UNROLL
      for (int group = 0; group < N::kGroups; ++group) {
        barrier_wait(queries.empty_at(group), parity);
        copy(rows[group], group);
        end_copy_group();
        wait_copy_groups<0>();
        // Here, as consumers would wait in it for the outputs that they have stored.
        fence_async_proxy();
        barrier_arrive(queries.full_at(group));
      }
      parity ^= 1;
    }
  }
};

}  // namespace lathe::cuda
