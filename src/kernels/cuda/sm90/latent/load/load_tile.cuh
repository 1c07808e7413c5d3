// Shared by the producers of bf16 tiles: shared memory, the stream of tiles, and copying queries.
//
// A tile of 64 keys has 8 KB per 64 dimensions, in 128-byte rows, swizzled for wgmma. Missing keys
// are masked.
#pragma once

#include "kernels/cuda/sm90/attention/swizzle.cuh"
#include "kernels/cuda/sm90/latent/load/row_format.cuh"

namespace lathe::cuda {

inline constexpr int kDimTileBytes = kLatentTile * 128;
inline constexpr int kProducerThreads = 128;
inline constexpr int kPairKeys = 2 * kLatentTile;  // a work item is padded to pairs of tiles

/// Shared memory of the producers. A buffer of keys is freed in halves (tiles 0 to 3, and 4 to 7)
/// by their readers. Data of a pair of tiles is in slot pair % 4.
struct LatentShared {
  static constexpr int kSlots = 4;
  static constexpr int kAddressBytes = 2112;  // of bf16 rows (resolve_slots.cuh)
  static constexpr int kSlotBytes = kAddressBytes + kSlots * (kPairKeys / 8);

  std::uint32_t q;          // [kDimTiles] tiles of M rows
  std::uint32_t keys;       // [buffers][kDimTiles] tiles
  std::uint32_t addresses;  // of listed rows (resolve_slots.cuh)
  std::uint32_t masks;      // [slots][128] bits
  std::uint32_t q_full, q_empty;
  std::uint32_t full;   // [buffers], or [buffers][2] where halves are awaited separately
  std::uint32_t empty;  // [buffers][2]

  __device__ void put_slots(std::uint32_t at) {
    addresses = at;
    masks = at + kAddressBytes;
  }
};

/// Iterates over the tiles of a worker's items, padded to kWhole keys, and over the slots of their
/// keys, kStep keys at a time.
template <int kBlockM, int kStep = kPairKeys, int kWhole = kPairKeys>
struct LatentStream {
  LatentItems items;
  std::int32_t at = 0, end = 0;
  std::int32_t keys = 0;  // one past the last
  bool live = false;

  __device__ LatentStream(const LatentParams& p, std::int32_t worker, std::int32_t tile)
      : items(p, worker) {
    open(p, tile);
  }
  __device__ void open(const LatentParams& p, std::int32_t tile) {
    live = items.take<kBlockM>(p, tile);
    at = items.item.first;
    keys = at + items.item.count;
    end = at + (items.item.count + kWhole - 1) / kWhole * kWhole;
  }
  __device__ void advance(const LatentParams& p, std::int32_t tile) {
    at += kStep;
    // Where a step is the whole padding unit, the padded end needs no register.
    if (live && at >= (kWhole == kStep ? keys : end)) open(p, tile);
  }
  __device__ KeySlot key(const LatentParams& p, int in_pair) const {
    const std::int32_t index = at + in_pair;
    return live && index < keys ? key_slot(p, items.work_tile, index) : KeySlot{};
  }
};

/// Copies an M block's queries, [kBlockM, kDims * 64] bf16; M rows past the work tile's are zeros.
template <int kBlockM, int kDims, int kThreads>
__device__ inline void copy_queries(const LatentParams& p, const LatentWorkTile& u,
                                    std::int32_t tile, std::uint32_t to, int thread) {
  const int chunk = thread & 7;
  LATHE_ROLLED
  for (int m_row = thread >> 3; m_row < kBlockM; m_row += kThreads / 8) {
    const std::int32_t l = tile * kBlockM + m_row;
    const bool valid = l < u.m_rows;
    const auto row =
        static_cast<std::int32_t>(p.by_heads(static_cast<std::uint32_t>(valid ? l : 0)));
    const std::int32_t head = (valid ? l : 0) - row * p.heads;
    const auto* from = reinterpret_cast<const std::uint16_t*>(p.q) + (u.row + row) * p.q_stride +
                       std::int64_t{head} * (kDims * 64) + chunk * 8;
    LATHE_UNROLL
    for (int d = 0; d < kDims; ++d) {
      copy_async(swizzled(to + d * (kBlockM * 128), m_row, chunk), from + d * 64, valid);
    }
  }
}

}  // namespace lathe::cuda
