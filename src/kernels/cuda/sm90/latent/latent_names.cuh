// Where rows of keys lie, found out by one warp and told to those that copy.
#pragma once

#include "kernels/cuda/sm90/latent/latent_fill.cuh"

namespace lathe::cuda {

/// Slots in shared memory, kBytes from `first` on, one for each of the next tiles: addresses of its 64 rows, 0 of
/// keys that are none, then of scales where they lie apart. Two warps read them.
template <class Format>
struct LatentNames {
  static constexpr int kSlots = Format::kFp8 > 0 ? 2 : 4;  // of bf16 rows, two pairs of tiles
  static constexpr int kSlotBytes = kLatentTile * (Format::kScalesApart ? 16 : 8);
  static constexpr int kBytes = kSlots * (kSlotBytes + 16);
  static constexpr int kNamedArrivals = 32, kUnnamedArrivals = 64;
  // In place of the addresses of a tile: there are no more tiles.
  static constexpr std::uint64_t kEnd = 1;

  std::uint32_t first;

  __device__ static std::uint32_t parity(unsigned n) { return n / kSlots & 1; }
  __device__ std::uint32_t named(unsigned n) const { return first + 16 * (n % kSlots); }
  __device__ std::uint32_t unnamed(unsigned n) const { return named(n) + 8; }
  __device__ std::uint32_t rows(unsigned n) const {
    return first + 16 * kSlots + n % kSlots * kSlotBytes;
  }
  /// By one thread, before anybody waits.
  __device__ void init() const {
    for (unsigned slot = 0; slot < kSlots; ++slot) {
      barrier_init(named(slot), kNamedArrivals);
      barrier_init(unnamed(slot), kUnnamedArrivals);
    }
  }
};

/// One warp, for rows of bf16 whose items are filled up to pairs of tiles: a lane four keys of a pair, loaded while the
/// pair before is told. A load takes thousands of cycles behind the copies of rows, and ptxas waits for all loads that
/// cross the end of a loop where it waits for one, so the names of two tiles go together.
template <class Format, int kTileLines>
__device__ inline void name_pairs(const LatentParams& p, const LatentNames<Format>& names,
                                  std::int32_t worker, std::int32_t tile, int lane) {
  static_assert(!Format::kScalesApart);
  LatentStream<kTileLines, kFillKeys, kFillKeys> ahead(p, worker, tile);
  constexpr int kEach = kFillKeys / 32;
  KeyName keys[kEach];
  bool live = false;
  const auto load = [&] {
    live = ahead.live;
    LATHE_UNROLL
    for (int i = 0; i < kEach; ++i) keys[i] = ahead.key(p, lane + 32 * i);
    if (live) ahead.advance(p, tile);
  };
  load();
  LATHE_ROLLED
  for (unsigned n = 0;; n += 2) {
    std::uint64_t rows[kEach];
    LATHE_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const KeyPlace place = key_place<Format>(p, keys[i]);
      rows[i] = live ? reinterpret_cast<std::uint64_t>(place.row) : LatentNames<Format>::kEnd;
    }
    const bool more = live;
    load();
    LATHE_UNROLL
    for (unsigned t = 0; t < 2; ++t) {
      barrier_wait(names.unnamed(n + t), names.parity(n + t) ^ 1);
      const std::uint32_t to = names.rows(n + t) + static_cast<std::uint32_t>(8 * lane);
      store_shared_u64(to, rows[2 * t]);
      store_shared_u64(to + 256, rows[2 * t + 1]);
      barrier_arrive(names.named(n + t));
      if (!more) return;
    }
  }
}

/// One warp, a lane two keys of a tile, whose names are loaded two tiles before they are looked up. kGroups:
/// consumers that take tiles in turns, so that an item is filled up to as many.
template <class Format, int kTileLines, int kGroups>
__device__ inline void name_rows(const LatentParams& p, const LatentNames<Format>& names,
                                 std::int32_t worker, std::int32_t tile, int lane) {
  LatentStream<kTileLines, kLatentTile, kGroups * kLatentTile> ahead(p, worker, tile);
  // In place of an offset, which no list of indices can bring about: there is no tile.
  constexpr std::int32_t kNoTile = INT32_MIN;
  struct Pair {
    KeyName low, high;
  };
  const auto load = [&](Pair& keys) {
    keys = {ahead.key(p, lane), ahead.key(p, lane + 32)};
    if (!ahead.live) keys.low.offset = kNoTile;
    if (ahead.live) ahead.advance(p, tile);
  };
  /// Whether there are more.
  const auto tell = [&](Pair& keys, unsigned n) {
    barrier_wait(names.unnamed(n), names.parity(n) ^ 1);
    const bool live = keys.low.offset != kNoTile;
    const auto put = [&](const KeyName& name, std::uint32_t to) {
      const KeyPlace place = key_place<Format>(p, name);
      store_shared_u64(
          to, live ? reinterpret_cast<std::uint64_t>(place.row) : LatentNames<Format>::kEnd);
      if constexpr (Format::kScalesApart) {
        store_shared_u64(to + kLatentTile * 8, reinterpret_cast<std::uint64_t>(place.scales));
      }
    };
    const std::uint32_t to = names.rows(n) + static_cast<std::uint32_t>(8 * lane);
    put(keys.low, to);
    put(keys.high, to + 256);
    barrier_arrive(names.named(n));
    if (live) load(keys);
    return live;
  };
  // Two sets, each loaded again when it has been read: one that moves would be waited for when it moves.
  Pair even, odd;
  load(even);
  load(odd);
  LATHE_ROLLED
  for (unsigned n = 0; tell(even, n) && tell(odd, n + 1); n += 2) {
  }
}

}  // namespace lathe::cuda
