// m64 on bf16: stores a warpgroup's accumulator.
#pragma once

#include "kernels/cuda/sm90/latent/combine/partials.cuh"
#include "kernels/cuda/sm90/latent/m64/m64_bf16_config.cuh"
#include "kernels/cuda/sm90/latent/math/store_out.cuh"

namespace lathe::cuda {

/// Epilogue of one work item. acc: this thread's fragment (wgmma.cuh): rows warp * 16 + lane / 4
/// and 8 below, 256 values.
template <class W, int kGroup>
struct LatentM64Epilogue {
  const LatentParams& p;
  const LatentM64Shared<W>& s;
  const void* map;  // of out
  const LatentWorkInfo& item;
  int warp, lane;
  const float (&acc)[128];

  /// Stores the accumulator times a factor per row by TMA, through this warpgroup's half of the odd
  /// tile's buffer, which is free. first: the block's first M row.
  __device__ __forceinline__ void put(std::int32_t first, const float (&factor)[2]) const {
    const std::uint32_t tiles = s.smem.keys + W::kKeyBytes + kGroup * 4 * kDimTileBytes;
    const int m_row = warp * 16 + (lane & 15);
    LATHE_UNROLL
    for (int k = 0; k < 16; ++k) {
      std::uint32_t v[4];
      LATHE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float* sum = acc + 8 * k + 2 * i;
        v[i] = pack_bf16(sum[0] * factor[i & 1], sum[1] * factor[i & 1]);
      }
      store_matrices(swizzled(tiles + k / 4 * kDimTileBytes, m_row, 2 * (k & 3) + lane / 16), v[0],
                     v[1], v[2], v[3]);
    }
    fence_async_proxy();
    group_sync(W::kOutputs + kGroup, 128);
    if (warp == 0 && elected() && first < item.m_rows) {
      const auto r = static_cast<std::int32_t>(p.by_heads(static_cast<std::uint32_t>(first)));
      LATHE_UNROLL
      for (int t = 0; t < 4; ++t) {
        copy_box_out(map, (kGroup * 4 + t) * 64, first - r * p.heads, item.row + r,
                     tiles + static_cast<std::uint32_t>(t * kDimTileBytes),
                     cache_policy(p.passing));
      }
      wait_copies_out();
    }
    group_sync(W::kOutputs + kGroup, 128);
  }
  /// Stores this thread's row i, which is M row `m_row`, by plain stores.
  __device__ __forceinline__ void store(std::int32_t m_row, int i, float factor) const {
    const auto r = static_cast<std::int32_t>(p.by_heads(static_cast<std::uint32_t>(m_row)));
    std::uint16_t* to = p.out + (item.row + r) * p.out_stride +
                        std::int64_t{m_row - r * p.heads} * W::kValues + kGroup * 256 +
                        2 * (lane & 3);
    LATHE_UNROLL
    for (int j = 0; j < 32; ++j) {
      *reinterpret_cast<std::uint32_t*>(to + 8 * j) =
          pack_bf16(acc[4 * j + 2 * i] * factor, acc[4 * j + 2 * i + 1] * factor);
    }
  }
  /// Stores it as an f32 partial (partials.cuh).
  __device__ __forceinline__ void store_partial(std::int32_t tile, int i, float factor) const {
    float4* to =
        partial_chunks<PartialLayout::m64>(p, W::kMRows, item.number, tile) + warp * 32 + lane;
    LATHE_UNROLL
    for (int j = 0; j < 16; ++j) {
      const float* v = acc + 8 * j + 2 * i;
      to[((kGroup * 16 + j) * 2 + i) * 128] = {v[0] * factor, v[1] * factor, v[4] * factor,
                                               v[5] * factor};
    }
  }
};

}  // namespace lathe::cuda
