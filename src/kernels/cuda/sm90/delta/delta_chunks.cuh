// What a chunk needs before S is known, for all chunks and heads at once. With G the sum of g over
// the chunk's rows so far, rows i and j:
//   A_ij = beta_i k_i . (e^(G_i - G_j) k_j) for j < i,  T = (I + A)^-1
//   W = T diag(beta) (e^G K),  U = T diag(beta) V,  scores_ij = q_i . (e^(G_i - G_j) k_j) for j <=
//   i
// (Yang et al., "Parallelizing Linear Transformers with the Delta Rule over Sequence Length",
// 2024). All exponents are differences to a later row's G, so no factor exceeds 1.
#pragma once

#include "kernels/cuda/sm90/delta/delta_tiles.cuh"

namespace lathe::cuda {

__device__ inline float exp_fast(float x) { return exp2_fast(x * 1.44269504f); }

/// A block's shared memory. The parts of `decayed` are used with one gate per channel only.
struct ChunkShared {
  static constexpr int kInverseStride = kDeltaChunkRows + 4;  // of A, floats
  static constexpr int kSumsStride = kDeltaWidth + 4;         // of G per channel, floats
  static constexpr int kRowBytes = 4 * kDeltaChunkRows;
  static constexpr int kBytes = 4 * kKeyTileBytes + 2 * kScoreTileBytes + 2 * kRowBytes;
  static constexpr int kDecayedBytes =
      kBytes + 3 * kKeyTileBytes + kDeltaChunkRows * kSumsStride * 4;
  static_assert(kDeltaChunkRows * kInverseStride * 4 <= kKeyTileBytes);
  std::uint32_t base;

  __device__ KeyTile q() const { return {base}; }
  __device__ KeyTile k() const { return {base + kKeyTileBytes}; }
  __device__ KeyTile v() const { return {base + 2 * kKeyTileBytes}; }
  /// A, f32; later the tile of U.
  __device__ KeyTile u() const { return {base + 3 * kKeyTileBytes}; }
  __device__ std::uint32_t a(int i, int j) const {
    return base + 3 * kKeyTileBytes + 4u * (i * kInverseStride + j);
  }
  /// T diag(beta), and T diag(beta e^G).
  __device__ ScoreTile for_u() const { return {base + 4 * kKeyTileBytes}; }
  __device__ ScoreTile for_w() const { return {base + 4 * kKeyTileBytes + kScoreTileBytes}; }
  __device__ std::uint32_t beta(int i) const {
    return base + 4 * kKeyTileBytes + 2 * kScoreTileBytes + 4u * i;
  }
  /// G of rows, with one gate per head.
  __device__ std::uint32_t sum(int i) const { return beta(kDeltaChunkRows + i); }
  /// With one gate per channel: rows of q and k faded since their 16 rows began, k faded until
  /// then, and G.
  __device__ KeyTile faded_q() const { return {base + kBytes}; }
  __device__ KeyTile faded_k() const { return {base + kBytes + kKeyTileBytes}; }
  __device__ KeyTile other_k() const { return {base + kBytes + 2 * kKeyTileBytes}; }
  __device__ std::uint32_t sum(int i, int channel) const {
    return base + kBytes + 3 * kKeyTileBytes + 4u * (i * kSumsStride + channel);
  }
};

/// beta, and G with one gate per head, by the first two warps.
__device__ inline void load_gates(const DeltaParams& p, const DeltaChunkRows& c, std::int64_t head,
                                  const ChunkShared& shared) {
  const auto tid = static_cast<int>(threadIdx.x);
  if (tid < kDeltaChunkRows) {
    const std::int64_t row = c.row(tid);
    store_float(shared.beta(tid), row < 0 ? 0 : delta_sigmoid(p.beta[row * p.beta_stride + head]));
  }
  if (p.per_channel) {
    if (tid >= kDeltaWidth) return;
    float sum = 0;
    const std::int64_t channel = head * kDeltaWidth + tid;
    for (int i = 0; i < kDeltaChunkRows; ++i) {
      const std::int64_t row = c.row(i);
      if (row >= 0) {
        sum += delta_gate(p, p.decay[row * p.decay_stride + channel], head, channel);
      }
      store_float(shared.sum(i, tid), sum);
    }
  } else if (tid < 32) {
    float g[2];
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const std::int64_t row = c.row(2 * tid + i);
      g[i] = row < 0 ? 0 : delta_gate(p, p.decay[row * p.decay_stride + head], head, head);
    }
    float sum = g[0] + g[1];
    for (int d = 1; d < 32; d *= 2) {
      const float before = shuffle_up(sum, d);
      if (tid >= d) sum += before;
    }
    store_float(shared.sum(2 * tid), sum - g[1]);
    store_float(shared.sum(2 * tid + 1), sum);
  }
}

