// Slot resolution: one warp converts list and table entries to row addresses for the warps that
// copy rows.
#pragma once

#include "kernels/cuda/sm90/latent/load/load_tile.cuh"

namespace lathe::cuda {

/// A ring in shared memory of kBytes at `first`, with one slot per upcoming tile: the addresses of
/// its 64 rows (0: missing key), then those of scales if they are apart. Two warps read them. After
/// the ring, the resolving warp keeps list and table entries, and infos, of tiles further ahead.
template <class Format>
struct LatentRowAddresses {
  static constexpr int kSlots = Format::kFp8 > 0 ? 2 : 4;  // of bf16 rows: two pairs of tiles
  static constexpr int kSlotBytes = kLatentTile * (Format::kScalesApart ? 16 : 8);
  static constexpr int kEntries =
      Format::kFp8 > 0 ? 6 : 0;  // entries are loaded for this many tiles ahead
  static constexpr int kEntryBytes = 4 * kLatentTile;
  static constexpr int kBytes = kSlots * (kSlotBytes + 16) + kEntries * (kEntryBytes + 16);
  static constexpr int kResolvedArrivals = 32, kConsumedArrivals = 64;
  // In place of a tile's addresses: no more tiles.
  static constexpr std::uint64_t kEnd = 1;

  std::uint32_t first;

  __device__ static std::uint32_t parity(unsigned n) { return n / kSlots & 1; }
  __device__ std::uint32_t resolved(unsigned n) const { return first + 16 * (n % kSlots); }
  __device__ std::uint32_t consumed(unsigned n) const { return resolved(n) + 8; }
  __device__ std::uint32_t rows(unsigned n) const {
    return first + 16 * kSlots + n % kSlots * kSlotBytes;
  }
  __device__ std::uint32_t entries(unsigned slot) const {
    return first + kSlots * (16 + kSlotBytes) + slot * kEntryBytes;
  }
  __device__ std::uint32_t info(unsigned slot) const { return entries(kEntries) + 16 * slot; }
  /// Call from one thread, before anyone waits.
  __device__ void init() const {
    for (unsigned slot = 0; slot < kSlots; ++slot) {
      barrier_init(resolved(slot), kResolvedArrivals);
      barrier_init(consumed(slot), kConsumedArrivals);
    }
  }
};

/// One warp, for bf16 rows; items are padded to pairs of tiles. A lane resolves four keys of a
/// pair; they are loaded while the previous pair is published. A load that queues after the row
/// copies needs thousands of cycles, and ptxas waits for all loads that cross a loop's end when it
/// waits for one, so two tiles are resolved together.
template <class Format, int kBlockM>
__device__ inline void resolve_pairs(const LatentParams& p,
                                     const LatentRowAddresses<Format>& addresses,
                                     std::int32_t worker, std::int32_t tile, int lane) {
  static_assert(!Format::kScalesApart);
  LatentStream<kBlockM, kPairKeys, kPairKeys> ahead(p, worker, tile);
  constexpr int kEach = kPairKeys / 32;
  KeySlot keys[kEach];
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
      rows[i] =
          live ? reinterpret_cast<std::uint64_t>(place.row) : LatentRowAddresses<Format>::kEnd;
    }
    const bool more = live;
    load();
    LATHE_UNROLL
    for (unsigned t = 0; t < 2; ++t) {
      barrier_wait(addresses.consumed(n + t), addresses.parity(n + t) ^ 1);
      const std::uint32_t to = addresses.rows(n + t) + static_cast<std::uint32_t>(8 * lane);
      store_shared_u64(to, rows[2 * t]);
      store_shared_u64(to + 256, rows[2 * t + 1]);
      barrier_arrive(addresses.resolved(n + t));
      if (!more) return;
    }
  }
}

/// One warp, for fp8 rows, two keys of a tile per lane. List and table entries are copied to shared
/// memory several tiles ahead. An entry that queues after the row copies needs 1.7 us, longer than
/// a tile of rows; and if entries were in registers, ptxas would wait for all in flight where one
/// is used, so every tile would wait.
template <class Format, int kBlockM, int kGroups>
class SlotResolver {
  using Addresses = LatentRowAddresses<Format>;
  // Issuing a tile's entry loads costs 0.3 us, and the first tile is published only after the loads
  // of all tiles ahead were issued. Positions are loaded four tiles ahead, and their pages two.
  static constexpr unsigned kAhead = 2, kPositionsAhead = 4, kPagesAhead = 2;
  static_assert(kPositionsAhead + kPagesAhead == Addresses::kEntries &&
                kAhead <= Addresses::kEntries);

  const LatentParams& p;
  const Addresses& addresses;
  const std::int32_t tile;
  const int lane;
  LatentStream<kBlockM, kLatentTile, kGroups * kLatentTile> stream;

 public:
  __device__ SlotResolver(const LatentParams& params, const Addresses& to, std::int32_t worker,
                          std::int32_t m_block, int own)
      : p(params), addresses(to), tile(m_block), lane(own), stream(params, worker, m_block) {}

