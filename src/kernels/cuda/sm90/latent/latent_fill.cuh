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

__device__ uint4 latent_zeros[128];  // 2 KB: a row of zeros

/// Byte address of 16-byte chunk `chunk` of a row of a swizzled tile.
__device__ inline std::uint32_t swizzled(std::uint32_t tile, int row, int chunk) {
  return tile + static_cast<std::uint32_t>(row * 128 + ((chunk ^ (row & 7)) << 4));
}

/// Where the producer's shared memory lies. A buffer of keys is freed in halves: tiles 0 to 3 and 4 to 7,
/// four warps arriving for each.
struct LatentShared {
  std::uint32_t q;      // [kDimTiles] tiles of lines
  std::uint32_t keys;   // [buffers][kDimTiles] tiles
  std::uint32_t masks;  // [buffers] 64 bits
  std::uint32_t q_full, q_empty;
  std::uint32_t full;   // [buffers]
  std::uint32_t empty;  // [buffers][2]
};

/// The pairs of tiles that a worker's items make, and the names of their keys.
template <int kTileLines>
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
    end = at + (items.item.count + kFillKeys - 1) / kFillKeys * kFillKeys;
  }
  __device__ void advance(const LatentParams& p, std::int32_t tile) {
    at += kFillKeys;
    if (live && at >= end) open(p, tile);
  }
  __device__ KeyName key(const LatentParams& p, int in_pair) const {
    const std::int32_t index = at + in_pair;
    return live && in_pair < kFillKeys && index < keys ? key_name(p, items.unit, index) : KeyName{};
  }
};

/// Copies the lines of a unit's tile, [kTileLines, kDimTiles * 64] bf16; lines beyond the unit's are
/// zeros.
template <int kTileLines, int kDims, int kThreads>
__device__ inline void copy_queries(const LatentParams& p, const LatentUnitPlace& u,
                                    std::int32_t tile, std::uint32_t to, int thread) {
  const int chunk = thread & 7;
#pragma unroll 1
  for (int line = thread >> 3; line < kTileLines; line += kThreads / 8) {
    const std::int32_t l = tile * kTileLines + line;
    const bool valid = l < u.lines;
    const auto row =
        static_cast<std::int32_t>(p.by_heads(static_cast<std::uint32_t>(valid ? l : 0)));
    const std::int32_t head = (valid ? l : 0) - row * p.heads;
    const auto* from = reinterpret_cast<const std::uint16_t*>(p.q) + (u.row + row) * p.q_stride +
                       std::int64_t{head} * (kDims * 64) + chunk * 8;
#pragma unroll
    for (int d = 0; d < kDims; ++d) {
      copy_async(swizzled(to + d * (kTileLines * 128), line, chunk), from + d * 64, valid);
    }
  }
}

/// A row's bytes on their way into L2.
template <class Format>
__device__ inline void ask_for(const KeyPlace& k) {
  if (k.row == nullptr) return;
#pragma unroll
  for (int at = 0; at < Format::kRowBytes; at += 128) prefetch_l2(k.row + at);
  if (Format::kRowBytes % 128 != 0) prefetch_l2(k.row + Format::kRowBytes - 16);
}

/// The producer's four or eight warps take 8 rows of 32 or 64 keys each, four lanes a row, so that a
/// pair of tiles is four or two passes. A lane finds out where one of its warp's keys of a pair lies and hands it to
/// the four that need it. Two pairs ahead a key's name is loaded, a pair ahead its bytes are asked for
/// into L2, a pass ahead they are loaded into registers: there, a chunk is replaced by the next pass's
/// as soon as it has been stored. (A bf16 format's bytes go straight into shared memory; its consumers
/// fence for the products themselves.)
template <class Format, int kTileLines, int kBuffers, int kThreads = kFillThreads>
struct LatentFill {
  static constexpr int kRows = kThreads / 4;  // of a pass
  static constexpr int kPasses = kFillKeys / kRows;
  static constexpr int kDims = kDimTiles<Format>;
  static constexpr int kFp8 = Format::kFp8, kWide = Format::kWide;

  const LatentParams& p;
  const LatentShared& s;
  std::int32_t tile;
  int thread, warp, lane, part, row;
  uint4 fp8[kFp8 > 0 ? kFp8 : 1];
  uint4 wide[kFp8 > 0 && kWide > 0 ? 2 * kWide : 1];

  __device__ LatentFill(const LatentParams& params, const LatentShared& shared,
                        std::int32_t line_tile, int t)
      : p(params), s(shared), tile(line_tile), thread(t), warp(t / 32), lane(t % 32) {
    part = lane & 3;
    row = warp * 8 + (lane >> 2);
  }