/// Stores a 16 x 8 tile of products of k with k in A, and of q with k in the chunk's scores.
__device__ inline void store_products(const ChunkShared& shared, bool of_q, int row, int column,
                                      const float (&d)[4], bf16* scores) {
  const auto l = static_cast<int>(threadIdx.x % 32);
  LATHE_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int i = row + l / 4 + 8 * half, j = column + l % 4 * 2;
    if (of_q) {
      *reinterpret_cast<std::uint32_t*>(scores + i * kDeltaChunkRows + j) =
          pack_bf16(d[2 * half], d[2 * half + 1]);
    } else {
      const float beta = load_float(shared.beta(i));
      store_float2(shared.a(i, j), beta * d[2 * half], beta * d[2 * half + 1]);
    }
  }
}

/// A and scores with one gate per head. Warps 0 to 3 multiply 16 rows of k, and 4 to 7 of q.
__device__ inline void products_per_head(const ChunkShared& shared, bf16* scores) {
  const auto l = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const bool of_q = warp >= 4;
  const int m = warp % 4 * 16;
  const KeyTile left = of_q ? shared.q() : shared.k();
  for (int n = 0; n <= m; n += 16) {
    float d[2][4] = {};
    LATHE_UNROLL
    for (int k = 0; k < kDeltaWidth; k += 16) {
      std::uint32_t a[4], b[4];
      left.load_a(m, k, a);
      shared.k().load_b_trans(k, n, b);
      warp_mma(d[0], a, b[0], b[1]);
      warp_mma(d[1], a, b[2], b[3]);
    }
    LATHE_UNROLL
    for (int t = 0; t < 2; ++t) {
      LATHE_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int i = m + l / 4 + e / 2 * 8, j = n + 8 * t + l % 4 * 2 + e % 2;
        const bool below = of_q ? j <= i : j < i;
        const float fade = exp_fast(load_float(shared.sum(i)) - load_float(shared.sum(j)));
        d[t][e] = below ? d[t][e] * fade : 0;
      }
      store_products(shared, of_q, m, n + 8 * t, d[t], scores);
    }
  }
}

__device__ inline float2 load_pair(const KeyTile& tile, int row, int column) {
  const std::uint32_t v = load_shared_u32(tile.at(row, column));
  return make_float2(bits_to_float(v << 16), bits_to_float(v & 0xffff0000u));
}
/// to = rows of `from`, times e^exponent(row, channel).
template <class Exponent>
__device__ inline void fade_tile(const KeyTile& from, const KeyTile& to, int first, int end,
                                 Exponent exponent) {
  constexpr int kPairs = kDeltaWidth / 2;
  for (int at = first * kPairs + static_cast<int>(threadIdx.x); at < end * kPairs;
       at += kDeltaThreads) {
    const int row = at / kPairs, channel = at % kPairs * 2;
    const float2 v = load_pair(from, row, channel);
    store_shared_u32(to.at(row, channel), pack_bf16(v.x * exp_fast(exponent(row, channel)),
                                                    v.y * exp_fast(exponent(row, channel + 1))));
  }
}

/// The 16 x 16 blocks on the diagonal, pair by pair in f32: no factor of a pair is common to
/// others.
__device__ inline void diagonal_per_channel(const ChunkShared& shared, bf16* scores) {
  constexpr int kPairs = 16 * 16;
  for (auto at = static_cast<int>(threadIdx.x); at < 4 * kPairs; at += kDeltaThreads) {
    const int i = at / kPairs * 16 + at % kPairs / 16, j = at / kPairs * 16 + at % 16;
    float of_k = 0, of_q = 0;
    for (int channel = 0; channel < kDeltaWidth && j <= i; channel += 2) {
      const float2 upper = load_float2(shared.sum(i, channel));
      const float2 lower = load_float2(shared.sum(j, channel));
      const float2 k = load_pair(shared.k(), j, channel);
      const float2 own = load_pair(shared.k(), i, channel), q = load_pair(shared.q(), i, channel);
      const float first = k.x * exp_fast(upper.x - lower.x);
      const float second = k.y * exp_fast(upper.y - lower.y);
      of_k = fmaf(own.x, first, fmaf(own.y, second, of_k));
      of_q = fmaf(q.x, first, fmaf(q.y, second, of_q));
    }
    store_float(shared.a(i, j), j < i ? of_k * load_float(shared.beta(i)) : 0);
    scores[i * kDeltaChunkRows + j] = to_bf16(of_q);
  }
}

