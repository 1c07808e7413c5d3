// native: tiles, shared-memory layout, and the producer.
//
// Keys stay e4m3, as cached: a tile of 64 keys is four tiles of 128 dimensions (128-byte rows,
// swizzled) and one of the last 64 (64-byte rows). With a page table, one producer warp issues TMA
// boxes of pages and the others copy queries; native_lists.cuh is the producer for index lists.
#pragma once

#include <cuda.h>

#include "kernels/cuda/common/hopper.cuh"
#include "kernels/cuda/sm90/latent/load/resolve_slots.cuh"
#include "kernels/cuda/sm90/latent/schedule/work_item.cuh"

namespace lathe::cuda {

/// Maps of the pool as [pages, page_size, 576] bytes: boxes of 128 and of 64 dimensions.
struct NativeMaps {
  CUtensorMap dims128, dims64;
};

struct Native {
  static constexpr int kMRows = 64;
  static constexpr int kBuffers = 4;  // of keys, and of P with the same numbers
  static constexpr int kThreads = 384;
  static constexpr int kValues = 512;
  static constexpr int kDimBytes = kLatentTile * 128;  // a tile of 128 dimensions
  static constexpr int kLastAt = 4 * kDimBytes;
  static constexpr int kKeyBytes = kLatentTile * 576;
  static constexpr int kPBytes = kMRows * kLatentTile;

  static constexpr int kKeysAt = kKeyBytes;
  static constexpr int kPAt = kKeysAt + kBuffers * kKeyBytes;
  static constexpr int kSmallAt = kPAt + kBuffers * kPBytes;
  // Twice the buffers: before a mask is overwritten, each lane that read it has itself arrived at
  // `p_full`. At `empty` one lane arrives for its warp, which racecheck does not follow.
  static constexpr int kMasks = 2 * kBuffers;
  static constexpr int kMasksAt = 224 + 2 * kBuffers * 256 + 4 * 256;
  static constexpr int kSmallBytes = kMasksAt + kMasks * 8;
  static constexpr int kSharedBytes = kSmallAt + kSmallBytes;
  static constexpr int kListedSharedBytes = kSharedBytes + LatentRowAddresses<Fp8Format>::kBytes;
  static_assert(kSharedBytes % 16 == 0);

  // For two consumer warpgroups and the producer; resolving slots needs more.
  static constexpr int kConsumerRegisters = 232, kProducerRegisters = 40;
  static constexpr int kListedConsumerRegisters = 224, kListedProducerRegisters = 56;

