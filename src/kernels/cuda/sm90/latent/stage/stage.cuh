// Stages fp8 pages: pages that the lists of many rows share are decoded to bf16 rows once before
// the attention.
//
// In a prefill many rows read the same key, and each would convert it (m64_fp8.cuh). Here lists
// mark their pages, one block numbers the marked pages, then each page is decoded to its place and
// the lists are rewritten to point to decoded rows. The bf16 kernels read both. Resolving pages in
// those kernels instead costs 8 %, probably because all SMs read the same few cache lines of L2.
#pragma once

#include "kernels/cuda/common/scan.cuh"
#include "kernels/cuda/sm90/latent/load/row_format.cuh"
#include "kernels/cuda/sm90/latent/schedule/work_tile.cuh"
#include "kernels/cuda/sm90/latent/stage/stage.h"

namespace lathe::cuda {

inline constexpr int kStageThreads = 512, kPlaceThreads = 1024;

/// The page of entry `value` of a row's list, or -1.
__device__ inline std::int32_t listed_page(const LatentSource& s, const LatentWorkTile& u,
                                           std::int32_t value) {
  if (value < 0) return -1;
  auto page = static_cast<std::int32_t>(s.page_size(static_cast<std::uint32_t>(value)));
  if (s.table != nullptr) {
    if (value >= u.limit || page >= s.table_width) return -1;
    page = s.table[std::int64_t{u.request} * s.table_width + page];
  }
  return page < s.pages_count ? page : -1;
}

/// Calls each(work tile, entry) for all valid entries of a source's lists, over the grid's x, and
/// stores the results in `to` if it is not null. A warp processes kPart entries of a row at a time,
/// four neighbours per lane. kLast: the entries are not read again.
template <bool kLast, class Each>
__device__ __forceinline__ void each_entry(const LatentParams& p, bool extra, std::int32_t* to,
                                           const Each& each) {
  const LatentSource& s = extra ? p.extra : p.main;
  constexpr std::int32_t kAtOnce = 4, kPart = kAtOnce * 128;
  constexpr std::uint32_t kWarps = kStageThreads / 32;
  const auto parts = static_cast<std::uint32_t>((s.width + kPart - 1) / kPart);
  const std::uint32_t all = static_cast<std::uint32_t>(p.work_tiles) * parts;
  const bool aligned = s.width % 4 == 0 && reinterpret_cast<std::uintptr_t>(s.indices) % 16 == 0;
  const std::int32_t lane = static_cast<std::int32_t>(threadIdx.x % 32) * 4;
  for (std::uint32_t n = blockIdx.x * kWarps + threadIdx.x / 32; n < all; n += gridDim.x * kWarps) {
    const auto row = static_cast<std::int32_t>(n / parts);
    const LatentWorkTile u = find_work_tile(p, row);
    const std::int32_t count = extra ? u.extra : u.keys;
    const std::int64_t list = std::int64_t{row} * s.width;
    const std::int32_t first = static_cast<std::int32_t>(n % parts) * kPart + lane;
    std::int32_t values[kAtOnce][4];
    LATHE_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      const std::int32_t at = first + k * 128;
      const std::int32_t* from = s.indices + list + at;
      if (aligned && at + 3 < count) {
        const auto* four = reinterpret_cast<const uint4*>(from);
        const uint4 v = kLast ? load_once(four) : *four;
        values[k][0] = static_cast<std::int32_t>(v.x);
        values[k][1] = static_cast<std::int32_t>(v.y);
        values[k][2] = static_cast<std::int32_t>(v.z);
        values[k][3] = static_cast<std::int32_t>(v.w);
      } else {
        LATHE_UNROLL
        for (int i = 0; i < 4; ++i) values[k][i] = at + i < count ? from[i] : -1;
      }
    }
    LATHE_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      const std::int32_t at = first + k * 128;
      if (at >= count) break;
      LATHE_UNROLL
      for (int i = 0; i < 4; ++i) values[k][i] = each(u, values[k][i]);
      if (to == nullptr) continue;
      std::int32_t* there = to + list + at;
      const auto bits = [&](int i) { return static_cast<std::uint32_t>(values[k][i]); };
      if (aligned && at + 3 < count) {
        *reinterpret_cast<uint4*>(there) = {bits(0), bits(1), bits(2), bits(3)};
      } else {
        LATHE_UNROLL
        for (int i = 0; i < 4; ++i) {
          if (at + i < count) there[i] = values[k][i];
        }
      }
    }
  }
}