/// A and scores with one gate per channel. For 16 rows and the ones before them, decay is a factor
/// of a row times a factor of the other, with the start of the 16 rows between.
__device__ inline void products_per_channel(const ChunkShared& shared, bf16* scores) {
  const auto warp = static_cast<int>(threadIdx.x / 32);
  const auto since = [&](int row, int channel) {
    if (row < 16) return 0.f;
    return load_float(shared.sum(row, channel)) -
           load_float(shared.sum(row / 16 * 16 - 1, channel));
  };
  fade_tile(shared.q(), shared.faded_q(), 16, kDeltaChunkRows, since);
  fade_tile(shared.k(), shared.faded_k(), 16, kDeltaChunkRows, since);
  diagonal_per_channel(shared, scores);
  for (int m = 16; m < kDeltaChunkRows; m += 16) {
    fade_tile(shared.k(), shared.other_k(), 0, m, [&](int row, int channel) {
      return load_float(shared.sum(m - 1, channel)) - load_float(shared.sum(row, channel));
    });
    sync_block();
    const bool of_q = warp % 2 != 0;
    const int n = warp / 2 * 16;
    float d[2][4] = {};
    for (int k = 0; k < kDeltaWidth && n < m; k += 16) {
      std::uint32_t a[4], b[4];
      (of_q ? shared.faded_q() : shared.faded_k()).load_a(m, k, a);
      shared.other_k().load_b_trans(k, n, b);
      warp_mma(d[0], a, b[0], b[1]);
      warp_mma(d[1], a, b[2], b[3]);
    }
    if (n < m) {
      store_products(shared, of_q, m, n, d[0], scores);
      store_products(shared, of_q, m, n + 8, d[1], scores);
    }
    sync_block();
  }
}