  // Threads that copy queries, and threads that wait for the first ones.
  static constexpr int kQueryThreads = 96, kQueriesThreads = 128;
  static constexpr int kListedQueryThreads = 32, kListedQueriesThreads = 96;
  // Arrivals at `full` of listed rows: two warps, and one more of each for storing the mask.
  static constexpr int kListedArrivals = 2 * 33;
  // Named barriers; each consumer warpgroup has one.
  static constexpr int kFirstGroup = 1, kRowSumsReady = 3, kQueriesIssued = 4;
};

inline constexpr float kNativeMaxLog2P = 8;    // log2 of the largest P; e4m3 ends at 448
inline constexpr float kNativeStartLog2P = 5;  // log2 of P at a new row max

/// Byte address of 16-byte chunk `chunk` of a row of a swizzled tile with 128-byte rows, and with
/// 64-byte rows.
__device__ inline std::uint32_t swizzled_128(std::uint32_t tile, int row, int chunk) {
  return tile + static_cast<std::uint32_t>(row * 128 + ((chunk ^ (row & 7)) << 4));
}
__device__ inline std::uint32_t swizzled_64(std::uint32_t tile, int row, int chunk) {
  return tile + static_cast<std::uint32_t>(row * 64 + ((chunk ^ (row >> 1 & 3)) << 4));
}

/// Copies a block's M rows, [64, 576] e4m3; rows past the work tile's are zeros.
__device__ inline void native_copy_queries(const LatentParams& p, const LatentWorkTile& u,
                                           std::int32_t tile, std::uint32_t to, int thread) {
  // Lane i finds M row 3 i + warp. Then the warp copies the first 32 chunks of 16 bytes of each
  // row, and finally the four remaining chunks of eight rows at a time.
  const int warp = thread / 32, lane = thread % 32;
  const std::int32_t first = tile * Native::kMRows;
  const std::int32_t m_rows = u.m_rows - first;
  const std::int32_t l = 3 * lane + warp < m_rows ? first + 3 * lane + warp : first;
  const auto row = static_cast<std::int32_t>(p.by_heads(static_cast<std::uint32_t>(l)));
  const auto own = reinterpret_cast<unsigned long long>(
      static_cast<const std::byte*>(p.q) + (u.row + row) * p.q_stride + (l - row * p.heads) * 576);
  LATHE_UNROLL_BY(4)
  for (int i = 0; i < 22; ++i) {
    const auto* from =
        reinterpret_cast<const std::byte*>(shuffle(own, static_cast<std::uint32_t>(i)));
    const int m_row = 3 * i + warp;
    if (m_row >= Native::kMRows) break;
    copy_async(swizzled_128(to + lane / 8 * Native::kDimBytes, m_row, lane % 8), from + lane * 16,
               m_row < m_rows);
  }
  LATHE_ROLLED
  for (int i = lane / 4; i < 24; i += 8) {
    const auto* from =
        reinterpret_cast<const std::byte*>(shuffle(own, static_cast<std::uint32_t>(i)));
    const int m_row = 3 * i + warp;
    if (m_row < Native::kMRows) {
      copy_async(swizzled_64(to + Native::kLastAt, m_row, lane % 4), from + 512 + lane % 4 * 16,
                 m_row < m_rows);
    }
  }
}

/// One warp copies a block's M rows, heads of one query row: [kMRows, 576] e4m3; rows past the work
/// tile's are zeros.
template <int kMRows>
__device__ inline void native_copy_heads(const LatentParams& p, const LatentWorkTile& u,
                                         std::int32_t tile, std::uint32_t to, int lane) {
  constexpr int kDimBytes = kMRows * 128;  // of 128 dimensions
  const std::int32_t m_rows = u.m_rows - tile * kMRows;
  const std::byte* from =
      static_cast<const std::byte*>(p.q) + u.row * p.q_stride + tile * std::int64_t{kMRows * 576};
  LATHE_UNROLL_BY(4)
  for (int m_row = 0; m_row < kMRows; ++m_row) {
    copy_async(swizzled_128(to + static_cast<std::uint32_t>(lane / 8 * kDimBytes), m_row, lane % 8),
               from + m_row * 576 + lane * 16, m_row < m_rows);
  }
  LATHE_ROLLED
  for (int m_row = lane / 4; m_row < kMRows; m_row += 8) {
    copy_async(swizzled_64(to + 4 * kDimBytes, m_row, lane % 4),
               from + m_row * 576 + 512 + lane % 4 * 16, m_row < m_rows);
  }
}

/// Tiles of keys and of P are numbered through all work items of a block. Tile n is in buffer n %
/// kBuffers, as that buffer's phase n / kBuffers.
struct NativeShared {
  static constexpr int kMRows = Native::kMRows;

  std::uint32_t q;  // address of the first array

  __device__ static std::uint32_t buffer(unsigned n) { return n % Native::kBuffers; }
  __device__ static std::uint32_t parity(unsigned n) { return n / Native::kBuffers & 1; }

  __device__ std::uint32_t keys(unsigned n) const {
    return q + Native::kKeysAt + buffer(n) * Native::kKeyBytes;
  }
  __device__ std::uint32_t p_tile(unsigned n) const {
    return q + Native::kPAt + buffer(n) * Native::kPBytes;
  }
  __device__ std::uint32_t small(std::uint32_t at) const { return q + Native::kSmallAt + at; }
  __device__ std::uint32_t q_full() const { return small(0); }
  __device__ std::uint32_t q_empty() const { return small(8); }
  __device__ std::uint32_t full(unsigned n) const { return small(16 + 8 * buffer(n)); }
  __device__ std::uint32_t empty(unsigned n) const { return small(48 + 8 * buffer(n)); }
  __device__ std::uint32_t p_full(unsigned n) const { return small(80 + 8 * buffer(n)); }
  __device__ std::uint32_t mask(unsigned n) const {  // 64 bits
    return small(Native::kMasksAt + 8 * (n % Native::kMasks));
  }
  /// One byte per warp: nonzero where its row maxes rose.
  __device__ std::uint32_t risen(unsigned n) const { return small(144 + 4 * buffer(n)); }
  __device__ std::uint32_t item(unsigned number) const { return small(160 + 32 * (number & 1)); }
  __device__ std::uint32_t row_maxes(unsigned n) const { return small(224 + 256 * buffer(n)); }
  /// Factors of the accumulator where they rose.
  __device__ std::uint32_t factors(unsigned n) const {
    return small(224 + 256 * (Native::kBuffers + buffer(n)));
  }
  __device__ std::uint32_t row_sums(int group) const {
    return small(224 + static_cast<std::uint32_t>(256 * (2 * Native::kBuffers + group)));
  }
  __device__ std::uint32_t scales(int group) const { return row_sums(2 + group); }

