// The producer of fp8 rows: two warps copy the rows of a tile as they lie in the cache, one makes f16 of their
// scales, one tells items and brings queries.
//
// Rows of keys that are none become
// zeros and lose their bit in the tile's mask. Tiles are numbered through all items of a block; number n is
// in buffer n % kBuffers, and of that buffer's phases it is phase n / kBuffers.
#pragma once

#include "kernels/cuda/sm90/latent/latent_fill.cuh"
#include "kernels/cuda/sm90/latent/latent_item.cuh"
#include "kernels/cuda/sm90/latent/latent_rows.cuh"

namespace lathe::cuda {

/// Where a ring of tiles lies: base addresses, of buffers kTileBytes apart, of barriers and masks 8 bytes.
template <class Format, int kCount>
struct LatentRing {
  static constexpr int kBuffers = kCount;
  static constexpr int kFullArrivals = 2 * 33;  // of a buffer's `full`

  std::uint32_t first_keys, first_full, first_empty, first_mask;

  __device__ static std::uint32_t buffer(unsigned n) { return n % kBuffers; }
  __device__ static std::uint32_t parity(unsigned n) { return n / kBuffers & 1; }
  __device__ std::uint32_t keys(unsigned n) const {
    return first_keys + buffer(n) * LatentRows<Format>::kTileBytes;
  }
  __device__ std::uint32_t full(unsigned n) const { return first_full + 8 * buffer(n); }
  __device__ std::uint32_t empty(unsigned n) const { return first_empty + 8 * buffer(n); }
  __device__ std::uint32_t mask(unsigned n) const { return first_mask + 8 * buffer(n); }
};

/// Copies 32 rows of tile n, of which this lane knows one; null: no key.
template <class Format, class Ring>
__device__ inline void copy_rows(const Ring& ring, const KeyPlace& place, unsigned n, int warp,
                                 int lane) {
  constexpr int kChunks = Format::kRowBytes / 16;
  asm volatile("" : "+r"(lane));  // else what follows from it is kept, and spilled
  const std::uint32_t mask = warp_ballot(place.row != nullptr);
  const auto* zeros = reinterpret_cast<const std::byte*>(latent_zeros);
  const auto row = reinterpret_cast<unsigned long long>(place.row != nullptr ? place.row : zeros);
  barrier_wait(ring.empty(n), Ring::parity(n) ^ 1);
  const std::uint32_t to = ring.keys(n) + static_cast<std::uint32_t>(warp * 32 * Format::kPitch);
  const auto of = [&](int r, int chunk) {
    return reinterpret_cast<const std::byte*>(shuffle(row, static_cast<std::uint32_t>(r))) +
           chunk * 16;
  };
  // Eight lanes a row, 128 bytes of four rows at a time: one look at who has the address serves a row's
  // whole length.
  constexpr int kWhole = kChunks / 8, kRest = kChunks % 8;
  LATHE_UNROLL
  for (int i = 0; i < 8; ++i) {
    const int r = 4 * i + lane / 8;
    const std::byte* from = of(r, lane % 8);
    const std::uint32_t at = to + static_cast<std::uint32_t>(r * Format::kPitch + lane % 8 * 16);
    LATHE_UNROLL
    for (int c = 0; c < kWhole; ++c) copy_async_alone(at + c * 128, from + c * 128);
  }
  LATHE_UNROLL
  for (int i = 0; i < kRest; ++i) {
    const int r = (i * 32 + lane) / kRest, chunk = kWhole * 8 + lane % kRest;
    copy_async_alone(to + static_cast<std::uint32_t>(r * Format::kPitch + chunk * 16),
                     of(r, chunk));
  }
  if constexpr (Format::kScalesApart) {
    copy_async_8(to + static_cast<std::uint32_t>(lane * Format::kPitch + Format::kRowBytes),
                 place.row != nullptr ? place.scales : zeros);
  }
  barrier_arrive_after_copies(ring.full(n));
  if (lane == 0) {
    store_shared_u32(ring.mask(n) + static_cast<std::uint32_t>(4 * warp), mask);
    barrier_arrive(ring.full(n));
  }
}

/// One of two warps. Names of keys are loaded a tile ahead.
template <class Format, int kTileLines, class Ring>
__device__ inline void fill_rows(const LatentParams& p, const Ring& ring, std::int32_t worker,
                                 std::int32_t tile, int warp, int lane) {
  LatentStream<kTileLines, kLatentTile> ahead(p, worker, tile);
  if (!ahead.live) return;
  const int row = warp * 32 + lane;
  KeyName own = ahead.key(p, row);
  ahead.advance(p, tile);
  for (unsigned n = 0;; ++n) {
    const KeyPlace place = key_place<Format>(p, own);
    const bool more = ahead.live;
    own = ahead.key(p, row);
    if (more) ahead.advance(p, tile);
    copy_rows<Format>(ring, place, n, warp, lane);
    if (!more) return;
  }
}

/// One warp: puts each tile's scales into a table, from table to table kScaleBytes, and arrives at `scaled`, and
/// at `empty` like all that have read the tile.
template <class Format, int kTileLines, class Ring>
__device__ inline void fill_scales(const LatentParams& p, const Ring& ring, std::uint32_t tables,
                                   std::uint32_t scaled, std::int32_t worker, std::int32_t tile,
                                   int lane) {
  LatentItems items(p, worker);
  unsigned n = 0;
  while (items.take<kTileLines>(p, tile)) {
    for (int t = 2 * LatentItemFacts::pairs_of(items.item); t > 0; --t, ++n) {
      barrier_wait(ring.full(n), Ring::parity(n));
      make_scales<Format>(ring.keys(n), tables + Ring::buffer(n) * LatentRows<Format>::kScaleBytes,
                          lane);
      barrier_arrive(scaled + 8 * Ring::buffer(n));
      barrier_arrive(ring.empty(n));
    }
  }
}

/// kThreads threads: queries and facts of items. `facts`: two places; an item's are kept until the one after
/// the next is begun. q_full takes kThreads + 1 arrivals.
template <class Format, int kTileLines, int kThreads>
__device__ inline void tell_items(const LatentParams& p, std::uint32_t q, std::uint32_t facts,
                                  std::uint32_t q_full, std::uint32_t q_empty, std::int32_t worker,
                                  std::int32_t tile, int thread) {
  LatentItems items(p, worker);
  unsigned number = 0;
  std::int32_t first = 0;  // tile of the item
  for (bool live = true; live; ++number) {
    live = items.take<kTileLines>(p, tile);
    barrier_wait(q_empty, (number & 1) ^ 1);
    if (thread == 0) {
      const LatentUnitPlace& u = items.unit;
      LatentItemFacts{live ? LatentItemFacts::pairs_of(items.item) : 0,
                      p.dense ? u.limit - items.item.first : INT32_MAX / 2,
                      u.row,
                      u.lines,
                      items.split ? items.number : -1,
                      tile * kTileLines,
                      first}
          .store(facts + LatentItemFacts::kBytes * (number & 1));
      barrier_arrive(q_full);
    }
    if (live) {
      first += 2 * LatentItemFacts::pairs_of(items.item);
      copy_queries<kTileLines, kDimTiles<Format>, kThreads>(p, items.unit, tile, q, thread);
    }
    barrier_arrive_after_copies(q_full);
  }
}

}  // namespace lathe::cuda
