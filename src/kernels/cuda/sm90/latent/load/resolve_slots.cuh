// Where rows of keys lie, found out by one warp and told to those that copy.
#pragma once

#include "kernels/cuda/sm90/latent/load/load_tile.cuh"

namespace lathe::cuda {

/// Slots in shared memory, kBytes from `first` on, one for each of the next tiles: addresses of its 64 rows, 0 of
/// keys that are none, then of scales where they lie apart. Two warps read them. Behind them the warp that finds them out keeps
/// entries of lists and tables, and facts, of tiles further ahead.
template <class Format>
struct LatentNames {
  static constexpr int kSlots = Format::kFp8 > 0 ? 2 : 4;  // of bf16 rows, two pairs of tiles
  static constexpr int kSlotBytes = kLatentTile * (Format::kScalesApart ? 16 : 8);
  static constexpr int kEntries = Format::kFp8 > 0 ? 6 : 0;  // tiles of a namer's entries
  static constexpr int kEntryBytes = 4 * kLatentTile;
  static constexpr int kBytes = kSlots * (kSlotBytes + 16) + kEntries * (kEntryBytes + 16);
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
  __device__ std::uint32_t entries(unsigned slot) const {
    return first + kSlots * (16 + kSlotBytes) + slot * kEntryBytes;
  }
  __device__ std::uint32_t facts(unsigned slot) const { return entries(kEntries) + 16 * slot; }
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

/// One warp, for fp8 rows, a lane two keys of a tile. List and table entries are copied to shared memory tiles before
/// they are looked at. Behind the copies of rows an entry takes 1.7 us, longer than a tile of rows, and of entries in
/// registers ptxas waits for all that are under way where one is used, so that each tile would wait for one.
template <class Format, int kTileLines, int kGroups>
class LatentNamer {
  using Names = LatentNames<Format>;
  // Asking for a tile takes 0.3 us, and the first one is told after all that are ahead of it have been asked for.
  // Positions come four tiles ahead, and the pages that they lie in two.
  static constexpr unsigned kAhead = 2, kPositionsAhead = 4, kPagesAhead = 2;
  static_assert(kPositionsAhead + kPagesAhead == Names::kEntries && kAhead <= Names::kEntries);

  const LatentParams& p;
  const Names& names;
  const std::int32_t tile;
  const int lane;
  LatentStream<kTileLines, kLatentTile, kGroups * kLatentTile> stream;

 public:
  __device__ LatentNamer(const LatentParams& params, const Names& to, std::int32_t worker,
                         std::int32_t line_tile, int own)
      : p(params), names(to), tile(line_tile), lane(own), stream(params, worker, line_tile) {}

  __device__ void run() {
    LATHE_ROLLED
    for (unsigned step = 0;; ++step) {
      const unsigned ahead = positions() ? kPositionsAhead : kAhead;
      const unsigned n = step - ahead;  // tile that is told, if it is one
      // Of its entries, and then of those of tile `step`.
      const unsigned slot = positions() ? step % kPositionsAhead : step % kAhead;
      if (positions()) {
        wait_copy_groups<kPagesAhead - 1>();
      } else {
        wait_copy_groups<kAhead - 1>();
      }
      sync_warp();
      if (step >= ahead && !tell(n, slot)) return;
      if (positions() && step >= kPagesAhead) {
        ask_for_pages(n + kPagesAhead, (slot + kPagesAhead) % kPositionsAhead);
      }
      sync_warp();  // all have read what is known of the tile
      ask(slot);
      end_copy_group();
    }
  }

 private:
  __device__ bool positions() const { return p.main.indices != nullptr && p.main.table != nullptr; }
  __device__ std::uint32_t entry(unsigned slot) const {
    return names.entries(slot) + static_cast<std::uint32_t>(4 * lane);
  }
  /// Of tile n's positions.
  __device__ std::uint32_t page_entry(unsigned n) const {
    return entry(kPositionsAhead + n % kPagesAhead);
  }
  /// To `entry`, if the key has one at `from`.
  __device__ static void fetch(std::uint32_t entry, const std::int32_t* from, bool any) {
    if (any) {
      copy_async_4(entry, from);
    } else {
      store_shared_u32(entry, ~0u);
    }
  }
  __device__ const std::int32_t* table_row(std::int32_t request) const {
    return p.main.table + std::int64_t{request} * p.main.table_width;
  }
  /// What is known of a tile when its entries are asked for.
  struct Facts {
    KeyKind kind;
    std::int32_t first, request, limit;
  };
  __device__ Facts facts(unsigned slot) const {
    const uint4 v = load_shared_u128(names.facts(slot));
    return {static_cast<KeyKind>(v.x), static_cast<std::int32_t>(v.y),
            static_cast<std::int32_t>(v.z), static_cast<std::int32_t>(v.w)};
  }