  __device__ void copy_queries(const LatentParams& p, const LatentWorkTile& u, std::int32_t tile,
                               int thread) const {
    native_copy_queries(p, u, tile, q, thread);
  }
  /// Addresses of listed rows, after everything else.
  __device__ LatentRowAddresses<Fp8Format> addresses() const { return {q + Native::kSharedBytes}; }
};

/// Publishes work items and their queries. An item's info is kept until the second next item
/// begins.
template <bool kLists, class Shared>
__device__ inline void native_load_queries(const LatentParams& p, const Shared& s,
                                           std::int32_t worker, std::int32_t tile, int thread) {
  const std::int32_t before = rows_before<Shared::kMRows>(p, tile);
  LatentItems items(p, worker);
  std::int32_t first = 0;  // first tile of the item
  unsigned number = 0;
  for (bool live = true; live; ++number) {
    live = items.template take<Shared::kMRows>(p, tile);
    barrier_wait(s.q_empty(), (number & 1) ^ 1);
    const int tiles = live ? LatentWorkInfo::tiles_of<2>(items.item) : 0;
    if (thread == 0) {
      const LatentWorkTile& u = items.work_tile;
      LatentWorkInfo{tiles,      kLists ? INT32_MAX / 2 : u.limit - items.item.first + before,
                     u.row,      u.m_rows,
                     items.part, tile * Shared::kMRows,
                     first}
          .store(s.item(number));
      barrier_arrive(s.q_full());
    }
    first += tiles;
    if constexpr (kLists) {
      if (live) native_copy_heads<Shared::kMRows>(p, items.work_tile, tile, s.q, thread);
    } else {
      if (live) s.copy_queries(p, items.work_tile, tile, thread);
    }
    barrier_arrive_after_copies(s.q_full());
    if (number == 0 && live) {
      group_sync(Native::kQueriesIssued,
                 kLists ? Native::kListedQueriesThreads : Native::kQueriesThreads);
    }
  }
}

/// One warp. Missing pages are skipped and their keys masked, as are keys past the item's end. Only
/// two tiles are loaded before the first queries: after four, the queries would arrive last and all
/// warps would wait.
template <class Shared>
__device__ inline void native_load_keys(const LatentParams& p, const NativeMaps& maps,
                                        const Shared& s, std::int32_t worker, std::int32_t tile,
                                        int lane) {
  LatentItems items(p, worker);
  const auto page_size = static_cast<std::int32_t>(p.main.page_size.divisor);
  const std::int32_t rows = page_size < kLatentTile ? page_size : kLatentTile;
  unsigned n = 0;
  while (items.template take<Shared::kMRows>(p, tile)) {
    const std::int32_t end = items.item.first + items.item.count;
    const std::int32_t* table =
        p.main.table + std::int64_t{items.work_tile.request} * p.main.table_width;
    const int tiles = LatentWorkInfo::tiles_of<2>(items.item);
    for (int t = 0; t < tiles; ++t, ++n) {
      const std::int32_t index = items.item.first + t * kLatentTile + lane * rows;
      std::int32_t page = -1, offset = 0, seen = 0;
      if (lane * rows < kLatentTile && index < end) {
        const auto at =
            static_cast<std::int32_t>(p.main.page_size(static_cast<std::uint32_t>(index)));
        offset = index - at * page_size;
        if (at < p.main.table_width) page = table[at];
        if (page >= 0 && page < p.main.pages_count) seen = rows < end - index ? rows : end - index;
      }
      const std::uint64_t bits =
          seen == 64 ? ~std::uint64_t{0} : ((std::uint64_t{1} << seen) - 1) << (lane * rows & 63);
      const std::uint32_t low = warp_or(static_cast<std::uint32_t>(bits));
      const std::uint32_t high = warp_or(static_cast<std::uint32_t>(bits >> 32));
      const int boxes = count_bits(warp_ballot(seen > 0));
      if (n == 2) group_sync(Native::kQueriesIssued, Native::kQueriesThreads);
      barrier_wait(s.empty(n), Shared::parity(n) ^ 1);
      if (lane == 0) {
        store_shared_u64(s.mask(n), std::uint64_t{high} << 32 | low);
        barrier_expect(s.full(n), static_cast<std::uint32_t>(boxes * rows * 576));
      }
      sync_warp();
      if (seen > 0) {
        const std::uint32_t to = s.keys(n);
        LATHE_UNROLL
        for (int d = 0; d < 4; ++d) {
          copy_box(to + d * Native::kDimBytes + lane * rows * 128, &maps.dims128, d * 128, offset,
                   page, s.full(n));
        }
        copy_box(to + Native::kLastAt + lane * rows * 64, &maps.dims64, 512, offset, page,
                 s.full(n));
      }
    }
  }
  if (n == 2) group_sync(Native::kQueriesIssued, Native::kQueriesThreads);
}

}  // namespace lathe::cuda
