// The producer of listed e4m3 rows: one warp resolves slots, two copy rows to swizzled tiles, one
// publishes work items and loads queries.
//
// TMA swizzles boxes, not scattered rows, so lanes copy 16 bytes each. Missing keys are masked, and
// their rows are zeros.
#pragma once

#include "kernels/cuda/sm90/latent/load/resolve_slots.cuh"
#include "kernels/cuda/sm90/latent/native/native_config.cuh"

namespace lathe::cuda {

using NativeAddresses = LatentRowAddresses<Fp8Format>;

/// One of two warps, which copies 32 rows of each tile. Eight lanes copy 128 bytes of a row, so
/// that loads are whole sectors and stores to shared memory have no bank conflicts; finally four
/// lanes copy the other 64 bytes.
template <class Shared>
__device__ inline void native_copy_rows(const Shared& s, const NativeAddresses& addresses, int warp,
                                        int lane) {
  const int first = warp * 32 + lane / 8, first_last = warp * 32 + lane / 4;
  // Offsets in the buffer of rows 8 i and 8 i + 4 after the first.
  const std::uint32_t place[2] = {swizzled_128(0, first, lane & 7),
                                  swizzled_128(0, first + 4, lane & 7)};
  const std::uint32_t place_last = swizzled_64(Native::kLastAt, first_last, lane & 3);
  LATHE_ROLLED
  for (unsigned n = 0;; ++n) {
    // As in native_load_keys(), so that the first queries do not arrive last.
    if (n == 2) group_sync(Native::kQueriesIssued, Native::kListedQueriesThreads);
    barrier_wait(addresses.resolved(n), addresses.parity(n));
    const auto address = [&](int key) {
      return load_shared_u64(addresses.rows(n) + static_cast<std::uint32_t>(8 * key));
    };
    const std::uint64_t own = address(warp * 32 + lane);
    if (own == NativeAddresses::kEnd) return;
    const std::uint32_t mask = warp_ballot(own != 0);
    barrier_wait(s.empty(n), Shared::parity(n) ^ 1);
    if (lane == 0) {
      store_shared_u32(s.mask(n) + static_cast<std::uint32_t>(4 * warp), mask);
      barrier_arrive(s.full(n));
    }
    const std::uint32_t to = s.keys(n);
    LATHE_UNROLL
    for (int i = 0; i < 4; ++i) {
      LATHE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const std::uint64_t row = address(first + 8 * i + 4 * half);
        const auto* from = reinterpret_cast<const std::byte*>(row) + (lane & 7) * 16;
        const std::uint32_t at = to + place[half] + static_cast<std::uint32_t>(i * (8 * 128));
        LATHE_UNROLL
        for (int d = 0; d < 4; ++d) {
          copy_async(at + static_cast<std::uint32_t>(d * Native::kDimBytes), from + d * 128,
                     row != 0);
        }
      }
    }
    LATHE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const std::uint64_t row = address(first_last + 8 * i);
      copy_async(to + place_last + static_cast<std::uint32_t>(i * (8 * 64)),
                 reinterpret_cast<const std::byte*>(row) + 512 + (lane & 3) * 16, row != 0);
    }
    barrier_arrive(addresses.consumed(n));
    barrier_arrive_after_copies(s.full(n));
  }
}

/// Runs each warp of the producer. s: with the addresses of listed rows.
template <class Shared>
__device__ inline void native_load_lists(const LatentParams& p, const Shared& s,
                                         std::int32_t worker, std::int32_t tile, int thread) {
  const int warp = thread / 32, lane = thread % 32;
  if (warp == 0) {
    SlotResolver<Fp8Format, Shared::kMRows, 2>(p, s.addresses(), worker, tile, lane).run();
    write_keyless(p, lane);
  } else if (warp < 3) {
    native_copy_rows(s, s.addresses(), warp - 1, lane);
  } else {
    native_load_queries<true>(p, s, worker, tile, lane);
  }
}

}  // namespace lathe::cuda
