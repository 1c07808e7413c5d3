// The producer of fp8 rows: one warp finds out where keys lie, two copy their rows as they lie in the cache, one
// tells items and brings queries.
//
// Rows of keys that are none become zeros and lose their bit in the tile's mask. Tiles are numbered through all
// items of a block; number n is in buffer n % kBuffers, and of that buffer's phases it is phase n / kBuffers.
#pragma once

#include "kernels/cuda/sm90/latent/latent_fill.cuh"
#include "kernels/cuda/sm90/latent/latent_item.cuh"
#include "kernels/cuda/sm90/latent/latent_query_fill.cuh"
#include "kernels/cuda/sm90/latent/latent_rows.cuh"

namespace lathe::cuda {

/// Where a ring of tiles lies: base addresses, of buffers kTileBytes apart, of barriers and masks 8 bytes; the
/// halves of a buffer are freed by themselves, each with an `empty`.
/// Where rows lie is told from warp to warp through slots, kNameBytes in all.
/// kConsumers: groups that take tiles in turns, so that an item is filled up to as many.
template <class Format, int kCount, int kConsumers>
struct LatentRing {
  static constexpr int kBuffers = kCount, kGroups = kConsumers;
  // Of a buffer's `full`: two warps, and those of them who announce bytes.
  static constexpr int kFullArrivals = 2 * 33;
  static constexpr int kSlots = 2;
  // Addresses of rows, then of scales where they lie apart.
  static constexpr int kSlotBytes = kLatentTile * (Format::kScalesApart ? 16 : 8);
  static constexpr int kNameBytes = kSlots * (kSlotBytes + 16);
  static constexpr int kNamedArrivals = 32, kUnnamedArrivals = 64;
  // In place of the addresses of a tile: there are no more tiles.
  static constexpr std::uint64_t kEnd = 1;

  std::uint32_t first_keys, first_full, first_empty, first_mask, first_name;

  __device__ static std::uint32_t buffer(unsigned n) { return n % kBuffers; }
  __device__ static std::uint32_t parity(unsigned n) { return n / kBuffers & 1; }
  __device__ std::uint32_t keys(unsigned n) const {
    return first_keys + buffer(n) * LatentRows<Format>::kTileBytes;
  }
  __device__ std::uint32_t full(unsigned n) const { return first_full + 8 * buffer(n); }
  /// Of the buffer's rows 32 half on.
  __device__ std::uint32_t empty(unsigned n, int half) const {
    return first_empty + 16 * buffer(n) + 8 * static_cast<std::uint32_t>(half);
  }
  __device__ std::uint32_t mask(unsigned n) const { return first_mask + 8 * buffer(n); }