/// T = (I + A)^-1 by forward substitution, a thread for each column; stores it with its columns
/// times beta, and times beta e^G.
__device__ inline void invert(const DeltaParams& p, const ChunkShared& shared) {
  const auto column = static_cast<int>(threadIdx.x);
  if (column >= kDeltaChunkRows) return;
  const float beta = load_float(shared.beta(column));
  const float of_w = p.per_channel ? beta : beta * exp_fast(load_float(shared.sum(column)));
  float x[kDeltaChunkRows];
  LATHE_UNROLL
  for (int i = 0; i < kDeltaChunkRows; ++i) {
    float sum[4] = {i == column ? 1.f : 0.f};
    LATHE_UNROLL
    for (int j = 0; j < i; j += 4) {
      const float4 a = load_floats(shared.a(i, j));
      const float of_j[4] = {a.x, a.y, a.z, a.w};
      LATHE_UNROLL
      for (int e = 0; e < 4; ++e) {
        if (j + e < i) sum[e] = fmaf(-of_j[e], x[j + e], sum[e]);
      }
    }
    x[i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    store_shared_u16(shared.for_u().at(i, column), to_bf16(x[i] * beta).bits);
    store_shared_u16(shared.for_w().at(i, column), to_bf16(x[i] * of_w).bits);
  }
}

/// A warp's 16 rows of t b, for t [64, 64] lower triangular and b [64, 128]; stores them to `out`.
__device__ inline void multiply_triangle(const ScoreTile& t, const KeyTile& b, int m,
                                         const KeyTile& out) {
  float d[kDeltaWidth / 8][4] = {};
  for (int k = 0; k <= m; k += 16) {
    std::uint32_t a[4];
    t.load_a(m, k, a);
    LATHE_UNROLL
    for (int n = 0; n < kDeltaWidth; n += 16) {
      std::uint32_t v[4];
      b.load_b(k, n, v);
      warp_mma(d[n / 8], a, v[0], v[1]);
      warp_mma(d[n / 8 + 1], a, v[2], v[3]);
    }
  }
  LATHE_UNROLL
  for (int n = 0; n < kDeltaWidth; n += 8) out.store(m, n, d[n / 8]);
}

/// Copies a tile to [64, 128] of global memory.
__device__ inline void write_tile(const KeyTile& tile, bf16* to) {
  constexpr int kChunks = kDeltaWidth / 8;
  for (auto i = static_cast<int>(threadIdx.x); i < kDeltaChunkRows * kChunks; i += kDeltaThreads) {
    const int row = i / kChunks, column = i % kChunks * 8;
    *reinterpret_cast<uint4*>(to + row * kDeltaWidth + column) =
        load_shared_u128(tile.at(row, column));
  }
}

/// What the recurrence over chunks fades with.
__device__ inline void write_fades(const DeltaParams& p, const ChunkShared& shared,
                                   std::int64_t at) {
  const auto tid = static_cast<int>(threadIdx.x);
  constexpr int kLast = kDeltaChunkRows - 1;
  if (p.per_channel) {
    if (tid >= kDeltaWidth) return;
    p.last_fades[at * kDeltaWidth + tid] = exp_fast(load_float(shared.sum(kLast, tid)));
  } else if (tid < kDeltaChunkRows) {
    const float sum = load_float(shared.sum(tid));
    float* const to = p.row_fades + at * 2 * kDeltaChunkRows;
    to[tid] = exp_fast(sum);
    to[kDeltaChunkRows + tid] = exp_fast(load_float(shared.sum(kLast)) - sum);
  }
}

/// Grid: chunks, heads.
static __global__ void __launch_bounds__(kDeltaThreads)
    delta_chunks_kernel(const __grid_constant__ DeltaParams p) {
  LATHE_DYNAMIC_SHARED(memory);
  let_next_begin();
  wait_for_previous();
  const DeltaChunkRows c = chunk_of(p, blockIdx.x);
  if (!c.exists) return;
  const ChunkShared shared{shared_address(memory)};
  const std::int64_t head = blockIdx.y, at = c.number * p.heads + head;
  const std::int64_t key_head = head / (p.heads / p.key_heads);
  copy_mixed(p, c, key_head * kDeltaWidth, shared.q());
  copy_mixed(p, c, (p.key_heads + key_head) * kDeltaWidth, shared.k());
  copy_mixed(p, c, (2 * p.key_heads + head) * kDeltaWidth, shared.v());
  end_copy_group();
  load_gates(p, c, head, shared);
  wait_copy_groups<0>();
  sync_block();
  bf16* const scores = p.scores + at * kScoreTileElements;
  if (p.per_channel) {
    products_per_channel(shared, scores);
  } else {
    products_per_head(shared, scores);
  }
  write_fades(p, shared, at);
  sync_block();
  // T above the diagonal: invert() writes zeros there too.
  invert(p, shared);
  KeyTile keys = shared.k();
  if (p.per_channel) {
    const auto sum = [&](int row, int channel) { return load_float(shared.sum(row, channel)); };
    const auto left = [&](int row, int channel) {
      return load_float(shared.sum(kDeltaChunkRows - 1, channel)) - sum(row, channel);
    };
    keys = shared.other_k();
    fade_tile(shared.k(), keys, 0, kDeltaChunkRows, sum);
    fade_tile(shared.k(), shared.faded_k(), 0, kDeltaChunkRows, left);
    fade_tile(shared.q(), shared.faded_q(), 0, kDeltaChunkRows, sum);
  }
  sync_block();
  const auto warp = static_cast<int>(threadIdx.x / 32);
  const int m = warp % 4 * 16;
  // The tile of q is free, and so is A.
  if (warp < 4) {
    multiply_triangle(shared.for_w(), keys, m, shared.q());
  } else {
    multiply_triangle(shared.for_u(), shared.v(), m, shared.u());
  }
  sync_block();
  write_tile(shared.q(), p.w + at * kKeyTileElements);
  write_tile(shared.u(), p.u + at * kKeyTileElements);
  if (p.per_channel) {
    write_tile(shared.faded_q(), p.q + at * kKeyTileElements);
    write_tile(shared.faded_k(), p.k + at * kKeyTileElements);
  }
}

}  // namespace lathe::cuda
