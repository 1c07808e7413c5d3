// Where the native kernel's shared memory lies, and the producer that fills it.
//
// Keys stay e4m3, as the cache has them: a tile of 64 keys is four tiles of 128 dimensions (rows of 128
// bytes, swizzled) and one of the last 64 (rows of 64 bytes). Copies of boxes of a page bring them; one
// warp issues these. The other warps of its group copy queries.
#pragma once

#include <cuda.h>

#include "kernels/cuda/common/hopper.cuh"
#include "kernels/cuda/sm90/latent/schedule/work_item.cuh"

namespace lathe::cuda {

/// The pool as [pages, page_size, 576] bytes: boxes of 128 and of 64 dimensions.
struct NativeMaps {
  CUtensorMap wide, narrow;
};

struct Native {
  static constexpr int kLines = 64;
  static constexpr int kBuffers = 4;  // of keys; and of weights, which are numbered alike
  static constexpr int kThreads = 384;
  static constexpr int kValues = 512;
  static constexpr int kDimBytes = kLatentTile * 128;  // a tile of 128 dimensions
  static constexpr int kLastAt = 4 * kDimBytes;
  static constexpr int kKeyBytes = kLatentTile * 576;
  static constexpr int kWeightBytes = kLines * kLatentTile;

  static constexpr int kKeysAt = kKeyBytes;
  static constexpr int kWeightsAt = kKeysAt + kBuffers * kKeyBytes;
  static constexpr int kSmallAt = kWeightsAt + kBuffers * kWeightBytes;
  // Twice the buffers: before a mask is replaced, each lane that read it has arrived at a barrier
  // (`weighed`) itself. At `empty` one lane arrives for its warp, which racecheck does not follow.
  static constexpr int kMasks = 2 * kBuffers;
  static constexpr int kMasksAt = 224 + 2 * kBuffers * 256 + 4 * 256;
  static constexpr int kSmallBytes = kMasksAt + kMasks * 8;
  static constexpr int kSharedBytes = kSmallAt + kSmallBytes;

  static constexpr int kQueryThreads = 96;
  // Named barriers; the consumers' groups have one each.
  static constexpr int kFirstGroup = 1, kSumsReady = 3, kQueriesIssued = 4;
};

inline constexpr float kWeightLimit = 8;   // log2 of the largest weight; e4m3 ends at 448
inline constexpr float kWeightOfMost = 5;  // log2 of the weight of a maximum that becomes reference

/// Byte address of 16-byte chunk `chunk` of a row of a swizzled tile of 128-byte rows, and of 64-byte ones.
__device__ inline std::uint32_t swizzled_128(std::uint32_t tile, int row, int chunk) {
  return tile + static_cast<std::uint32_t>(row * 128 + ((chunk ^ (row & 7)) << 4));
}
__device__ inline std::uint32_t swizzled_64(std::uint32_t tile, int row, int chunk) {
  return tile + static_cast<std::uint32_t>(row * 64 + ((chunk ^ (row >> 1 & 3)) << 4));
}

/// Copies the lines of a tile, [64, 576] e4m3; lines beyond the unit's are zeros.
__device__ inline void native_copy_queries(const LatentParams& p, const LatentUnitPlace& u,
                                           std::int32_t tile, std::uint32_t to, int thread) {
  // Lane i finds out where line 3 i + warp lies. Then the warp copies the first 32 chunks of 16 bytes of a
  // line, and at last four chunks of each of eight lines.
  const int warp = thread / 32, lane = thread % 32;
  const std::int32_t first = tile * Native::kLines;
  const std::int32_t lines = u.lines - first;
  const std::int32_t l = 3 * lane + warp < lines ? first + 3 * lane + warp : first;
  const auto row = static_cast<std::int32_t>(p.by_heads(static_cast<std::uint32_t>(l)));
  const auto own = reinterpret_cast<unsigned long long>(
      static_cast<const std::byte*>(p.q) + (u.row + row) * p.q_stride + (l - row * p.heads) * 576);
  LATHE_UNROLL_BY(4)
  for (int i = 0; i < 22; ++i) {
    const auto* from =
        reinterpret_cast<const std::byte*>(shuffle(own, static_cast<std::uint32_t>(i)));
    const int line = 3 * i + warp;
    if (line >= Native::kLines) break;
    copy_async(swizzled_128(to + lane / 8 * Native::kDimBytes, line, lane % 8), from + lane * 16,
               line < lines);
  }
  LATHE_ROLLED
  for (int i = lane / 4; i < 24; i += 8) {
    const auto* from =
        reinterpret_cast<const std::byte*>(shuffle(own, static_cast<std::uint32_t>(i)));
    const int line = 3 * i + warp;
    if (line < Native::kLines) {
      copy_async(swizzled_64(to + Native::kLastAt, line, lane % 4), from + 512 + lane % 4 * 16,
                 line < lines);
    }
  }
}

/// Tiles of keys and of weights are numbered through all items of a block; number n is in buffer
/// n % kBuffers, and of that buffer's phases it is phase n / kBuffers.
struct NativeShared {
  static constexpr int kLines = Native::kLines;

