// The producer of dense bf16 keys: one warp that has the copy engine bring whole boxes of a page.
//
// It honours latent_fill.cuh's contract but for two things: rows of hidden keys hold anything (the
// consumers clear them), and a buffer's `full` barrier takes one arrival, and bytes.
#pragma once

#include "kernels/cuda/sm90/latent/latent_fill.cuh"

namespace lathe::cuda {

/// Whether pages can be cut into boxes of whole groups of 8 rows that make up a tile.
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

/// Copies the queries of a worker's items, by kThreads threads.
template <int kTileLines, int kDims, int kThreads>
__device__ inline void fill_queries(const LatentParams& p, const LatentShared& s,
                                    std::int32_t worker, std::int32_t tile, int thread) {
  LatentItems items(p, worker);
  std::uint32_t parity = 1;
  while (items.take<kTileLines>(p, tile)) {
    barrier_wait(s.q_empty, parity);
    copy_queries<kTileLines, kDims, kThreads>(p, items.unit, tile, s.q, thread);
    barrier_arrive_after_copies(s.q_full);
    parity ^= 1;
  }
}

/// kQueries: copies the queries too.
template <class Format, int kTileLines, int kBuffers, bool kQueries>
struct LatentPageFill {
  static constexpr int kDims = kDimTiles<Format>;

  const LatentParams& p;
  const LatentShared& s;
  const void* map;
  std::int32_t tile;
  int lane;

  __device__ LatentPageFill(const LatentParams& params, const LatentShared& shared, const void* m,
                            std::int32_t line_tile)
      : p(params), s(shared), map(m), tile(line_tile), lane(static_cast<int>(threadIdx.x) % 32) {}

  /// Lane l's box of a tile: its page, or -1, and its first row there.
  struct Box {
    std::int32_t page = -1, row = 0;
  };
  __device__ Box find(const LatentItems& items, std::int32_t index, std::int32_t keys) const {
    Box b;
    if (index >= keys) return b;
    const auto in_table =
        static_cast<std::int32_t>(p.main.page_size(static_cast<std::uint32_t>(index)));
    b.row = index - in_table * static_cast<std::int32_t>(p.main.page_size.divisor);
    if (in_table >= p.main.table_width) return b;
    b.page = p.main.table[std::int64_t{items.unit.request} * p.main.table_width + in_table];
    if (b.page >= p.main.pages_count) b.page = -1;
    return b;
  }

  __device__ void run(std::int32_t worker) {
    LatentItems items(p, worker);
    const int rows = box_rows(p), boxes = kLatentTile / rows;
    int buffer = 0, pair = 0;
    std::uint32_t parity = 0;
    [[maybe_unused]] std::uint32_t q_parity = 0;
    while (items.template take<kTileLines>(p, tile)) {
      const std::int32_t keys = items.item.first + items.item.count;
      const int tiles = (items.item.count + kFillKeys - 1) / kFillKeys * 2;
      // A lane without a box looks past the last key.
      std::int32_t index = lane < boxes ? items.item.first + lane * rows : keys;
      Box box = find(items, index, keys);
      if constexpr (kQueries) {
        barrier_wait(s.q_empty, q_parity ^ 1);
        copy_queries<kTileLines, kDims, 32>(p, items.unit, tile, s.q, lane);
        barrier_arrive_after_copies(s.q_full);
        q_parity ^= 1;
      }
      for (int t = 0; t < tiles; ++t) {
        const bool has = box.page >= 0;
        const int seen = keys - index < rows ? keys - index : rows;
        const std::uint64_t bits = has ? (~std::uint64_t{0} >> (64 - seen)) << lane * rows : 0;
        auto low = static_cast<std::uint32_t>(bits), high = static_cast<std::uint32_t>(bits >> 32);
        int count = has;
        for (int lanes = 1; lanes < 32; lanes *= 2) {
          low |= shuffle_xor(low, lanes);
          high |= shuffle_xor(high, lanes);
          count += shuffle_xor(count, lanes);
        }
        barrier_wait(s.empty + 16 * buffer, parity ^ 1);
        barrier_wait(s.empty + 16 * buffer + 8, parity ^ 1);
        if (lane == 0) {
          store_shared_u64(s.masks + pair % LatentShared::kSlots * (kFillKeys / 8) + 8 * (t & 1),
                           std::uint64_t{high} << 32 | low);
          barrier_expect(s.full + 8 * buffer,
                         static_cast<std::uint32_t>(count * rows * kDims * 128));
        }
        sync_warp();
        if (has) {
          const std::uint32_t to = s.keys + buffer * (kDims * kDimTileBytes) + lane * rows * 128;
          LATHE_ROLLED
          for (int d = 0; d < kDims; ++d) {
            copy_box(to + d * kDimTileBytes, map, d * 64, box.row, box.page, s.full + 8 * buffer);
          }
        }
        pair += t & 1;
        index += lane < boxes ? kLatentTile : 0;
        box = find(items, index, keys);
        if (++buffer == kBuffers) {
          buffer = 0;
          parity ^= 1;
        }
      }
    }
  }
};

}  // namespace lathe::cuda
