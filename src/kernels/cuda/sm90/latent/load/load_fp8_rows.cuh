// The producer of fp8 rows: one warp resolves slots, two copy rows as cached, one publishes work
// items and loads queries.
//
// Missing keys are masked; their rows are copies of another key of the tile, or zeros. Tiles are
// numbered through all work items of a block. Tile n is in buffer n % kBuffers, as that buffer's
// phase n / kBuffers.
#pragma once

#include "kernels/cuda/sm90/latent/load/resolve_slots.cuh"
#include "kernels/cuda/sm90/latent/math/fp8_operands.cuh"
#include "kernels/cuda/sm90/latent/schedule/publish_work.cuh"

namespace lathe::cuda {

/// Addresses in a ring of tiles: buffers are kTileBytes apart, barriers and masks 8 bytes. The
/// halves of a buffer are freed separately and have one `empty` barrier each.
template <class Format, int kCount>
struct LatentRing {
  static constexpr unsigned kBuffers = kCount;
  // Arrivals at `full`: two warps, and one more of each for announcing bytes.
  static constexpr int kFullArrivals = 2 * 33;

  std::uint32_t first_keys, first_full, first_empty, first_mask;
  LatentRowAddresses<Format> addresses;

  __device__ static std::uint32_t buffer(unsigned n) { return n % kBuffers; }
  __device__ static std::uint32_t parity(unsigned n) { return n / kBuffers & 1; }
  __device__ std::uint32_t keys(unsigned n) const {
    return first_keys + buffer(n) * LatentRows<Format>::kTileBytes;
  }
  __device__ std::uint32_t full(unsigned n) const { return first_full + 8 * buffer(n); }
  /// For rows 32 half to 32 half + 31.
  __device__ std::uint32_t empty(unsigned n, int half) const {
    return first_empty + 16 * buffer(n) + 8 * static_cast<std::uint32_t>(half);
  }
  __device__ std::uint32_t mask(unsigned n) const { return first_mask + 8 * buffer(n); }
  /// Call from one thread, before anyone waits.
  __device__ void init(int empty_arrivals) const {
    for (unsigned b = 0; b < kBuffers; ++b) {
      barrier_init(full(b), kFullArrivals);
      barrier_init(empty(b, 0), empty_arrivals);
      barrier_init(empty(b, 1), empty_arrivals);
    }
    addresses.init();
  }
};

/// One of two warps, which bulk-copies 32 rows of each tile, one per lane. A row is one request to
/// L2; copies of 16 bytes per lane would request sectors twice. once: L2 need not keep the rows.
/// window: most tiles in flight or in use.
template <class Format, class Ring>
__device__ inline void copy_rows(const Ring& ring, bool once, unsigned window, int warp, int lane) {
  constexpr std::uint64_t kEnd = LatentRowAddresses<Format>::kEnd;
  const std::uint64_t policy = cache_policy(once);
  const int own = warp * 32 + lane;
  const auto at = [](std::uint64_t address) { return reinterpret_cast<const std::byte*>(address); };
  LATHE_ROLLED
  for (unsigned n = 0;; ++n) {
    barrier_wait(ring.addresses.resolved(n), ring.addresses.parity(n));
    const std::uint32_t addresses = ring.addresses.rows(n);
    std::uint64_t row = load_shared_u64(addresses + static_cast<std::uint32_t>(8 * own));
    std::uint64_t scales = 0;
    if constexpr (Format::kScalesApart) {
      scales = load_shared_u64(addresses + static_cast<std::uint32_t>(8 * (kLatentTile + own)));
    }
    const std::uint32_t mask = warp_ballot(row != 0);
    if (mask != ~0u && mask != 0) {
      // In place of a missing row, copy one that is there.
      const auto from = static_cast<std::uint32_t>(count_bits(mask ^ (mask - 1)) - 1);
      const std::uint64_t other = shuffle(row, from);
      if constexpr (Format::kScalesApart) {
        const std::uint64_t its = shuffle(scales, from);
        if (row == 0) scales = its;
      }
      if (row == 0) {
        row = other;
        store_shared_u64(addresses + static_cast<std::uint32_t>(8 * own), row);
      }
      sync_warp();
    }
    const std::uint32_t full = ring.full(n);
    const std::uint32_t to = ring.keys(n) + static_cast<std::uint32_t>(own * Format::kPitch);
    if (row != kEnd) {
      barrier_wait(ring.empty(n, warp), Ring::parity(n) ^ 1);
      if (window < Ring::kBuffers && n >= window) {
        barrier_wait(ring.empty(n - window, warp), Ring::parity(n - window));
      }
    }
    if (mask != 0 && row != kEnd) {
      if (elected()) {
        store_shared_u32(ring.mask(n) + static_cast<std::uint32_t>(4 * warp), mask);
        barrier_expect(full, 32 * Format::kRowBytes);
        LATHE_UNROLL
        for (int r = 0; r < 32; r += 2) {
          const uint4 v =
              load_shared_u128(addresses + static_cast<std::uint32_t>(8 * (warp * 32 + r)));
          const std::uint32_t place =
              ring.keys(n) + static_cast<std::uint32_t>((warp * 32 + r) * Format::kPitch);
          copy_row(place, at(v.x | std::uint64_t{v.y} << 32), Format::kRowBytes, full, policy);
          copy_row(place + Format::kPitch, at(v.z | std::uint64_t{v.w} << 32), Format::kRowBytes,
                   full, policy);
        }
      }
      sync_warp();
    }
    barrier_arrive(ring.addresses.consumed(n));
    if (row == kEnd) return;
    if (mask == 0) {
      // All keys are missing. Write zeros rather than copy: else all SMs would read the same row.
      LATHE_ROLLED
      for (std::uint32_t i = 0; i < Format::kPitch; i += 16) store_shared(to + i, 0, 0, 0, 0);
      fence_async_proxy();
      if (lane == 0) {
        store_shared_u32(ring.mask(n) + static_cast<std::uint32_t>(4 * warp), 0);
        barrier_expect(full, 0);
      }
      sync_warp();
    }
    if constexpr (Format::kScalesApart) {
      if (row != 0) copy_async_8(to + Format::kRowBytes, at(scales));
      barrier_arrive_after_copies(full);
    } else {
      barrier_arrive(full);
    }
  }
}

}  // namespace lathe::cuda
