// What a chunk needs before S is known, for all chunks and heads at once. With G the sum of g over
// the chunk's rows so far, rows i and j:
//   A_ij = beta_i k_i . (e^(G_i - G_j) k_j) for j < i,  T = (I + A)^-1
//   W = T diag(beta) (e^G K),  U = T diag(beta) V,  scores_ij = q_i . (e^(G_i - G_j) k_j) for j <=
//   i
// (Yang et al., "Parallelizing Linear Transformers with the Delta Rule over Sequence Length",
// 2024).
#pragma once

#include "kernels/cuda/sm90/delta/chunk_inverse.cuh"
#include "kernels/cuda/sm90/delta/chunk_products.cuh"

namespace lathe::cuda {

/// A warp's 16 columns of t b, for t [64, 64] lower triangular and b [64, 128]; they replace b's.
__device__ inline void multiply_triangle(const ScoreTile& t, const KeyTile& b) {
  const int n = static_cast<int>(threadIdx.x / 32) * 16;
  std::uint32_t v[4][4];
  LATHE_UNROLL
  for (int k = 0; k < 4; ++k) b.load_b(16 * k, n, v[k]);
  sync_warp();
  LATHE_UNROLL
  for (int m = 0; m < 4; ++m) {
    float d[2][4] = {};
    LATHE_UNROLL
    for (int k = 0; k <= m; ++k) {
      std::uint32_t a[4];
      t.load_a(16 * m, 16 * k, a);
      warp_mma(d[0], a, v[k][0], v[k][1]);
      warp_mma(d[1], a, v[k][2], v[k][3]);
    }
    b.store(16 * m, n, d[0]);
    b.store(16 * m, n + 8, d[1]);
  }
}

/// Copies a tile to global memory, padding and all.
__device__ inline void write_tile(const KeyTile& tile, bf16* to) {
  for (auto i = static_cast<int>(threadIdx.x); i < kKeyTileElements / 8; i += kDeltaThreads) {
    reinterpret_cast<uint4*>(to)[i] = load_shared_u128(tile.base + 16u * i);
  }
}
/// Copies a tile as one tile for each 32 columns.
__device__ inline void write_columns(const KeyTile& tile, bf16* to) {
  constexpr int kChunks = kDeltaWidth / 8, kPart = kScanColumns / 8;
  for (auto i = static_cast<int>(threadIdx.x); i < kDeltaChunkRows * kChunks; i += kDeltaThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    bf16* const part = to + chunk / kPart * kColumnTileElements + row * (kScanColumns + 8);
    *reinterpret_cast<uint4*>(part + chunk % kPart * 8) = load_shared_u128(tile.at(row, 8 * chunk));
  }
}

/// What the recurrence over chunks fades with.
__device__ inline void write_fades(const DeltaParams& p, const ChunkShared& shared,
                                   std::int64_t at) {
  const auto tid = static_cast<int>(threadIdx.x);
  constexpr int kLast = kDeltaChunkRows - 1;
  if (shared.per_channel) {
    if (tid >= kDeltaWidth) return;
    p.last_fades[at * kDeltaWidth + tid] = exp_fast(load_float(shared.sum(kLast, tid)));
  } else if (tid < kDeltaChunkRows) {
    const float sum = load_float(shared.sum(tid));
    float* const to = p.row_fades + at * 2 * kDeltaChunkRows;
    to[tid] = exp_fast(sum);
    to[kDeltaChunkRows + tid] = exp_fast(load_float(shared.sum(kLast)) - sum);
  }
}

/// With one gate per channel: q and k for the recurrence over chunks, and k for W in other_k().
__device__ inline void fade_chunk(const ChunkShared& shared, bf16* to_q, bf16* to_k) {
  const int own_channel = static_cast<int>(threadIdx.x % 32) * 4;
  const float4 last = load_floats(shared.sum(kDeltaChunkRows - 1, own_channel));
  for_rows_to_fade<true>(
      shared, 0, kDeltaChunkRows,
      [&](int row, int channel, const float4& sum, std::uint64_t k, std::uint64_t q) {
        const float4 since = exp_fast(sum), left = exp_fast(minus(last, sum));
        const int at = row * (kDeltaWidth + 8) + channel;
        *reinterpret_cast<std::uint64_t*>(to_q + at) = faded(q, since);
        *reinterpret_cast<std::uint64_t*>(to_k + at) = faded(k, left);
        store_shared_u64(shared.other_k().at(row, channel), faded(k, since));
      });
}

/// Grid: chunks, heads.
template <bool kPerChannel>
static __global__ void __launch_bounds__(kDeltaThreads, kPerChannel ? 2 : 3)
    delta_chunks_kernel(const __grid_constant__ DeltaParams p) {
  LATHE_DYNAMIC_SHARED(memory);
  let_next_begin();
  wait_for_previous();
  const DeltaChunkRows c = chunk_of(p, blockIdx.x);
  if (!c.exists) return;
  const ChunkShared shared{shared_address(memory), kPerChannel};
  const std::int64_t head = blockIdx.y, at = c.number * p.heads + head;
  const std::int64_t key_head = head / (p.heads / p.key_heads);
  ChunkGates gates;
  gates.load(p, c, head, kPerChannel);
  copy_mixed(p, c, key_head * kDeltaWidth, shared.q());
  copy_mixed(p, c, (p.key_heads + key_head) * kDeltaWidth, shared.k());
  end_copy_group();
  gates.store(p, c, shared);
  wait_copy_groups<0>();
  sync_block();
  bf16* const scores = p.scores + at * kScoreTileElements;
  const std::int64_t keys_at = key_tile_of(p, c.number, head) * kKeyTileElements;
  if (kPerChannel) {
    products_per_channel(shared, scores);
    fade_chunk(shared, p.q + keys_at, p.k + keys_at);
  } else {
    products_per_head(shared, scores);
    if (head % (p.heads / p.key_heads) == 0) {
      write_tile(shared.q(), p.q + keys_at);
      write_tile(shared.k(), p.k + keys_at);
    }
  }
  sync_block();
  // q is not needed any more.
  const KeyTile v = shared.q();
  copy_mixed(p, c, (2 * p.key_heads + head) * kDeltaWidth, v);
  end_copy_group();
  write_fades(p, shared, at);
  invert(shared);
  wait_copy_groups<0>();
  sync_block();
  const KeyTile keys = kPerChannel ? shared.other_k() : shared.k();
  multiply_triangle(shared.for_w(), keys);
  multiply_triangle(shared.for_u(), v);
  sync_block();
  write_tile(keys, p.w + at * kKeyTileElements);
  write_columns(v, p.u + at * kColumnTiles * kColumnTileElements);
}

}  // namespace lathe::cuda
