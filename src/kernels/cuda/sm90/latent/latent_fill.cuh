// The producer: a warpgroup that brings queries and keys into shared memory as bf16 tiles.
//
// A tile of 64 keys is 8 KB for each 64 dimensions, rows of 128 bytes, swizzled as matrix products
// want them. Keys that are none become zeros and lose their bit in the tile's mask.
#pragma once

#include "kernels/cuda/sm90/latent/latent_format.cuh"

namespace lathe::cuda {

inline constexpr int kDimTileBytes = kLatentTile * 128;
inline constexpr int kFillThreads = 128;
inline constexpr int kFillKeys = 2 * kLatentTile;  // an item is filled up to pairs of tiles

static __device__ uint4 latent_zeros[128];  // 2 KB: a row of zeros

/// Byte address of 16-byte chunk `chunk` of a row of a swizzled tile.
__device__ inline std::uint32_t swizzled(std::uint32_t tile, int row, int chunk) {
  return tile + static_cast<std::uint32_t>(row * 128 + ((chunk ^ (row & 7)) << 4));
}

/// Where the producers' shared memory lies. A buffer of keys is freed in halves: tiles 0 to 3 and 4 to 7,
/// four warps arriving for each. What concerns a pair of tiles lies in slot pair % 4.
struct LatentShared {
  static constexpr int kSlots = 4;
  static constexpr int kSlotBytes = kSlots * (kFillKeys * 8 + kFillKeys / 8);

  std::uint32_t q;      // [kDimTiles] tiles of lines
  std::uint32_t keys;   // [buffers][kDimTiles] tiles
  std::uint32_t rows;   // [slots][128] addresses
  std::uint32_t masks;  // [slots][128] bits
  std::uint32_t q_full, q_empty;
  std::uint32_t full;   // [buffers]
  std::uint32_t empty;  // [buffers][2]

  __device__ void put_slots(std::uint32_t at) {
    rows = at;
    masks = at + kSlots * kFillKeys * 8;
  }
};

/// The tiles that a worker's items make, filled up to kWhole keys, and the names of their keys, kStep keys at
/// a time.
template <int kTileLines, int kStep = kFillKeys, int kWhole = kFillKeys>
struct LatentStream {
  LatentItems items;
  std::int32_t at = 0, end = 0;
  std::int32_t keys = 0;  // past the last
  bool live = false;

  __device__ LatentStream(const LatentParams& p, std::int32_t worker, std::int32_t tile)
      : items(p, worker) {
    open(p, tile);
  }
  __device__ void open(const LatentParams& p, std::int32_t tile) {
    live = items.take<kTileLines>(p, tile);
    at = items.item.first;
    keys = at + items.item.count;
    end = at + (items.item.count + kWhole - 1) / kWhole * kWhole;
  }
  __device__ void advance(const LatentParams& p, std::int32_t tile) {
    at += kStep;
    // Where a step is a whole, no register for what it is filled up to.
    if (live && at >= (kWhole == kStep ? keys : end)) open(p, tile);
  }
  __device__ KeyName key(const LatentParams& p, int in_pair) const {
    const std::int32_t index = at + in_pair;
    return live && index < keys ? key_name(p, items.unit, index) : KeyName{};
  }
};

/// Copies the lines of a unit's tile, [kTileLines, kDimTiles * 64] bf16; lines beyond the unit's are
/// zeros.
template <int kTileLines, int kDims, int kThreads>
__device__ inline void copy_queries(const LatentParams& p, const LatentUnitPlace& u,
                                    std::int32_t tile, std::uint32_t to, int thread) {
  const int chunk = thread & 7;
  LATHE_ROLLED
  for (int line = thread >> 3; line < kTileLines; line += kThreads / 8) {
    const std::int32_t l = tile * kTileLines + line;
    const bool valid = l < u.lines;
    const auto row =
        static_cast<std::int32_t>(p.by_heads(static_cast<std::uint32_t>(valid ? l : 0)));
    const std::int32_t head = (valid ? l : 0) - row * p.heads;
    const auto* from = reinterpret_cast<const std::uint16_t*>(p.q) + (u.row + row) * p.q_stride +
                       std::int64_t{head} * (kDims * 64) + chunk * 8;
    LATHE_UNROLL
    for (int d = 0; d < kDims; ++d) {
      copy_async(swizzled(to + d * (kTileLines * 128), line, chunk), from + d * 64, valid);
    }
  }
}

/// A row's bytes on their way into L2.
template <class Format>
__device__ inline void ask_for(const KeyPlace& k) {
  if (k.row == nullptr) return;
  LATHE_UNROLL
  for (int at = 0; at < Format::kRowBytes; at += 128) prefetch_l2(k.row + at);
  if (Format::kRowBytes % 128 != 0) prefetch_l2(k.row + Format::kRowBytes - 16);
}

/// One producer warpgroup. A pass takes 32 keys, four lanes a row, by asynchronous copies; consumers fence for
/// the products. Where a key lies one thread finds out and tells the others: two
/// pairs ahead its name is loaded, a pair ahead its bytes are asked for into L2.
template <class Format, int kTileLines, int kBuffers>
struct LatentFill {
  static constexpr int kRows = kFillThreads / 4;  // of a pass
  static constexpr int kDims = kDimTiles<Format>;
  static constexpr int kFullArrivals = kFillThreads;
  static constexpr int kPlacesReady = 8;  // named barrier

