// The producer: a warpgroup that brings queries and keys into shared memory as bf16 tiles.
//
// A tile of 64 keys is 8 KB for each 64 dimensions, rows of 128 bytes, swizzled as matrix products
// want them. Keys that are none become zeros and lose their bit in the tile's mask.
#pragma once

#include "kernels/cuda/sm90/latent/latent_format.cuh"

namespace lathe::cuda {

inline constexpr int kDimTileBytes = kLatentTile * 128;
inline constexpr int kFillKeys = 2 * kLatentTile;  // an item is filled up to pairs of tiles

__device__ uint4 latent_zeros[128];  // 2 KB: a row of zeros

/// Byte address of 16-byte chunk `chunk` of a row of a swizzled tile.
__device__ inline std::uint32_t swizzled(std::uint32_t tile, int row, int chunk) {
  return tile + static_cast<std::uint32_t>(row * 128 + ((chunk ^ (row & 7)) << 4));
}

/// Where a role's shared memory lies.
struct LatentShared {
  std::uint32_t q;      // [kDimTiles] tiles of lines
  std::uint32_t keys;   // [buffers][kDimTiles] tiles
  std::uint32_t masks;  // [buffers] 64 bits
  std::uint32_t q_full, q_empty;
  std::uint32_t full, empty;  // [buffers]
};

/// Places in the stream of half tiles (32 keys) that a worker's items make.
template <int kTileLines>
struct LatentStream {
  LatentItems items;
  std::int32_t at = 0, end = 0;
  bool live = false;