/// Grid: any number of blocks, x sources; shared memory: a byte per page of the larger pool. Sets
/// the marks of listed pages; they must be 0 before.
static __global__ void __launch_bounds__(kStageThreads, 3)
    latent_mark_kernel(const __grid_constant__ LatentParams p,
                       const __grid_constant__ LatentStageArrays stages) {
  LATHE_DYNAMIC_SHARED(shared_bytes);
  const std::uint32_t seen = shared_address(shared_bytes);
  const LatentStageArray& stage = stages.of[blockIdx.y];
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  for (std::int32_t i = 4 * thread; i < stage.pages; i += 4 * kStageThreads) {
    store_shared_u32(seen + static_cast<std::uint32_t>(i), 0);
  }
  let_next_begin();
  sync_block();
  const LatentSource& s = blockIdx.y == 0 ? p.main : p.extra;
  each_entry<false>(p, blockIdx.y > 0, nullptr, [&](const LatentWorkTile& u, std::int32_t value) {
    const std::int32_t page = listed_page(s, u, value);
    if (page >= 0) store_shared_u8(seen + static_cast<std::uint32_t>(page), 1);
    return value;
  });
  sync_block();
  for (std::int32_t i = thread; i < stage.pages; i += kStageThreads) {
    if (load_shared_u8(seen + static_cast<std::uint32_t>(i)) != 0) stage.marks[i] = 1;
  }
}

// The kernels below, and the attention, are launched before the previous kernel has finished, and
// wait for it.

/// Grid: a block per source. Numbers marked pages in their order.
static __global__ void __launch_bounds__(kPlaceThreads)
    latent_place_kernel(const __grid_constant__ LatentStageArrays stages) {
  __shared__ ScanShared<int> shared;
  const LatentStageArray& s = stages.of[blockIdx.x];
  let_next_begin();
  wait_for_previous();
  const std::int32_t each = (s.pages + kPlaceThreads - 1) / kPlaceThreads;
  const std::int32_t first = static_cast<std::int32_t>(threadIdx.x) * each;
  const std::int32_t end = first + each < s.pages ? first + each : s.pages;
  int mine = 0, all = 0;
  for (std::int32_t page = first; page < end; ++page) mine += s.marks[page];
  std::int32_t place = block_prefix(mine, shared, all);
  for (std::int32_t page = first; page < end; ++page) {
    if (s.marks[page] == 0) continue;
    s.places[page] = static_cast<std::uint16_t>(place);
    if (place < s.room) s.list[place] = page;
    ++place;
  }
  if (threadIdx.x != 0) return;
  *s.count = all;
  if (all > s.room) *stages.overflow = 1;
}

/// A token's row in a warp's registers: loaded, and stored as bf16, in whole sectors.
template <class Format>
struct TokenRow {
  static constexpr int kChunks = Format::kFp8 * 8;  // of 8 codes
  static constexpr int kEach = (kChunks + 31) / 32;

  uint2 codes[kEach];
  float scale[kEach];
  uint4 wide;

