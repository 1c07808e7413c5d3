// T = (I + A)^-1 of a chunk (delta_chunks.cuh), in blocks of 16 x 16: those on the diagonal by
// forward substitution, the others as T_ij = -sum_k (T_ii A_ik) T_kj over k from j to i - 1, with
// tensor cores. Operands have 16 bits of precision (SplitTile).
#pragma once

#include "kernels/cuda/sm90/delta/chunk_products.cuh"

namespace lathe::cuda {

/// The inverses of the blocks on the diagonal, a column for each of 64 threads.
__device__ inline void invert_diagonal(const ChunkShared& shared) {
  const auto tid = static_cast<int>(threadIdx.x);
  if (tid >= kDeltaChunkRows) return;
  const int m = tid / 16 * 16, column = tid % 16;
  float x[16];
  LATHE_UNROLL
  for (int i = 0; i < 16; ++i) {
    float sum[2] = {i == column ? 1.f : 0.f};
    LATHE_UNROLL
    for (int j = 0; j < i; j += 2) {
      const float2 a = shared.a().load_pair(m + i, m + j);
      sum[0] = fmaf(-a.x, x[j], sum[0]);
      if (j + 1 < i) sum[1] = fmaf(-a.y, x[j + 1], sum[1]);
    }
    x[i] = sum[0] + sum[1];
  }
  LATHE_UNROLL
  for (int i = 0; i < 16; ++i) {
    const bf16 high = to_bf16(x[i]);
    store_shared_u16(shared.t().high.at(m + i, m + column), high.bits);
    store_shared_u16(shared.t().low.at(m + i, m + column), to_bf16(x[i] - to_f32(high)).bits);
  }
}

/// d += a b of 16 x 16 blocks, without the product of the two low parts.
__device__ inline void add_product(float (&d)[2][4], const SplitTile& a, int m, int k,
                                   const SplitTile& b, int n) {
  std::uint32_t a_high[4], a_low[4], b_high[4], b_low[4];
  a.high.load_a(m, k, a_high);
  a.low.load_a(m, k, a_low);
  b.high.load_b(k, n, b_high);
  b.low.load_b(k, n, b_low);
  LATHE_UNROLL
  for (int t = 0; t < 2; ++t) {
    warp_mma(d[t], a_low, b_high[2 * t], b_high[2 * t + 1]);
    warp_mma(d[t], a_high, b_low[2 * t], b_low[2 * t + 1]);
    warp_mma(d[t], a_high, b_high[2 * t], b_high[2 * t + 1]);
  }
}
__device__ inline void store_block(const SplitTile& to, int m, int n, const float (&d)[2][4],
                                   float sign) {
  LATHE_UNROLL
  for (int half = 0; half < 2; ++half) {
    LATHE_UNROLL
    for (int t = 0; t < 2; ++t) {
      to.store_pair(m + BlockProduct::row(2 * half), n + BlockProduct::column(t, 0),
                    sign * d[t][2 * half], sign * d[t][2 * half + 1]);
    }
  }
}

/// for_u() and for_w() from A. A is overwritten.
__device__ inline void invert(const ChunkShared& shared) {
  const auto tid = static_cast<int>(threadIdx.x), warp = tid / 32;
  invert_diagonal(shared);
  sync_block();
  if (warp < 6) {                     // -T_ii A_ik takes the place of A_ik
    const TriangleBlock below(warp);  // of the triangle below the diagonal
    const int m = 16 * (below.m + 1), k = 16 * below.n;
    float d[2][4] = {};
    add_product(d, shared.t(), m, m, shared.a(), k);
    sync_warp();
    store_block(shared.a(), m, k, d, -1);
  }
  sync_block();
  if (warp < 3) {  // a column of blocks
    const int n = 16 * warp;
    for (int m = n + 16; m < kDeltaChunkRows; m += 16) {
      float d[2][4] = {};
      for (int k = n; k < m; k += 16) add_product(d, shared.a(), m, k, shared.t(), n);
      store_block(shared.t(), m, n, d, 1);
      sync_warp();
    }
  }
  sync_block();
  constexpr int kPairs = kDeltaChunkRows / 2;
  for (int at = tid; at < kDeltaChunkRows * kPairs; at += kDeltaThreads) {
    const int i = at / kPairs, j = at % kPairs * 2;
    if (j / 16 > i / 16) continue;
    const float2 t = shared.t().load_pair(i, j);
    const float first = t.x * load_float(shared.beta(j));
    const float second = t.y * load_float(shared.beta(j + 1));
    float of_first = 1, of_second = 1;
    if (!shared.per_channel) {
      of_first = exp_fast(load_float(shared.sum(j)));
      of_second = exp_fast(load_float(shared.sum(j + 1)));
    }
    store_shared_u32(shared.for_u().at(i, j), pack_bf16(first, second));
    store_shared_u32(shared.for_w().at(i, j), pack_bf16(first * of_first, second * of_second));
  }
}

}  // namespace lathe::cuda