  __device__ LatentStream(const LatentParams& p, std::int32_t worker, std::int32_t tile)
      : items(p, worker) {
    open(p, tile);
  }
  __device__ void open(const LatentParams& p, std::int32_t tile) {
    live = items.take<kTileLines>(p, tile);
    at = items.item.first;
    end = items.item.first + (items.item.count + kFillKeys - 1) / kFillKeys * kFillKeys;
  }
  __device__ void advance(const LatentParams& p, std::int32_t tile) {
    at += 32;
    if (at >= end) open(p, tile);
  }
  __device__ KeyPlace key(const LatentParams& p, int row) const {
    const std::int32_t index = at + row;
    if (!live || index >= items.item.first + items.item.count) return {};
    return key_place(p, items.unit, index);
  }
};

/// Copies the lines of a unit's tile, [kTileLines, kDimTiles * 64] bf16; lines beyond the unit's are
/// zeros. 128 threads.
template <int kTileLines, int kDims>
__device__ inline void copy_queries(const LatentParams& p, const LatentUnitPlace& u,
                                    std::int32_t tile, std::uint32_t to, int thread) {
  const int chunk = thread & 7;
#pragma unroll 1
  for (int line = thread >> 3; line < kTileLines; line += 16) {
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

/// Sets the 8 bits of a warp's 8 rows, `rows` with a bit for each fourth lane.
__device__ inline std::uint32_t every_fourth_bit(std::uint32_t ballot) {
  std::uint32_t b = ballot & 0x11111111u;
  b = (b | b >> 3) & 0x03030303u;
  b = (b | b >> 6) & 0x000f000fu;
  return (b | b >> 12) & 0xffu;
}

/// Decoded tiles of an fp8 format. Loads run one half tile ahead of the conversions, in registers:
/// each chunk is converted and at once replaced by the next half's.
template <class Format, int kTileLines, int kBuffers>
struct Fp8Fill {
  static constexpr int kDims = kDimTiles<Format>;
  static constexpr int kWideChunks = 2 * Format::kWide;

  const LatentParams& p;
  const LatentShared& s;
  std::int32_t tile;
  int thread, warp, lane, part, row;
  uint4 bytes[Format::kFp8];
  uint4 wide[kWideChunks > 0 ? kWideChunks : 1];
  Format scales;
  bool valid = false;

  template <int kStep>
  __device__ void convert(std::uint32_t to, const Format& now) {
    if constexpr (kStep < Format::kFp8) {
      const std::uint32_t scale = now.template scale_of<kStep>();
      const uint4 v = bytes[kStep];
      std::uint32_t w[8];
      widen_e4m3(v.x, scale, w[0], w[1]);
      widen_e4m3(v.y, scale, w[2], w[3]);
      widen_e4m3(v.z, scale, w[4], w[5]);
      widen_e4m3(v.w, scale, w[6], w[7]);
      const std::uint32_t at = to + kStep * kDimTileBytes;
      store_shared(at + (((2 * part) ^ (row & 7)) << 4), w[0], w[1], w[2], w[3]);
      store_shared(at + (((2 * part + 1) ^ (row & 7)) << 4), w[4], w[5], w[6], w[7]);
    }
  }
  template <int kStep>
  __device__ void step(std::uint32_t to, const Format& now, const std::byte* next) {
    if constexpr (kStep < Format::kFp8) {
      convert<kStep>(to, now);
      bytes[kStep] = load_stream(next + kStep * 64 + part * 16);
      step<kStep + 1>(to, now, next);
    }
  }

  __device__ const std::byte* row_bytes(KeyPlace k) const {
    return k.page == nullptr ? reinterpret_cast<const std::byte*>(latent_zeros)
                             : k.page + k.offset * Format::kRowBytes;
  }
  __device__ void load_scales(const std::byte* from, KeyPlace k) {
    const std::int64_t at = k.second ? p.extra.scales : p.main.scales;
    scales.load_scales(from, k.page == nullptr ? from : k.page + at + k.offset * 8);
  }

  __device__ Fp8Fill(const LatentParams& params, const LatentShared& shared, std::int32_t line_tile,
                     int t)
      : p(params), s(shared), tile(line_tile), thread(t), warp(t / 32), lane(t % 32) {
    part = lane & 3;
    row = warp * 8 + (lane >> 2);
  }

  __device__ void run(std::int32_t worker) {
    LatentStream<kTileLines> ahead(p, worker, tile), here(p, worker, tile);
    if (!here.live) return;
    const KeyPlace first = ahead.key(p, row);
    valid = first.page != nullptr;
    {
      const std::byte* from = row_bytes(first);
#pragma unroll
      for (int i = 0; i < Format::kFp8; ++i) bytes[i] = load_stream(from + i * 64 + part * 16);
#pragma unroll
      for (int i = 0; i < kWideChunks; ++i) {
        wide[i] = load_stream(from + Format::kWideAt + i * 64 + part * 16);
      }
      load_scales(from, first);
    }
    ahead.advance(p, tile);
    KeyPlace place = ahead.key(p, row);
    int buffer = 0;
    std::uint32_t parity = 0, q_parity = 0;
    while (here.live) {
      if (here.at == here.items.item.first) {
        barrier_wait(s.q_empty, q_parity ^ 1);
        copy_queries<kTileLines, kDims>(p, here.items.unit, tile, s.q, thread);
        barrier_arrive_after_copies(s.q_full);
        q_parity ^= 1;
      }
#pragma unroll 1
      for (int half = 0; half < 2; ++half) {
        if (half == 0) barrier_wait(s.empty + 8 * buffer, parity ^ 1);
        // What the half after the next reads is asked for before this one's work.
        const std::byte* next = row_bytes(place);
        const KeyPlace next_place = place;
        const bool now_valid = valid;
        const Format now = scales;
        valid = next_place.page != nullptr;
        if (ahead.live) ahead.advance(p, tile);
        place = ahead.key(p, row);
        load_scales(next, next_place);
        const std::uint32_t mask = every_fourth_bit(__ballot_sync(0xffffffffu, now_valid));
        if (lane == 0) {
          asm volatile("st.shared.u8 [%0], %1;" ::"r"(s.masks + 8 * buffer + half * 4 + warp),
                       "r"(mask)
                       : "memory");
        }
        const std::uint32_t base = s.keys + buffer * (kDims * kDimTileBytes);
        const std::uint32_t to = base + (half * 32 + row) * 128;
        step<0>(to, now, next);
#pragma unroll
        for (int i = 0; i < kWideChunks; ++i) {
          const uint4 v = wide[i];
          const int t = Format::kFp8 + i / 2;
          store_shared(to + t * kDimTileBytes + ((((i & 1) * 4 + part) ^ (row & 7)) << 4), v.x, v.y,
                       v.z, v.w);
          wide[i] = load_stream(next + Format::kWideAt + i * 64 + part * 16);
        }
        here.advance(p, tile);
      }
      fence_async_proxy();
      barrier_arrive(s.full + 8 * buffer);
      if (++buffer == kBuffers) {
        buffer = 0;
        parity ^= 1;
      }
    }
  }
};

/// Tiles of a bf16 format, copied as they are.
template <class Format, int kTileLines, int kBuffers>
struct Bf16Fill {
  static constexpr int kDims = kDimTiles<Format>;
  const LatentParams& p;
  const LatentShared& s;
  std::int32_t tile;
  int thread;

  __device__ Bf16Fill(const LatentParams& params, const LatentShared& shared,
                      std::int32_t line_tile, int t)
      : p(params), s(shared), tile(line_tile), thread(t) {}

  __device__ void run(std::int32_t worker) {
    LatentStream<kTileLines> here(p, worker, tile);
    const int warp = thread / 32, lane = thread % 32;
    const int chunk = lane & 7;
    int buffer = 0;
    std::uint32_t parity = 0, q_parity = 0;
    while (here.live) {
      if (here.at == here.items.item.first) {
        barrier_wait(s.q_empty, q_parity ^ 1);
        copy_queries<kTileLines, kDims>(p, here.items.unit, tile, s.q, thread);
        barrier_arrive_after_copies(s.q_full);
        q_parity ^= 1;
      }
      const std::byte* from[4];
      std::uint32_t mask = 0;
      bool valid[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = warp * 16 + i * 4 + (lane >> 3);
        const KeyPlace k = here.key(p, r);
        valid[i] = k.page != nullptr;
        from[i] = valid[i] ? k.page + k.offset * Format::kRowBytes + chunk * 16
                           : reinterpret_cast<const std::byte*>(latent_zeros);
        const std::uint32_t b = __ballot_sync(0xffffffffu, valid[i]) & 0x01010101u;
        mask |= ((b | b >> 7 | b >> 14 | b >> 21) & 0xfu) << 4 * i;
      }
      barrier_wait(s.empty + 8 * buffer, parity ^ 1);
      if (lane == 0) {
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(s.masks + 8 * buffer + 2 * warp),
                     "h"(static_cast<std::uint16_t>(mask))
                     : "memory");
      }
      const std::uint32_t base = s.keys + buffer * (kDims * kDimTileBytes);
#pragma unroll
      for (int d = 0; d < kDims; ++d) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int r = warp * 16 + i * 4 + (lane >> 3);
          copy_async(swizzled(base + d * kDimTileBytes, r, chunk), from[i] + d * 128, valid[i]);
        }
      }
      copy_async_commit();
      copy_async_wait<0>();
      fence_async_proxy();
      barrier_arrive(s.full + 8 * buffer);
      if (++buffer == kBuffers) {
        buffer = 0;
        parity ^= 1;
      }
      here.advance(p, tile);
      here.advance(p, tile);
    }
  }
};

template <class Format, int kTileLines, int kBuffers>
using LatentFill = std::conditional_t<(Format::kFp8 > 0), Fp8Fill<Format, kTileLines, kBuffers>,
                                      Bf16Fill<Format, kTileLines, kBuffers>>;

}  // namespace lathe::cuda