  std::uint32_t q;  // the first of all

  __device__ static std::uint32_t buffer(unsigned n) { return n % Native::kBuffers; }
  __device__ static std::uint32_t parity(unsigned n) { return n / Native::kBuffers & 1; }

  __device__ std::uint32_t keys(unsigned n) const {
    return q + Native::kKeysAt + buffer(n) * Native::kKeyBytes;
  }
  __device__ std::uint32_t weights(unsigned n) const {
    return q + Native::kWeightsAt + buffer(n) * Native::kWeightBytes;
  }
  __device__ std::uint32_t small(std::uint32_t at) const { return q + Native::kSmallAt + at; }
  __device__ std::uint32_t q_full() const { return small(0); }
  __device__ std::uint32_t q_empty() const { return small(8); }
  __device__ std::uint32_t full(unsigned n) const { return small(16 + 8 * buffer(n)); }
  __device__ std::uint32_t empty(unsigned n) const { return small(48 + 8 * buffer(n)); }
  __device__ std::uint32_t weighed(unsigned n) const { return small(80 + 8 * buffer(n)); }
  __device__ std::uint32_t mask(unsigned n) const {  // 64 bits
    return small(Native::kMasksAt + 8 * (n % Native::kMasks));
  }
  /// A byte of each warp: nonzero where its lines' references rose.
  __device__ std::uint32_t risen(unsigned n) const { return small(144 + 4 * buffer(n)); }
  __device__ std::uint32_t item(unsigned number) const { return small(160 + 32 * (number & 1)); }
  __device__ std::uint32_t references(unsigned n) const { return small(224 + 256 * buffer(n)); }
  /// What sums are to be multiplied by because of that.
  __device__ std::uint32_t factors(unsigned n) const {
    return small(224 + 256 * (Native::kBuffers + buffer(n)));
  }
  __device__ std::uint32_t totals(int group) const {
    return small(224 + static_cast<std::uint32_t>(256 * (2 * Native::kBuffers + group)));
  }
  __device__ std::uint32_t scales(int group) const { return totals(2 + group); }

  __device__ void copy_queries(const LatentParams& p, const LatentUnitPlace& u, std::int32_t tile,
                               int thread) const {
    native_copy_queries(p, u, tile, q, thread);
  }
};

/// Items and their queries. An item's facts are kept until the one after the next is begun.
template <class Shared>
__device__ inline void native_fill_queries(const LatentParams& p, const Shared& s,
                                           std::int32_t worker, std::int32_t tile, int thread) {
  const std::int32_t before = rows_before<Shared::kLines>(p, tile);
  LatentItems items(p, worker);
  std::int32_t first = 0;  // tile of the item
  unsigned number = 0;
  for (bool live = true; live; ++number) {
    live = items.template take<Shared::kLines>(p, tile);
    barrier_wait(s.q_empty(), (number & 1) ^ 1);
    const int tiles = live ? LatentItemFacts::tiles_of<2>(items.item) : 0;
    if (thread == 0) {
      const LatentUnitPlace& u = items.unit;
      LatentItemFacts{tiles,   u.limit - items.item.first + before, u.row,
                      u.lines, items.split ? items.number : -1,     tile * Shared::kLines,
                      first}
          .store(s.item(number));
      barrier_arrive(s.q_full());
    }
    first += tiles;
    if (live) s.copy_queries(p, items.unit, tile, thread);
    barrier_arrive_after_copies(s.q_full());
    if (number == 0 && live) group_sync(Native::kQueriesIssued, 128);
  }
}

/// One warp. A page that is none is left out, and its keys lose their bits in the tile's mask; so do
/// those after the item's last. Only two tiles go ahead of the first queries, which would otherwise come
/// last, behind four, and all would wait for them.
template <class Shared>
__device__ inline void native_fill_keys(const LatentParams& p, const NativeMaps& maps,
                                        const Shared& s, std::int32_t worker, std::int32_t tile,
                                        int lane) {
  LatentItems items(p, worker);
  const auto page_size = static_cast<std::int32_t>(p.main.page_size.divisor);
  const std::int32_t rows = page_size < kLatentTile ? page_size : kLatentTile;
  unsigned n = 0;
  while (items.template take<Shared::kLines>(p, tile)) {
    const std::int32_t end = items.item.first + items.item.count;
    const std::int32_t* table =
        p.main.table + std::int64_t{items.unit.request} * p.main.table_width;
    const int tiles = LatentItemFacts::tiles_of<2>(items.item);
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
      if (n == 2) group_sync(Native::kQueriesIssued, 128);
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
          copy_box(to + d * Native::kDimBytes + lane * rows * 128, &maps.wide, d * 128, offset,
                   page, s.full(n));
        }
        copy_box(to + Native::kLastAt + lane * rows * 64, &maps.narrow, 512, offset, page,
                 s.full(n));
      }
    }
  }
  if (n == 2) group_sync(Native::kQueriesIssued, 128);
}

}  // namespace lathe::cuda