  /// The stream's next tile, or that there is none.
  __device__ void ask(unsigned slot) {
    const LatentUnitPlace& u = stream.items.unit;
    const KeyKind kind = stream.live ? key_kind(p, u, stream.at) : KeyKind::none;
    if (lane == 0) {
      store_shared(names.facts(slot), static_cast<std::uint32_t>(kind),
                   static_cast<std::uint32_t>(stream.at), static_cast<std::uint32_t>(u.request),
                   static_cast<std::uint32_t>(u.limit));
    }
    if (!stream.live) return;
    const std::int32_t first = stream.at + lane;
    std::int32_t end = stream.keys;
    // Loops are rolled, as unrolled ones spill where a producer has 40 registers.
    if (kind == KeyKind::page) {
      if (end > u.keys) end = u.keys;
      LATHE_ROLLED
      for (int i = 0; i < 2; ++i) {
        const auto page =
            static_cast<std::int32_t>(p.main.page_size(static_cast<std::uint32_t>(first + 32 * i)));
        fetch(entry(slot) + static_cast<std::uint32_t>(128 * i), table_row(u.request) + page,
              first + 32 * i < end && page < p.main.table_width);
      }
    } else {
      const bool extra = kind == KeyKind::extra_slot;
      const LatentSource& source = extra ? p.extra : p.main;
      const std::int32_t before = extra ? u.padded : 0, keys = extra ? u.extra : u.keys;
      if (end > before + keys) end = before + keys;
      const std::int32_t* from =
          source.indices + std::int64_t{u.row} * source.width + (first - before);
      LATHE_ROLLED
      for (int i = 0; i < 2; ++i) {
        fetch(entry(slot) + static_cast<std::uint32_t>(128 * i), from + 32 * i,
              first + 32 * i < end);
      }
    }
    stream.advance(p, tile);
  }
  /// Of tile n, whose positions are there.
  __device__ void ask_for_pages(unsigned n, unsigned slot) const {
    const Facts f = facts(slot);
    LATHE_UNROLL
    for (std::uint32_t i = 0; i < 2; ++i) {
      const std::uint32_t position = load_shared_u32(entry(slot) + 128 * i);
      const auto page = static_cast<std::int32_t>(p.main.page_size(position));
      fetch(page_entry(n) + 128 * i, table_row(f.request) + page,
            f.kind == KeyKind::position && position < static_cast<std::uint32_t>(f.limit) &&
                f.limit > 0 && page < p.main.table_width);
    }
  }
  __device__ KeyName name(const Facts& f, unsigned n, unsigned slot, std::uint32_t i) const {
    const auto value = static_cast<std::int32_t>(load_shared_u32(entry(slot) + 128 * i));
    if (f.kind == KeyKind::slot) return {value, KeyName::kSlot};
    if (f.kind == KeyKind::extra_slot) return {value, KeyName::kExtraSlot};
    const bool listed = f.kind == KeyKind::position;
    const auto index =
        static_cast<std::uint32_t>(listed ? value : f.first + lane) + (listed ? 0 : 32 * i);
    return {listed ? static_cast<std::int32_t>(load_shared_u32(page_entry(n) + 128 * i)) : value,
            static_cast<std::int32_t>(index - p.main.page_size(index) * p.main.page_size.divisor)};
  }
  /// Whether there are more.
  __device__ bool tell(unsigned n, unsigned slot) const {
    const Facts f = facts(slot);
    const bool live = f.kind != KeyKind::none;
    KeyPlace places[2];
    LATHE_UNROLL
    for (std::uint32_t i = 0; i < 2; ++i) places[i] = key_place<Format>(p, name(f, n, slot, i));
    barrier_wait(names.unnamed(n), names.parity(n) ^ 1);
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t to = names.rows(n) + static_cast<std::uint32_t>(8 * (lane + 32 * i));
      store_shared_u64(to, live ? reinterpret_cast<std::uint64_t>(places[i].row) : Names::kEnd);
      if constexpr (Format::kScalesApart) {
        store_shared_u64(to + kLatentTile * 8, reinterpret_cast<std::uint64_t>(places[i].scales));
      }
    }
    barrier_arrive(names.named(n));
    return live;
  }
};

}  // namespace lathe::cuda
