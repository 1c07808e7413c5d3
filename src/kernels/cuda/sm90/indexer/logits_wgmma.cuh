// The indexer's logits by e4m3 tensor cores, for 16, 32 or 64 heads of 128 dimensions.
//
// A key and a head's query are 128-byte rows, K-major, as both operands must be. Keys are on M and
// heads on N: each thread then has a quarter of the heads of its two keys, and the sum over heads
// is a loop and two shuffles. A block holds 128 keys, 64 for each warpgroup, and loops over the
// queries of several rows, which have the same keys in a prompt.
#pragma once

#include "kernels/cuda/common/wgmma_fp8.cuh"
#include "kernels/cuda/sm90/indexer/indexer.h"

namespace lathe::cuda {

template <int kHeads>
struct LogitsWgmma {
  static constexpr int kDim = 128, kGroupKeys = 64, kGroups = 2;
  static constexpr int kKeys = kGroups * kGroupKeys, kThreads = kGroups * 128;
  static constexpr int kQueryBytes = kHeads * kDim;
  // Shared memory: codes of keys, codes of two rows' queries, their weights, scales of keys.
  static constexpr int kQueriesAt = kKeys * kDim;
  static constexpr int kWeightsAt = kQueriesAt + 2 * kQueryBytes;
  static constexpr int kScalesAt = kWeightsAt + 2 * kHeads * 4;
  static constexpr int kSharedBytes = kScalesAt + kKeys * 4;
};

/// Byte address of 16-byte chunk `chunk` of a row of a swizzled tile of 128-byte rows.
__device__ inline std::uint32_t index_chunk(std::uint32_t tile, int row, int chunk) {
  return tile + static_cast<std::uint32_t>(row * 128 + ((chunk ^ (row & 7)) << 4));
}

/// rows_each: rows per block.
template <int kHeads>
static __global__ void __launch_bounds__(LogitsWgmma<kHeads>::kThreads)
    index_logits_wgmma_kernel(const __grid_constant__ IndexLogits p, std::int64_t rows_each) {
  using W = LogitsWgmma<kHeads>;
  LATHE_DYNAMIC_SHARED(shared_bytes);
  const std::uint32_t base = shared_address(shared_bytes);
  let_next_begin();
  wait_for_previous();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int group = thread / 128, warp = thread / 32 % 4;
  const std::int64_t begin = std::int64_t{blockIdx.x} * rows_each;
  const std::int64_t end = begin + rows_each < p.rows ? begin + rows_each : p.rows;
  const std::int64_t first = std::int64_t{blockIdx.y} * W::kKeys;

  const auto queries = [&](std::int64_t row) {
    return base + W::kQueriesAt + static_cast<std::uint32_t>((row & 1) * W::kQueryBytes);
  };
  const auto weights = [&](std::int64_t row) {
    return base + W::kWeightsAt + static_cast<std::uint32_t>((row & 1) * (kHeads * 4));
  };
  const auto copy_queries = [&](std::int64_t row) {
    const std::byte* from = p.q.data + row * p.q.page_stride;
    for (int i = thread; i < kHeads * 8; i += W::kThreads) {
      copy_async(index_chunk(queries(row), i / 8, i % 8), from + i * 16, true);
    }
  };
  const auto weight_of = [&](std::int64_t row) {
    const auto* scales = reinterpret_cast<const float*>(p.q.data + row * p.q.page_stride +
                                                        std::int64_t{kHeads} * W::kDim);
    return p.weights[row * p.weights_stride + thread] * p.constant * scales[thread];
  };
  // The page of a key, or -1.
  const auto page_of = [&](std::int64_t request, std::int64_t position) -> std::int64_t {
    const std::int64_t at = position / p.keys.page_tokens;
    if (at >= p.width) return -1;
    const std::int64_t page = p.page_table[request * p.width + at];
    return page >= 0 && page < p.keys.pages ? page : -1;
  };
  const auto copy_keys = [&](std::int64_t request) {
    for (int i = thread; i < W::kKeys * 8; i += W::kThreads) {
      const std::int64_t position = first + i / 8;
      const std::int64_t page = page_of(request, position);
      const std::byte* from = p.keys.data + (page < 0 ? 0 : page) * p.keys.page_stride +
                              position % p.keys.page_tokens * W::kDim + i % 8 * 16;
      copy_async(index_chunk(base, i / 8, i % 8), from, page >= 0);
    }
    if (thread >= W::kKeys) return;
    const std::int64_t position = first + thread, page = page_of(request, position);
    // A key without a page is NaN, so it cannot be selected.
    float scale = bits_to_float(0x7fc00000u);
    if (page >= 0) {
      const std::byte* scales =
          p.keys.data + page * p.keys.page_stride + std::int64_t{p.keys.page_tokens} * W::kDim;
      scale = reinterpret_cast<const float*>(scales)[position % p.keys.page_tokens];
    }
    store_float(base + W::kScalesAt + static_cast<std::uint32_t>(thread * 4), scale);
  };

  std::int64_t loaded = -1;  // request of the keys in shared memory
  copy_queries(begin);
  if (thread < kHeads) {
    store_float(weights(begin) + static_cast<std::uint32_t>(thread * 4), weight_of(begin));
  }
  LATHE_ROLLED
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t request = p.request[row], len = p.lens[row];
    const bool sees = request >= 0 && first < len;
    if (sees && request != loaded) {
      copy_keys(request);
      loaded = request;
    }
    end_copy_group();
    wait_copy_groups<0>();
    fence_async_proxy();
    sync_block();
    // The next row's queries and weights load meanwhile.
    const bool more = row + 1 < end;
    float next_weight = 0;
    if (more) {
      copy_queries(row + 1);
      if (thread < kHeads) next_weight = weight_of(row + 1);
    }
    if (sees) {
      float d[kHeads / 2];
      const std::uint64_t keys = descriptor_here(tile_descriptor(
          base + static_cast<std::uint32_t>(group * W::kGroupKeys * W::kDim), 1024));
      const std::uint64_t q = descriptor_here(tile_descriptor(queries(row), 1024));
      wgmma_fence();
      LATHE_UNROLL
      for (std::uint32_t k = 0; k < W::kDim / 32; ++k) {
        mma_m64_e4m3(d, descriptor_at(keys, k * 32), descriptor_at(q, k * 32), k > 0);
      }
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_pin(d);
      float sums[2] = {0, 0};
      LATHE_UNROLL
      for (int j = 0; j < kHeads / 8; ++j) {
        const float2 w =
            load_float2(weights(row) + static_cast<std::uint32_t>((8 * j + 2 * (lane & 3)) * 4));
        LATHE_UNROLL
        for (int i = 0; i < 2; ++i) {
          // Not fmaxf: it would drop NaN.
          const float a = d[4 * j + 2 * i], b = d[4 * j + 2 * i + 1];
          sums[i] = fmaf(a < 0 ? 0.f : a, w.x, sums[i]);
          sums[i] = fmaf(b < 0 ? 0.f : b, w.y, sums[i]);
        }
      }
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        sums[i] += shuffle_xor(sums[i], 1);
        sums[i] += shuffle_xor(sums[i], 2);
      }
      // Of each four lanes, lanes 0 and 1 store one key each.
      const int key = group * W::kGroupKeys + warp * 16 + lane / 4 + 8 * (lane & 1);
      const std::int64_t position = first + key;
      if ((lane & 3) < 2 && position < len && position < p.cols) {
        const float scale = load_float(base + W::kScalesAt + static_cast<std::uint32_t>(key * 4));
        p.logits[row * p.cols + position] = ((lane & 1) == 0 ? sums[0] : sums[1]) * scale;
      }
    }
    if (more && thread < kHeads) {
      store_float(weights(row + 1) + static_cast<std::uint32_t>(thread * 4), next_weight);
    }
    sync_block();
  }
}

}  // namespace lathe::cuda