  __device__ static std::uint32_t name_parity(unsigned n) { return n / kSlots & 1; }
  __device__ std::uint32_t named(unsigned n) const { return first_name + 16 * (n % kSlots); }
  __device__ std::uint32_t unnamed(unsigned n) const { return named(n) + 8; }
  __device__ std::uint32_t names(unsigned n) const {
    return first_name + 16 * kSlots + n % kSlots * kSlotBytes;
  }
  /// By one thread, before anybody waits.
  __device__ void init(int empty_arrivals) const {
    for (unsigned b = 0; b < kBuffers; ++b) {
      barrier_init(full(b), kFullArrivals);
      barrier_init(empty(b, 0), empty_arrivals);
      barrier_init(empty(b, 1), empty_arrivals);
    }
    for (unsigned slot = 0; slot < kSlots; ++slot) {
      barrier_init(named(slot), kNamedArrivals);
      barrier_init(unnamed(slot), kUnnamedArrivals);
    }
  }
};

/// One warp, a lane two keys of a tile, whose names are loaded two tiles before they are looked up.
template <class Format, int kTileLines, class Ring>
__device__ inline void name_rows(const LatentParams& p, const Ring& ring, std::int32_t worker,
                                 std::int32_t tile, int lane) {
  LatentStream<kTileLines, kLatentTile, Ring::kGroups * kLatentTile> ahead(p, worker, tile);
  // In place of an offset, which no list of indices can bring about: there is no tile.
  constexpr std::int32_t kNoTile = INT32_MIN;
  struct Names {
    KeyName low, high;
  };
  const auto load = [&](Names& names) {
    names = {ahead.key(p, lane), ahead.key(p, lane + 32)};
    if (!ahead.live) names.low.offset = kNoTile;
    if (ahead.live) ahead.advance(p, tile);
  };
  /// Whether there are more.
  const auto tell = [&](Names& names, unsigned n) {
    barrier_wait(ring.unnamed(n), Ring::name_parity(n) ^ 1);
    const bool live = names.low.offset != kNoTile;
    const auto put = [&](const KeyName& name, std::uint32_t to) {
      const KeyPlace place = key_place<Format>(p, name);
      store_shared_u64(to, live ? reinterpret_cast<std::uint64_t>(place.row) : Ring::kEnd);
      if constexpr (Format::kScalesApart) {
        store_shared_u64(to + kLatentTile * 8, reinterpret_cast<std::uint64_t>(place.scales));
      }
    };
    const std::uint32_t to = ring.names(n) + static_cast<std::uint32_t>(8 * lane);
    put(names.low, to);
    put(names.high, to + 256);
    barrier_arrive(ring.named(n));
    if (live) load(names);
    return live;
  };
  // Two sets, each loaded again when it has been read: one that moves would be waited for when it moves.
  Names even, odd;
  load(even);
  load(odd);
  LATHE_ROLLED
  for (unsigned n = 0; tell(even, n) && tell(odd, n + 1); n += 2) {
  }
}

/// One of two warps, which has the copy engine bring 32 rows of each tile, a lane one: it asks memory for whole
/// rows, where copies of 16 bytes by lanes ask twice for what lies across the parts that L2 is read in. once: L2 need
/// not keep them.
template <class Format, class Ring>
__device__ inline void copy_rows(const Ring& ring, bool once, int warp, int lane) {
  const std::uint64_t policy = cache_policy(once);
  const int own = warp * 32 + lane;
  const auto at = [](std::uint64_t address) { return reinterpret_cast<const std::byte*>(address); };
  LATHE_ROLLED
  for (unsigned n = 0;; ++n) {
    barrier_wait(ring.named(n), Ring::name_parity(n));
    const std::uint32_t names = ring.names(n);
    const std::uint64_t row = load_shared_u64(names + static_cast<std::uint32_t>(8 * own));
    std::uint64_t scales = 0;
    if constexpr (Format::kScalesApart) {
      scales = load_shared_u64(names + static_cast<std::uint32_t>(8 * (kLatentTile + own)));
    }
    const std::uint32_t mask = warp_ballot(row != 0);
    const std::uint32_t full = ring.full(n);
    const std::uint32_t to = ring.keys(n) + static_cast<std::uint32_t>(own * Format::kPitch);
    if (row != Ring::kEnd) barrier_wait(ring.empty(n, warp), Ring::parity(n) ^ 1);
    if (mask == ~0u && row != Ring::kEnd) {
      if (elected()) {
        store_shared_u32(ring.mask(n) + static_cast<std::uint32_t>(4 * warp), mask);
        barrier_expect(full, 32 * Format::kRowBytes);
        LATHE_UNROLL
        for (int r = 0; r < 32; r += 2) {
          const uint4 v = load_shared_u128(names + static_cast<std::uint32_t>(8 * (warp * 32 + r)));
          const std::uint32_t place =
              ring.keys(n) + static_cast<std::uint32_t>((warp * 32 + r) * Format::kPitch);
          copy_row(place, at(v.x | std::uint64_t{v.y} << 32), Format::kRowBytes, full, policy);
          copy_row(place + Format::kPitch, at(v.z | std::uint64_t{v.w} << 32), Format::kRowBytes,
                   full, policy);
        }
      }
      sync_warp();
    }
    barrier_arrive(ring.unnamed(n));
    if (row == Ring::kEnd) return;
    if (mask != ~0u) {
      if (row == 0) {
        // Not copied, as one row of zeros would be asked for by all processors at once.
        LATHE_ROLLED
        for (std::uint32_t i = 0; i < Format::kPitch; i += 16) store_shared(to + i, 0, 0, 0, 0);
        fence_async_proxy();
      }
      sync_warp();
      if (lane == 0) {
        store_shared_u32(ring.mask(n) + static_cast<std::uint32_t>(4 * warp), mask);
        barrier_expect(full, static_cast<std::uint32_t>(count_bits(mask)) * Format::kRowBytes);
      }
      sync_warp();
      if (row != 0) copy_row(to, at(row), Format::kRowBytes, full, policy);
    }
    if constexpr (Format::kScalesApart) {
      if (row != 0) copy_async_8(to + Format::kRowBytes, at(scales));
      barrier_arrive_after_copies(full);
    } else {
      barrier_arrive(full);
    }
  }
}

/// One warp: queries, by `map`'s boxes or its lanes, and facts of items. `facts`: two places; an item's are kept
/// until the one after the next is begun. q_full takes kQueryArrivals. each_tile(n) is called for all tiles of an
/// item once its queries are under way.
inline constexpr int kQueryArrivals = 33;
template <class Format, int kTileLines, int kGroups, class EachTile>
__device__ inline void tell_items(const LatentParams& p, const void* map, std::uint32_t q,
                                  std::uint32_t facts, std::uint32_t q_full, std::uint32_t q_empty,
                                  std::int32_t worker, std::int32_t tile, int lane,
                                  const EachTile& each_tile) {
  constexpr int kDims = kDimTiles<Format>;
  const bool boxes = query_box_lines<kTileLines, kDims>(p) > 0;
  LatentItems items(p, worker);
  bool live = items.take<kTileLines>(p, tile);
  std::int32_t first = 0;  // tile of the item
  LATHE_ROLLED
  for (unsigned number = 0;; ++number) {
    barrier_wait(q_empty, (number & 1) ^ 1);
    const int tiles = live ? LatentItemFacts::tiles_of<kGroups>(items.item) : 0;
    if (elected()) {
      const LatentUnitPlace& u = items.unit;
      LatentItemFacts{tiles,
                      p.dense ? u.limit - items.item.first : INT32_MAX / 2,
                      u.row,
                      u.lines,
                      items.split ? items.number : -1,
                      tile * kTileLines,
                      first}
          .store(facts + LatentItemFacts::kBytes * (number & 1));
      if (live && boxes) {
        barrier_expect(q_full, kTileLines * kDims * 128);
        copy_query_boxes<kTileLines, kDims>(p, map, items.unit, tile, q, q_full);
      } else {
        barrier_arrive(q_full);
      }
    }
    sync_warp();
    if (live && !boxes) copy_queries<kTileLines, kDims, 32>(p, items.unit, tile, q, lane);
    barrier_arrive_after_copies(q_full);
    if (!live) return;
    // The next one is looked up meanwhile.
    live = items.take<kTileLines>(p, tile);
    LATHE_ROLLED
    for (const std::int32_t end = first + tiles; first < end; ++first) {
      each_tile(static_cast<unsigned>(first));
    }
  }
}

}  // namespace lathe::cuda
