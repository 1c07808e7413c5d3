// A and the scores of a chunk (delta_chunks.cuh), in blocks of 16 x 16.
//
// Decay enters as e^(G_i - G_j) with j before i, which is at most 1; e^(-G_j) overflows. With one
// gate per channel it must be a factor of row i times a factor of row j, to be part of a matrix
// product. So a row of 16 blocks refers G to a row r of its own: e^(G_i - G_r) and e^(G_r - G_j).
// For blocks left of the diagonal, r before the 16 rows keeps both factors at most 1. On the
// diagonal r is in the middle, where factors reach e^40 if a channel decays by e^-80 within 16
// rows. If one decays more, the blocks on the diagonal are summed pair by pair.
#pragma once

#include "kernels/cuda/common/peers.cuh"
#include "kernels/cuda/sm90/delta/chunk_shared.cuh"

namespace lathe::cuda {

/// Row m and column n, in blocks, of the block `i` of a lower triangle: row by row.
struct TriangleBlock {
  int m, n;

  __device__ explicit TriangleBlock(int i) : m(i >= 6 ? 3 : i >= 3 ? 2 : i >= 1 ? 1 : 0) {
    n = i - m * (m + 1) / 2;
  }
};

/// The products of rows [m, + 16) of `left` with rows [n, + 16) of `right`.
struct BlockProduct {
  float d[2][4] = {};  // tiles of 8 columns

  __device__ BlockProduct(const KeyTile& left, const KeyTile& right, int m, int n) {
    float odd[2][4] = {};  // of every other 16 channels: twice as many independent sums
    LATHE_UNROLL
    for (int k = 0; k < kDeltaWidth; k += 32) {
      LATHE_UNROLL
      for (int half = 0; half < 2; ++half) {
        std::uint32_t a[4], b[4];
        left.load_a(m, k + 16 * half, a);
        right.load_b_trans(k + 16 * half, n, b);
        warp_mma(half == 0 ? d[0] : odd[0], a, b[0], b[1]);
        warp_mma(half == 0 ? d[1] : odd[1], a, b[2], b[3]);
      }
    }
    LATHE_UNROLL
    for (int t = 0; t < 2; ++t) {
      LATHE_UNROLL
      for (int e = 0; e < 4; ++e) d[t][e] += odd[t][e];
    }
  }
  /// Row and column in the block of d[t][e].
  static __device__ int row(int e) { return static_cast<int>(threadIdx.x % 32) / 4 + e / 2 * 8; }
  static __device__ int column(int t, int e) {
    return 8 * t + static_cast<int>(threadIdx.x % 4) * 2 + e % 2;
  }
  /// Leaves out what is above the diagonal, and for A also the diagonal, and stores the block.
  __device__ void store(const ChunkShared& shared, bool of_q, int m, int n, bf16* scores) {
    LATHE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int i = m + row(2 * half);
      const float beta = of_q ? 1.f : load_float(shared.beta(i));
      LATHE_UNROLL
      for (int t = 0; t < 2; ++t) {
        const int j = n + column(t, 0), last = of_q ? i : i - 1;
        const float first = j <= last ? beta * d[t][2 * half] : 0;
        const float second = j + 1 <= last ? beta * d[t][2 * half + 1] : 0;
        if (of_q) {
          bf16* const to = scores + i * (kDeltaChunkRows + 8) + j;
          *reinterpret_cast<std::uint32_t*>(to) = pack_bf16(first, second);
        } else {
          shared.a().store_pair(i, j, first, second);
        }
      }
    }
  }
};

/// With one gate per head, decay is a factor of the finished product.
__device__ inline void products_per_head(const ChunkShared& shared, bf16* scores) {
  for (auto task = static_cast<int>(threadIdx.x / 32); task < 20; task += kDeltaThreads / 32) {
    const bool of_q = task >= 10;
    const TriangleBlock block(task % 10);
    const int m = 16 * block.m, n = 16 * block.n;
    BlockProduct product(of_q ? shared.q() : shared.k(), shared.k(), m, n);
    LATHE_UNROLL
    for (int e = 0; e < 4; ++e) {
      const float of_row = load_float(shared.sum(m + BlockProduct::row(e)));
      LATHE_UNROLL
      for (int t = 0; t < 2; ++t) {
        const int j = n + BlockProduct::column(t, e), i = m + BlockProduct::row(e);
        // Above the diagonal the power may overflow, and is not used.
        const float fade = j <= i ? exp_fast(of_row - load_float(shared.sum(j))) : 0;
        product.d[t][e] *= fade;
      }
    }
    product.store(shared, of_q, m, n, scores);
  }
}

__device__ inline float2 load_pair(const KeyTile& tile, int row, int column) {
  const std::uint32_t v = load_shared_u32(tile.at(row, column));
  return make_float2(bits_to_float(v << 16), bits_to_float(v & 0xffff0000u));
}
__device__ inline float4 minus(const float4& a, const float4& b) {
  return {a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w};
}

