// What producers of bf16 tiles share.
//
// A tile of 64 keys is 8 KB for each 64 dimensions, rows of 128 bytes, swizzled as matrix products
// want them. Keys that are none become zeros and lose their bit in the tile's mask.
#pragma once

#include "kernels/cuda/sm90/latent/load/row_format.cuh"

namespace lathe::cuda {

inline constexpr int kDimTileBytes = kLatentTile * 128;
inline constexpr int kFillThreads = 128;
inline constexpr int kFillKeys = 2 * kLatentTile;  // an item is filled up to pairs of tiles

/// Byte address of 16-byte chunk `chunk` of a row of a swizzled tile.
__device__ inline std::uint32_t swizzled(std::uint32_t tile, int row, int chunk) {
  return tile + static_cast<std::uint32_t>(row * 128 + ((chunk ^ (row & 7)) << 4));
}

/// Where the producers' shared memory lies. A buffer of keys is freed in halves: tiles 0 to 3 and 4 to 7,
/// by whoever reads them. What concerns a pair of tiles lies in slot pair % 4.
struct LatentShared {
  static constexpr int kSlots = 4;
  static constexpr int kNameBytes = 2112;  // of bf16 rows (resolve_slots.cuh)
  static constexpr int kSlotBytes = kNameBytes + kSlots * (kFillKeys / 8);

  std::uint32_t q;      // [kDimTiles] tiles of lines
  std::uint32_t keys;   // [buffers][kDimTiles] tiles
  std::uint32_t names;  // of listed rows
  std::uint32_t masks;  // [slots][128] bits
  std::uint32_t q_full, q_empty;
  std::uint32_t full;   // [buffers], or [buffers][2] where halves are waited for by themselves
  std::uint32_t empty;  // [buffers][2]

  __device__ void put_slots(std::uint32_t at) {
    names = at;
    masks = at + kNameBytes;
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

}  // namespace lathe::cuda