  /// Stores tiles kTile and after of a pass and loads the next pass's instead: each load before the
  /// stores of what it replaces, so that it need not wait until these have read their registers.
  template <int kTile, int kEnd>
  __device__ void exchange(std::uint32_t to, uint2 scales, const std::byte* next) {
    if constexpr (kTile < kEnd) {
      const std::uint32_t at = to + kTile * kDimTileBytes;
      if constexpr (kTile < kFp8) {
        const std::uint32_t scale = Format::template scale_of<kTile>(scales);
        const uint4 v = fp8[kTile];
        std::uint32_t w[8];
        widen_e4m3(v.x, scale, w[0], w[1]);
        widen_e4m3(v.y, scale, w[2], w[3]);
        widen_e4m3(v.z, scale, w[4], w[5]);
        widen_e4m3(v.w, scale, w[6], w[7]);
        fp8[kTile] = load_stream(next + kTile * 64 + part * 16);
        store_shared(at + (((2 * part) ^ (row & 7)) << 4), w[0], w[1], w[2], w[3]);
        store_shared(at + (((2 * part + 1) ^ (row & 7)) << 4), w[4], w[5], w[6], w[7]);
      } else if constexpr (kFp8 == 0) {
        // Nothing to convert: straight to where it belongs. `next` is this pass's row.
        copy_async(at + ((part ^ (row & 7)) << 4), next + kTile * 128 + part * 16, true);
        copy_async(at + (((4 + part) ^ (row & 7)) << 4), next + kTile * 128 + 64 + part * 16, true);
      } else {
        constexpr int w = kTile - kFp8;
        const std::byte* from = next + Format::kWideAt + w * 128 + part * 16;
        const uint4 a = wide[2 * w], b = wide[2 * w + 1];
        wide[2 * w] = load_stream(from);
        wide[2 * w + 1] = load_stream(from + 64);
        store_shared(at + ((part ^ (row & 7)) << 4), a.x, a.y, a.z, a.w);
        store_shared(at + (((4 + part) ^ (row & 7)) << 4), b.x, b.y, b.z, b.w);
      }
      exchange<kTile + 1, kEnd>(to, scales, next);
    }
  }
  __device__ const std::byte* of_pass(const std::byte* rows, int pass) const {
    return reinterpret_cast<const std::byte*>(__shfl_sync(
        0xffffffffu, reinterpret_cast<unsigned long long>(rows), pass * 8 + (lane >> 2)));
  }
  __device__ uint2 of_pass(uint2 scales, int pass) const {
    const int from = pass * 8 + (lane >> 2);
    return {__shfl_sync(0xffffffffu, scales.x, from), __shfl_sync(0xffffffffu, scales.y, from)};
  }

  __device__ void run(std::int32_t worker) {
    LatentStream<kTileLines> ahead(p, worker, tile);
    if (!ahead.live) return;
    LatentItems items(p, worker);
    // With eight warps half of the lanes have no key of a pair.
    const int in_pair =
        (lane >> 3) < kPasses ? (lane >> 3) * kRows + warp * 8 + (lane & 7) : kFillKeys;
    const auto* zeros = reinterpret_cast<const std::byte*>(latent_zeros);
    const KeyPlace place = key_place<Format>(p, ahead.key(p, in_pair));
    std::uint32_t mask = __ballot_sync(0xffffffffu, place.row != nullptr);
    const std::byte* rows = place.row == nullptr ? zeros : place.row;
    typename Format::Scales loaded;
    loaded.load(rows, place.row == nullptr ? zeros : place.scales);
    uint2 scales = loaded.pack();
    ahead.advance(p, tile);
    bool more = ahead.live;  // the next pair
    KeyName name = ahead.key(p, in_pair);
    ahead.advance(p, tile);
    uint2 now = of_pass(scales, 0);
    if constexpr (kFp8 > 0) {
      const std::byte* from = of_pass(rows, 0);
#pragma unroll
      for (int i = 0; i < kFp8; ++i) fp8[i] = load_stream(from + i * 64 + part * 16);
#pragma unroll
      for (int i = 0; i < 2 * kWide; ++i) {
        wide[i] = load_stream(from + Format::kWideAt + i * 64 + part * 16);
      }
    }
    int buffer = 0, pairs = 0;
    std::uint32_t parity = 0, q_parity = 0;
    for (bool live = true; live;) {
      if (pairs == 0) {
        items.take<kTileLines>(p, tile);
        pairs = (items.item.count + kFillKeys - 1) / kFillKeys;
        barrier_wait(s.q_empty, q_parity ^ 1);
        copy_queries<kTileLines, kDims, kThreads>(p, items.unit, tile, s.q, thread);
        barrier_arrive_after_copies(s.q_full);
        q_parity ^= 1;
      }
      --pairs;
      const KeyPlace next_place = key_place<Format>(p, name);
      ask_for<Format>(next_place);
      live = more;
      more = ahead.live;
      name = ahead.key(p, in_pair);
      ahead.advance(p, tile);
      const std::uint32_t next_mask = __ballot_sync(0xffffffffu, next_place.row != nullptr);
      const std::byte* next_rows = next_place.row == nullptr ? zeros : next_place.row;
      loaded.load(next_rows, next_place.row == nullptr ? zeros : next_place.scales);
#pragma unroll 1
      for (int pass = 0; pass < kPasses; ++pass) {
        const int first = pass * kRows % kLatentTile;  // key of the tile
        const auto at =
            static_cast<std::uint32_t>(buffer * (kDims * kDimTileBytes) + (first + row) * 128);
        if (kFp8 > 0 && pass == kPasses - 1) rows = next_rows;
        const std::byte* next = of_pass(rows, kFp8 > 0 ? (pass + 1) % kPasses : pass);
        if (first == 0) barrier_wait(s.empty + 16 * buffer, parity ^ 1);
        if (lane == 0) {
          store_shared_u8(s.masks + 8 * buffer + first / 8 + warp, mask >> 8 * pass);
        }
        exchange<0, 4>(s.keys + at, now, next);
        if (first == 0) barrier_wait(s.empty + 16 * buffer + 8, parity ^ 1);
        exchange<4, kDims>(s.keys + at, now, next);
        if (pass == kPasses - 1) {
          loaded.arrive();
          scales = loaded.pack();
        }
        now = of_pass(scales, (pass + 1) % kPasses);
        if (first + kRows == kLatentTile) {
          if constexpr (kFp8 > 0) {
            fence_async_proxy();
            barrier_arrive(s.full + 8 * buffer);
          } else {
            barrier_arrive_after_copies(s.full + 8 * buffer);
          }
          if (++buffer == kBuffers) {
            buffer = 0;
            parity ^= 1;
          }
        }
      }
      mask = next_mask;
      if constexpr (kFp8 == 0) rows = next_rows;
    }
  }
};

}  // namespace lathe::cuda
