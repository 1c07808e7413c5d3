// The producer of fp8 rows: one warp finds out where keys lie, two copy their rows as they lie in the cache, one
// tells items and brings queries.
//
// Rows of keys that are none become zeros and lose their bit in the tile's mask. Tiles are numbered through all
// items of a block; number n is in buffer n % kBuffers, and of that buffer's phases it is phase n / kBuffers.
#pragma once

#include "kernels/cuda/sm90/latent/load/resolve_slots.cuh"
#include "kernels/cuda/sm90/latent/math/fp8_operands.cuh"
#include "kernels/cuda/sm90/latent/schedule/publish_work.cuh"

namespace lathe::cuda {

/// Where a ring of tiles lies: base addresses, of buffers kTileBytes apart, of barriers and masks 8 bytes; the
/// halves of a buffer are freed by themselves, each with an `empty`.
template <class Format, int kCount>
struct LatentRing {
  static constexpr unsigned kBuffers = kCount;
  // Of a buffer's `full`: two warps, and those of them who announce bytes.
  static constexpr int kFullArrivals = 2 * 33;

  std::uint32_t first_keys, first_full, first_empty, first_mask;
  LatentNames<Format> names;

  __device__ static std::uint32_t buffer(unsigned n) { return n % kBuffers; }
  __device__ static std::uint32_t parity(unsigned n) { return n / kBuffers & 1; }
  __device__ std::uint32_t keys(unsigned n) const {
    return first_keys + buffer(n) * LatentRows<Format>::kTileBytes;
  }
  __device__ std::uint32_t full(unsigned n) const { return first_full + 8 * buffer(n); }
  /// Of the buffer's rows 32 half on.
  __device__ std::uint32_t empty(unsigned n, int half) const {
    return first_empty + 16 * buffer(n) + 8 * static_cast<std::uint32_t>(half);
  }
  __device__ std::uint32_t mask(unsigned n) const { return first_mask + 8 * buffer(n); }
  /// By one thread, before anybody waits.
  __device__ void init(int empty_arrivals) const {
    for (unsigned b = 0; b < kBuffers; ++b) {
      barrier_init(full(b), kFullArrivals);
      barrier_init(empty(b, 0), empty_arrivals);
      barrier_init(empty(b, 1), empty_arrivals);
    }
    names.init();
  }
};

/// One of two warps, which has the copy engine bring 32 rows of each tile, a lane one: it asks memory for whole
/// rows, where copies of 16 bytes by lanes ask twice for what lies across the parts that L2 is read in. once: L2 need
/// not keep them. window: tiles that may be under way or in use.
template <class Format, class Ring>
__device__ inline void copy_rows(const Ring& ring, bool once, unsigned window, int warp, int lane) {
  constexpr std::uint64_t kEnd = LatentNames<Format>::kEnd;
  const std::uint64_t policy = cache_policy(once);
  const int own = warp * 32 + lane;
  const auto at = [](std::uint64_t address) { return reinterpret_cast<const std::byte*>(address); };
  LATHE_ROLLED
  for (unsigned n = 0;; ++n) {
    barrier_wait(ring.names.named(n), ring.names.parity(n));
    const std::uint32_t names = ring.names.rows(n);
    const std::uint64_t row = load_shared_u64(names + static_cast<std::uint32_t>(8 * own));
    std::uint64_t scales = 0;
    if constexpr (Format::kScalesApart) {
      scales = load_shared_u64(names + static_cast<std::uint32_t>(8 * (kLatentTile + own)));
    }
    const std::uint32_t mask = warp_ballot(row != 0);
    const std::uint32_t full = ring.full(n);
    const std::uint32_t to = ring.keys(n) + static_cast<std::uint32_t>(own * Format::kPitch);
    if (row != kEnd) {
      barrier_wait(ring.empty(n, warp), Ring::parity(n) ^ 1);
      if (window < Ring::kBuffers && n >= window) {
        barrier_wait(ring.empty(n - window, warp), Ring::parity(n - window));
      }
    }
    if (mask == ~0u && row != kEnd) {
      if (elected()) {
        store_shared_u32(ring.mask(n) + static_cast<std::uint32_t>(4 * warp), mask);
        barrier_expect(full, 32 * Format::kRowBytes);
        LATHE_UNROLL
        for (int r = 0; r < 32; r += 2) {
          const uint4 v = load_shared_u128(names + static_cast<std::uint32_t>(8 * (warp * 32 + r)));
          const std::uint32_t place =
              ring.keys(n) + static_cast<std::uint32_t>((warp * 32 + r) * Format::kPitch);
          copy_row(place, at(v.x | std::uint64_t{v.y} << 32), Format::kRowBytes, full, policy);
          copy_row(place + Format::kPitch, at(v.z | std::uint64_t{v.w} << 32), Format::kRowBytes,
                   full, policy);
        }
      }
      sync_warp();
    }
    barrier_arrive(ring.names.unnamed(n));
    if (row == kEnd) return;
    if (mask != ~0u) {
      if (row == 0) {
        // Not copied, as one row of zeros would be asked for by all processors at once.
        LATHE_ROLLED
        for (std::uint32_t i = 0; i < Format::kPitch; i += 16) store_shared(to + i, 0, 0, 0, 0);
        fence_async_proxy();
      }
      sync_warp();
      if (lane == 0) {
        store_shared_u32(ring.mask(n) + static_cast<std::uint32_t>(4 * warp), mask);
        barrier_expect(full, static_cast<std::uint32_t>(count_bits(mask)) * Format::kRowBytes);
      }
      sync_warp();
      if (row != 0) copy_row(to, at(row), Format::kRowBytes, full, policy);
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