  __device__ __forceinline__ void load(const std::byte* row, const std::byte* scales, int lane) {
    LATHE_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const int chunk = lane + 32 * i;
      if (chunk >= kChunks) break;
      codes[i] = load_once(reinterpret_cast<const uint2*>(row + chunk * 8));
      if constexpr (Format::kScales > 0) {
        const int which = chunk / (8 * Format::kScaleTiles);
        if constexpr (Format::kScalesApart) {
          scale[i] = bits_to_float(static_cast<std::uint32_t>(scales[which]) << 23);
        } else {
          scale[i] = *reinterpret_cast<const float*>(row + kChunks * 8 + which * 4);
        }
      } else {
        scale[i] = 1;
      }
    }
    if (lane < Format::kWide * 8) {
      wide = load_once(reinterpret_cast<const uint4*>(row + Format::kWideAt) + lane);
    }
  }
  __device__ __forceinline__ void store(std::byte* out, int lane) const {
    LATHE_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const int chunk = lane + 32 * i;
      if (chunk >= kChunks) break;
      const auto widen = [&](std::uint32_t two) {
        float a, b;
        convert_from_e4m3x2(two, a, b);
        return convert_bf16x2(a * scale[i], b * scale[i]);
      };
      reinterpret_cast<uint4*>(out)[chunk] = {widen(codes[i].x), widen(codes[i].x >> 16),
                                              widen(codes[i].y), widen(codes[i].y >> 16)};
    }
    if (lane < Format::kWide * 8) reinterpret_cast<uint4*>(out + kChunks * 16)[lane] = wide;
  }
};

/// Grid: any number of blocks, x sources; shared memory: two bytes per page of the larger pool.
/// Rewrites lists to decoded rows and decodes pages, one token per warp at a time.
template <class Format>
static __global__ void __launch_bounds__(kStageThreads, 2)
    latent_decode_kernel(const __grid_constant__ LatentParams p,
                         const __grid_constant__ LatentStageArrays stages) {
  LATHE_DYNAMIC_SHARED(shared_bytes);
  const std::uint32_t places = shared_address(shared_bytes);
  const LatentSource& s = blockIdx.y == 0 ? p.main : p.extra;
  const LatentStageArray& stage = stages.of[blockIdx.y];
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  let_next_begin();
  wait_for_previous();
  if (*stages.overflow != 0) return;
  for (std::int32_t i = thread; i < stage.pages; i += kStageThreads) {
    store_shared_u16(places + static_cast<std::uint32_t>(2 * i), stage.places[i]);
  }
  sync_block();
  const auto page_tokens = static_cast<std::int32_t>(s.page_size.divisor);
  const auto row_of = [&](const LatentWorkTile& u, std::int32_t value) {
    const std::int32_t page = listed_page(s, u, value);
    if (page < 0) return -1;
    const std::uint32_t place = load_shared_u16(places + static_cast<std::uint32_t>(2 * page));
    const std::uint32_t in_list = s.page_size(static_cast<std::uint32_t>(value));
    return value + static_cast<std::int32_t>(place - in_list) * page_tokens;
  };
  each_entry<true>(p, blockIdx.y > 0, stage.lists, row_of);
  constexpr std::int32_t kAtOnce = 2, kWarps = kStageThreads / 32;
  const std::int32_t tokens = *stage.count * page_tokens;
  const std::int32_t step = static_cast<std::int32_t>(gridDim.x) * kWarps;
  for (std::int32_t first = static_cast<std::int32_t>(blockIdx.x) * kWarps + thread / 32;
       first < tokens; first += kAtOnce * step) {
    TokenRow<Format> rows[kAtOnce];
    LATHE_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      const std::int32_t token = first + i * step;
      if (token >= tokens) break;
      const auto place = static_cast<std::int32_t>(s.page_size(static_cast<std::uint32_t>(token)));
      const std::int32_t offset = token - place * page_tokens;
      const std::byte* page = s.pages + stage.list[place] * s.page_stride;
      rows[i].load(page + offset * Format::kRowBytes, page + s.scales + offset * 8, thread % 32);
    }
    LATHE_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      const std::int32_t token = first + i * step;
      if (token >= tokens) break;
      rows[i].store(stage.rows + std::int64_t{token} * (kDimTiles<Format> * 128), thread % 32);
    }
  }
}

}  // namespace lathe::cuda