  const LatentParams& p;
  const LatentShared& s;
  std::int32_t tile;
  int thread;
  int buffer = 0;
  std::uint32_t parity = 1;
  std::uint32_t first_chunk, second_chunk;  // of a row's tile, where this thread's 32 bytes lie

  __device__ LatentFill(const LatentParams& params, const LatentShared& shared,
                        std::int32_t line_tile, int t)
      : p(params), s(shared), tile(line_tile), thread(t) {
    const int part = t & 3, row = t >> 2;
    first_chunk = swizzled(0, row, 2 * part);
    second_chunk = swizzled(0, row, 2 * part + 1);
  }

  /// Of key `in_pair` of pair `pair`: this thread's part of its first 64 bytes.
  __device__ const std::byte* row_of(int pair, int in_pair) const {
    return reinterpret_cast<const std::byte*>(load_shared_u64(
               s.rows + (pair % LatentShared::kSlots * kFillKeys + in_pair + (thread >> 2)) * 8)) +
           (thread & 3) * 16;
  }
  /// Tiles of a row from tile `first` up to `end`.
  __device__ void copy(std::uint32_t to, const std::byte* from, int first, int end) const {
    LATHE_UNROLL
    for (int t = first; t < end; ++t) {
      const std::uint32_t at = to + t * kDimTileBytes;
      // Every other 16 bytes: eight threads, two rows, so meet all banks.
      const std::byte* tile_from = from + (thread & 3) * 16 + t * 128;
      copy_async(at + first_chunk, tile_from, true);
      copy_async(at + second_chunk, tile_from + 16, true);
    }
  }

  /// Finds out where the key of this thread in pair `pair` lies and tells all.
  __device__ void place(const KeyName& name, int pair) const {
    const KeyPlace k = key_place<Format>(p, name);
    ask_for<Format>(k);
    const auto* row_bytes =
        k.row == nullptr ? reinterpret_cast<const std::byte*>(latent_zeros) : k.row;
    const int slot = pair % LatentShared::kSlots;
    store_shared_u64(s.rows + (slot * kFillKeys + thread) * 8,
                     reinterpret_cast<std::uint64_t>(row_bytes));
    const std::uint32_t mask = warp_ballot(k.row != nullptr);
    if (thread % 32 == 0) {
      store_shared_u32(s.masks + slot * (kFillKeys / 8) + thread / 32 * 4, mask);
    }
  }
  /// Some keys of a buffer.
  __device__ void pass(std::uint32_t to, const std::byte* from, bool first) const {
    if (first) barrier_wait(s.empty + 16 * buffer, parity);
    copy(to, from, 0, 4);
    if (first) barrier_wait(s.empty + 16 * buffer + 8, parity);
    copy(to, from, 4, kDims);
  }

  __device__ std::uint32_t to() const {
    return s.keys + static_cast<std::uint32_t>(buffer * (kDims * kDimTileBytes));
  }
  __device__ void complete() {
    barrier_arrive_after_copies(s.full + 8 * buffer);
    if (++buffer == kBuffers) {
      buffer = 0;
      parity ^= 1;
    }
  }

  __device__ void run(std::int32_t worker) {
    LatentStream<kTileLines> ahead(p, worker, tile);
    if (!ahead.live) return;
    LatentItems items(p, worker);
    place(ahead.key(p, thread), 0);
    group_sync(kPlacesReady, kFillThreads);
    ahead.advance(p, tile);
    KeyName name = ahead.key(p, thread);
    const std::byte* from = row_of(0, 0);
    int pairs = 0;
    std::uint32_t q_parity = 1;
    bool more = true;
    for (int pair = 0; more; ++pair) {
      if (pairs == 0) {
        items.take<kTileLines>(p, tile);
        pairs = (items.item.count + kFillKeys - 1) / kFillKeys;
        barrier_wait(s.q_empty, q_parity);
        copy_queries<kTileLines, kDims, kFillThreads>(p, items.unit, tile, s.q, thread);
        barrier_arrive_after_copies(s.q_full);
        q_parity ^= 1;
      }
      --pairs;
      more = ahead.live;
      place(name, pair + 1);
      if (more) ahead.advance(p, tile);
      name = ahead.key(p, thread);
      group_sync(kPlacesReady, kFillThreads);
      LATHE_ROLLED
      for (int at = 0; at < kFillKeys; at += kLatentTile) {
        const bool last = at + kLatentTile == kFillKeys;
        const std::byte* second = row_of(pair, at + kRows);
        const std::byte* next = row_of(pair + last, last ? 0 : at + kLatentTile);
        pass(to(), from, true);
        pass(to() + kRows * 128, second, false);
        complete();
        from = next;
      }
    }
  }
};

}  // namespace lathe::cuda