  __device__ void run() {
    LATHE_ROLLED
    for (unsigned step = 0;; ++step) {
      const unsigned ahead = positions() ? kPositionsAhead : kAhead;
      const unsigned n = step - ahead;  // tile to publish, if there is one
      // First of tile n's entries, then of tile `step`'s.
      const unsigned slot = positions() ? step % kPositionsAhead : step % kAhead;
      if (positions()) {
        wait_copy_groups<kPagesAhead - 1>();
      } else {
        wait_copy_groups<kAhead - 1>();
      }
      sync_warp();
      if (step >= ahead && !publish(n, slot)) return;
      if (positions() && step >= kPagesAhead) {
        ask_for_pages(n + kPagesAhead, (slot + kPagesAhead) % kPositionsAhead);
      }
      sync_warp();  // all lanes have read the tile's info
      ask(slot);
      end_copy_group();
    }
  }

 private:
  __device__ bool positions() const { return p.main.indices != nullptr && p.main.table != nullptr; }
  __device__ std::uint32_t entry(unsigned slot) const {
    return addresses.entries(slot) + static_cast<std::uint32_t>(4 * lane);
  }
  /// Where the pages of tile n's positions are.
  __device__ std::uint32_t page_entry(unsigned n) const {
    return entry(kPositionsAhead + n % kPagesAhead);
  }
  /// Copies an entry from `from` if the key has one.
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
  /// A tile's info, stored when its entries are loaded.
  struct Info {
    KeyKind kind;
    std::int32_t first, request, limit;
  };
  __device__ Info info(unsigned slot) const {
    const uint4 v = load_shared_u128(addresses.info(slot));
    return {static_cast<KeyKind>(v.x), static_cast<std::int32_t>(v.y),
            static_cast<std::int32_t>(v.z), static_cast<std::int32_t>(v.w)};
  }

  /// Requests the entries of the stream's next tile, or records that there is none.
  __device__ void ask(unsigned slot) {
    const LatentWorkTile& u = stream.items.work_tile;
    const KeyKind kind = stream.live ? key_kind(p, u, stream.at) : KeyKind::none;
    if (lane == 0) {
      store_shared(addresses.info(slot), static_cast<std::uint32_t>(kind),
                   static_cast<std::uint32_t>(stream.at), static_cast<std::uint32_t>(u.request),
                   static_cast<std::uint32_t>(u.limit));
    }
    if (!stream.live) return;
    const std::int32_t first = stream.at + lane;
    std::int32_t end = stream.keys;
    // Rolled loops: unrolled ones spill where a producer has 40 registers.
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
  /// Requests the pages of tile n, whose positions have arrived.
  __device__ void ask_for_pages(unsigned n, unsigned slot) const {
    const Info f = info(slot);
    LATHE_UNROLL
    for (std::uint32_t i = 0; i < 2; ++i) {
      const std::uint32_t position = load_shared_u32(entry(slot) + 128 * i);
      const auto page = static_cast<std::int32_t>(p.main.page_size(position));
      fetch(page_entry(n) + 128 * i, table_row(f.request) + page,
            f.kind == KeyKind::position && position < static_cast<std::uint32_t>(f.limit) &&
                f.limit > 0 && page < p.main.table_width);
    }
  }
  __device__ KeySlot resolve(const Info& f, unsigned n, unsigned slot, std::uint32_t i) const {
    const auto value = static_cast<std::int32_t>(load_shared_u32(entry(slot) + 128 * i));
    if (f.kind == KeyKind::slot) return {value, KeySlot::kSlot};
    if (f.kind == KeyKind::extra_slot) return {value, KeySlot::kExtraSlot};
    const bool listed = f.kind == KeyKind::position;
    const auto index =
        static_cast<std::uint32_t>(listed ? value : f.first + lane) + (listed ? 0 : 32 * i);
    return {listed ? static_cast<std::int32_t>(load_shared_u32(page_entry(n) + 128 * i)) : value,
            static_cast<std::int32_t>(index - p.main.page_size(index) * p.main.page_size.divisor)};
  }
  /// Returns whether there are more tiles.
  __device__ bool publish(unsigned n, unsigned slot) const {
    const Info f = info(slot);
    const bool live = f.kind != KeyKind::none;
    KeyPlace places[2];
    LATHE_UNROLL
    for (std::uint32_t i = 0; i < 2; ++i) places[i] = key_place<Format>(p, resolve(f, n, slot, i));
    barrier_wait(addresses.consumed(n), addresses.parity(n) ^ 1);
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t to = addresses.rows(n) + static_cast<std::uint32_t>(8 * (lane + 32 * i));
      store_shared_u64(to, live ? reinterpret_cast<std::uint64_t>(places[i].row) : Addresses::kEnd);
      if constexpr (Format::kScalesApart) {
        store_shared_u64(to + kLatentTile * 8, reinterpret_cast<std::uint64_t>(places[i].scales));
      }
    }
    barrier_arrive(addresses.resolved(n));
    return live;
  }
};

}  // namespace lathe::cuda
