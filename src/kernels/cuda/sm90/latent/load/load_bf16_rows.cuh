// The producer of listed bf16 rows: one warp resolves slots, two copy rows to swizzled tiles, one
// publishes work items and loads queries.
//
// Tiles of keys are numbered through all work items of a block. Tile n is in buffer n % 2. The two
// halves of a buffer's values are freed, loaded and awaited separately: half 0 is dimensions 0 to
// 255, half 1 the rest. RoPE is loaded with the half that is loaded last, because the reader of
// that half also reads P from RoPE's tile (m64_bf16.cuh). Missing keys are masked; their rows are
// copies of another key of the tile, or zeros.
#pragma once

#include "kernels/cuda/sm90/latent/load/resolve_slots.cuh"
#include "kernels/cuda/sm90/latent/schedule/publish_work.cuh"

namespace lathe::cuda {

/// Arrivals for the half that is loaded first, which also cover the mask, and for the other half.
inline constexpr int kFirstHalfArrivals = 2 * 33, kSecondHalfArrivals = 2 * 32;

/// One of two warps, which copies 32 rows of each tile. Eight lanes copy 128 bytes of a row, so
/// that loads are whole cache lines and stores to shared memory have no bank conflicts.
template <class Format>
struct RowCopy {
  static constexpr int kDims = kDimTiles<Format>;
  static constexpr int kRows = 8;  // per lane, four apart
  static constexpr std::uint64_t kEnd = LatentRowAddresses<Format>::kEnd;
  static_assert(LatentRowAddresses<Format>::kBytes <= LatentShared::kAddressBytes);

  const LatentShared& s;
  int warp, lane;
  std::uint32_t place[2];  // offset in the first tile, for even and odd i
  const std::byte* from[kRows];
  std::uint32_t mask = 0;  // which of the warp's rows are there

  __device__ RowCopy(const LatentShared& shared, int w, int l)
      : s(shared),
        warp(w),
        lane(l),
        place{swizzled(s.keys, row(0), l & 7), swizzled(s.keys, row(1), l & 7) - 512} {}

  __device__ int row(int i) const { return warp * 32 + 4 * i + lane / 8; }

  /// Copies `tiles` x 64 dimensions, beginning with `dims`, to the buffer at `to`.
  __device__ __forceinline__ void copy(std::uint32_t to, int dims, int tiles) const {
    const auto each = [&](int t, const auto& copy_16) {
      LATHE_UNROLL
      for (int i = 0; i < kRows; ++i) {
        copy_16(
            place[i & 1] + to + static_cast<std::uint32_t>((dims + t) * kDimTileBytes + i * 512),
            from[i] + (lane & 7) * 16 + (dims + t) * 128, from[i] != nullptr);
      }
    };
    if (mask != 0) {
      LATHE_UNROLL
      for (int t = 0; t < tiles; ++t) {
        each(t, [](std::uint32_t at, const std::byte* row, bool) { copy_async_256(at, row); });
      }
    } else {
      LATHE_ROLLED
      for (int t = 0; t < tiles; ++t) {
        each(t, [](std::uint32_t at, const std::byte* row, bool any) { copy_async(at, row, any); });
      }
    }
  }

  __device__ void run(const LatentRowAddresses<Format>& addresses) {
    LATHE_ROLLED
    for (unsigned n = 0;; ++n) {
      barrier_wait(addresses.resolved(n), addresses.parity(n));
      const auto address = [&](int key) {
        return load_shared_u64(addresses.rows(n) + static_cast<std::uint32_t>(8 * key));
      };
      const std::uint64_t own = address(warp * 32 + lane);
      if (own == kEnd) return;
      mask = warp_ballot(own != 0);
      // In place of a missing row, copy one that is there.
      const std::uint64_t other =
          shuffle(own, static_cast<std::uint32_t>(count_bits(mask ^ (mask - 1)) - 1));
      LATHE_UNROLL
      for (int i = 0; i < kRows; ++i) {
        const std::uint64_t at = address(row(i));
        from[i] = reinterpret_cast<const std::byte*>(at != 0 ? at : other);
      }
      barrier_arrive(addresses.consumed(n));
      const int buffer = static_cast<int>(n & 1);
      const auto to = static_cast<std::uint32_t>(buffer * (kDims * kDimTileBytes));
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int half = i ^ buffer;
        const auto at = static_cast<std::uint32_t>(16 * buffer + 8 * half);
        barrier_wait(s.empty + at, (n / 2 & 1) ^ 1);
        if (i == 0 && lane == 0) {
          store_shared_u32(s.masks + n / 2 % LatentShared::kSlots * (kPairKeys / 8) +
                               static_cast<std::uint32_t>(8 * buffer + 4 * warp),
                           mask);
          barrier_arrive(s.full + at);
        }
        copy(to, half * 4, 4);
        if (i == 1 && kDims == 9) copy(to, 8, 1);
        barrier_arrive_after_copies(s.full + at);
      }
    }
  }
};

}  // namespace lathe::cuda
