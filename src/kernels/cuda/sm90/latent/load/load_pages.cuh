// The producer of dense bf16 keys: one warp that copies pages by TMA boxes.
//
// Its contract is that of load_bf16_rows.cuh with two exceptions: rows of masked keys are undefined
// (the consumers zero them), and a buffer's `full` barrier gets one arrival, and bytes.
#pragma once

#include "kernels/cuda/common/multicast.cuh"
#include "kernels/cuda/sm90/latent/load/load_tile.cuh"

namespace lathe::cuda {

/// Whether pages split into boxes of whole groups of 8 rows that make up a tile.
inline bool has_boxes(const LatentParams& p) {
  const std::uint32_t rows = p.main.page_size.divisor;
  return p.dense && p.main.pages_count > 0 &&
         (rows % kLatentTile == 0 || (rows % 8 == 0 && kLatentTile % rows == 0)) &&
         p.main.page_stride % 16 == 0 && reinterpret_cast<std::uintptr_t>(p.main.pages) % 16 == 0;
}
__host__ __device__ inline int box_rows(const LatentParams& p) {
  const auto rows = static_cast<int>(p.main.page_size.divisor);
  return rows < kLatentTile ? rows : kLatentTile;
}

/// Copies the queries of a worker's work items, by kThreads threads. kBlocks: blocks of a cluster.
template <int kBlockM, int kDims, int kThreads, int kBlocks>
__device__ inline void load_queries(const LatentParams& p, const LatentShared& s,
                                    std::int32_t worker, std::int32_t tile, int thread) {
  LatentItems items(p, worker);
  std::uint32_t parity = 1;
  while (items.take<kBlockM>(p, tile / kBlocks * kBlocks)) {
    barrier_wait(s.q_empty, parity);
    copy_queries<kBlockM, kDims, kThreads>(p, items.work_tile, tile, s.q, thread);
    barrier_arrive_after_copies(s.q_full);
    parity ^= 1;
  }
}

/// kQueries: copies queries too.
///
/// kHalves 2: the halves of a buffer's values are loaded separately, as soon as they are freed,
/// each with its own `full` barrier ([buffers][2]). RoPE is loaded with the half for the reader
/// that also reads P from RoPE's tile (m64_bf16.cuh).
///
/// kBlocks 2: each block of a cluster multicasts half of the boxes to both, so both iterate over
/// the same work items. A half is free when the readers of both blocks have arrived.
template <class Format, int kBlockM, int kBuffers, bool kQueries, int kHalves = 1, int kBlocks = 1>
struct LatentPageProducer {
  static constexpr int kDims = kDimTiles<Format>;

  const LatentParams& p;
  const LatentShared& s;
  const void* map;
  std::int32_t tile;
  int lane, rows, boxes;  // per tile

  __device__ LatentPageProducer(const LatentParams& params, const LatentShared& shared,
                                const void* m, std::int32_t m_block)
      : p(params),
        s(shared),
        map(m),
        tile(m_block),
        lane(static_cast<int>(threadIdx.x) % 32),
        rows(box_rows(params)),
        boxes(kLatentTile / rows) {}

  /// Lane l's box of a tile: its page from the table, or -1, and its first row in that page.
  struct Box {
    std::int32_t page = -1, row = 0;
  };
  __device__ Box find(const LatentItems& items, std::int32_t index, std::int32_t keys) const {
    Box b;
    if (lane >= boxes || index >= keys) return b;
    const auto in_table =
        static_cast<std::int32_t>(p.main.page_size(static_cast<std::uint32_t>(index)));
    b.row = index - in_table * static_cast<std::int32_t>(p.main.page_size.divisor);
    if (in_table >= p.main.table_width) return b;
    b.page = p.main.table[std::int64_t{items.work_tile.request} * p.main.table_width + in_table];
    return b;
  }
  /// Call only where the box is used: reading the page earlier would make the thread wait for it.
  __device__ bool has(const Box& b) const { return b.page >= 0 && b.page < p.main.pages_count; }

  __device__ void copy(const Box& b, int buffer, int dims, std::uint32_t full) const {
    const std::uint32_t to = s.keys + (buffer * kDims + dims) * kDimTileBytes + lane * rows * 128;
    if constexpr (kBlocks == 1) {
      copy_box(to, map, dims * 64, b.row, b.page, full);
    } else {
      copy_box_to_blocks(to, map, dims * 64, b.row, b.page, full, 3);
    }
  }
  /// Copies this block's boxes of a half.
  __device__ void copy_half(const Box& b, int buffer, int half, std::uint32_t full) const {
    const int block = tile % kBlocks;
    LATHE_ROLLED
    for (int d = 0; d < 4 / kBlocks; ++d) {
      copy(b, buffer, half * 4 + block * (4 / kBlocks) + d, full);
    }
    if (kDims == 9 && half != buffer && (kBlocks == 1 || block == buffer)) copy(b, buffer, 8, full);
  }

  __device__ void run(std::int32_t worker) {
    LatentItems items(p, worker);
    int buffer = 0, pair = 0;
    std::uint32_t parity = 0;
    [[maybe_unused]] std::uint32_t q_parity = 0;
    while (items.template take<kBlockM>(p, tile / kBlocks * kBlocks)) {
      const std::int32_t keys = items.item.first + items.item.count;
      const int tiles = (items.item.count + kPairKeys - 1) / kPairKeys * 2;
      std::int32_t index = items.item.first + lane * rows;
      Box box = find(items, index, keys);
      if constexpr (kQueries) {
        barrier_wait(s.q_empty, q_parity ^ 1);
        copy_queries<kBlockM, kDims, 32>(p, items.work_tile, tile, s.q, lane);
        barrier_arrive_after_copies(s.q_full);
        q_parity ^= 1;
      }
      for (int t = 0; t < tiles; ++t) {
        const Box next = find(items, index + kLatentTile, keys);
        const bool here = has(box);
        const int seen = keys - index < rows ? keys - index : rows;
        const std::uint64_t bits = here ? (~std::uint64_t{0} >> (64 - seen)) << lane * rows : 0;
        const std::uint32_t low = warp_or(static_cast<std::uint32_t>(bits));
        const std::uint32_t high = warp_or(static_cast<std::uint32_t>(bits >> 32));
        const int count = count_bits(warp_ballot(here));
        LATHE_UNROLL
        for (int i = 0; i < kHalves; ++i) {
          const int half = kHalves == 1 ? 0 : i ^ buffer;
          barrier_wait(s.empty + 16 * buffer + 8 * half, parity ^ 1);
          if (kHalves == 1) barrier_wait(s.empty + 16 * buffer + 8, parity ^ 1);
          const std::uint32_t full = s.full + 8 * (kHalves * buffer + half);
          if (lane == 0) {
            if (i == 0) {
              store_shared_u64(
                  s.masks + pair % LatentShared::kSlots * (kPairKeys / 8) + 8 * (t & 1),
                  std::uint64_t{high} << 32 | low);
            }
            const int dims = kHalves == 1 ? kDims : 4 + (kDims == 9 && half != buffer);
            barrier_expect(full, static_cast<std::uint32_t>(count * rows * dims * 128));
          }
          sync_warp();
          if (!here) continue;
          if constexpr (kHalves == 2) {
            copy_half(box, buffer, half, full);
          } else {
            LATHE_ROLLED
            for (int d = 0; d < kDims; ++d) copy(box, buffer, d, full);
          }
        }
        pair += t & 1;
        index += kLatentTile;
        box = next;
        if (++buffer == kBuffers) {
          buffer = 0;
          parity ^= 1;
        }
      }
    }
  }
};

}  // namespace lathe::cuda