__device__ inline float4 exp_fast(const float4& x) {
  return {exp_fast(x.x), exp_fast(x.y), exp_fast(x.z), exp_fast(x.w)};
}
/// Four elements times `fade`, in bf16.
__device__ inline std::uint64_t faded(std::uint64_t words, const float4& fade) {
  const auto low = static_cast<std::uint32_t>(words),
             high = static_cast<std::uint32_t>(words >> 32);
  const std::uint32_t a =
      pack_bf16(bits_to_float(low << 16) * fade.x, bits_to_float(low & 0xffff0000u) * fade.y);
  const std::uint32_t b =
      pack_bf16(bits_to_float(high << 16) * fade.z, bits_to_float(high & 0xffff0000u) * fade.w);
  return a | std::uint64_t{b} << 32;
}
/// Calls store(row, channel, sum, k, q) for rows [first, + rows), `rows` a multiple of 16, and
/// every fourth channel: with G, and the elements of k and, if kWithQ, of q, of four channels. A
/// warp has every eighth row. The loads of two rows come before their stores, which the compiler
/// keeps in order.
template <bool kWithQ, class Store>
__device__ inline void for_rows_to_fade(const ChunkShared& shared, int first, int rows,
                                        Store store) {
  const int channel = static_cast<int>(threadIdx.x % 32) * 4;
  for (int row = first + static_cast<int>(threadIdx.x / 32); row < first + rows; row += 16) {
    float4 sums[2];
    std::uint64_t k[2], q[2] = {};
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      sums[i] = load_floats(shared.sum(row + 8 * i, channel));
      k[i] = load_shared_u64(shared.k().at(row + 8 * i, channel));
      if (kWithQ) q[i] = load_shared_u64(shared.q().at(row + 8 * i, channel));
    }
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) store(row + 8 * i, channel, sums[i], k[i], q[i]);
  }
}

/// The blocks on the diagonal, pair by pair in f32.
__device__ inline void diagonal_by_pairs(const ChunkShared& shared, bf16* scores) {
  // Two columns for each thread, because A is stored in pairs.
  for (auto at = static_cast<int>(threadIdx.x); at < 4 * 16 * 8; at += kDeltaThreads) {
    const int i = at / 8, j = at / 128 * 16 + at % 8 * 2;
    float of_k[2] = {}, of_q[2] = {};
    for (int channel = 0; channel < kDeltaWidth; channel += 2) {
      const float2 own = load_pair(shared.k(), i, channel), q = load_pair(shared.q(), i, channel);
      const float2 upper = load_float2(shared.sum(i, channel));
      LATHE_UNROLL
      for (int e = 0; e < 2; ++e) {
        if (j + e > i) continue;
        const float2 lower = load_float2(shared.sum(j + e, channel));
        const float2 k = load_pair(shared.k(), j + e, channel);
        const float first = k.x * exp_fast(upper.x - lower.x);
        const float second = k.y * exp_fast(upper.y - lower.y);
        of_k[e] = fmaf(own.x, first, fmaf(own.y, second, of_k[e]));
        of_q[e] = fmaf(q.x, first, fmaf(q.y, second, of_q[e]));
      }
    }
    const float beta = load_float(shared.beta(i));
    shared.a().store_pair(i, j, j < i ? beta * of_k[0] : 0, j + 1 < i ? beta * of_k[1] : 0);
    *reinterpret_cast<std::uint32_t*>(scores + i * (kDeltaChunkRows + 8) + j) =
        pack_bf16(of_q[0], of_q[1]);
  }
}

/// Whether a channel decays by more than e^-80 within 16 rows, in any block's rows. All threads
/// call it.
__device__ inline bool decays_fast(const ChunkShared& shared) {
  const auto tid = static_cast<int>(threadIdx.x);
  bool fast = false;
  for (int m = 0; m < kDeltaChunkRows && tid < kDeltaWidth; m += 16) {
    fast |= load_float(shared.sum(m, tid)) - load_float(shared.sum(m + 15, tid)) > 80;
  }
  return sync_block_or(fast);
}

__device__ inline void products_per_channel(const ChunkShared& shared, bf16* scores) {
  constexpr int kBlockRows = ChunkShared::kBlockRows;
  const auto warp = static_cast<int>(threadIdx.x / 32);
  const int own_channel = static_cast<int>(threadIdx.x % 32) * 4;
  const bool pairs = decays_fast(shared);
  if (pairs) diagonal_by_pairs(shared, scores);
  for (int m = 0; m < kDeltaChunkRows; m += kBlockRows) {
    // G at the row that the 16 rows from m on refer to.
    const int at = pairs ? m - 1 : m + 7;
    const float4 reference = at < 0 ? float4{} : load_floats(shared.sum(at, own_channel));
    for_rows_to_fade<true>(
        shared, m, kBlockRows,
        [&](int row, int channel, const float4& sum, std::uint64_t k, std::uint64_t q) {
          const float4 fade = exp_fast(minus(sum, reference));
          store_shared_u64(shared.faded_q().at(row - m, channel), faded(q, fade));
          store_shared_u64(shared.faded_k().at(row - m, channel), faded(k, fade));
        });
    const int rows = pairs ? m : m + kBlockRows;  // that the 16 rows are multiplied with
    for_rows_to_fade<false>(
        shared, 0, rows,
        [&](int row, int channel, const float4& sum, std::uint64_t k, std::uint64_t) {
          const float4 fade = exp_fast(minus(reference, sum));
          store_shared_u64(shared.other_k().at(row, channel), faded(k, fade));
        });
    sync_block();
    const bool of_q = warp % 2 != 0;
    const int n = warp / 2 * kBlockRows;
    if (n < rows) {
      BlockProduct product(of_q ? shared.faded_q() : shared.faded_k(), shared.other_k(), 0, n);
      product.store(shared, of_q, m, n, scores);
    }
    sync_block();
  }
}

}  // namespace lathe::cuda
