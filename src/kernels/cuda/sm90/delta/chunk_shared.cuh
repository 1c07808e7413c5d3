// Shared memory and gates of a chunk (delta_chunks.cuh).
#pragma once

#include "kernels/cuda/sm90/delta/delta_tiles.cuh"

namespace lathe::cuda {

__device__ inline float exp_fast(float x) { return exp2_fast(x * 1.44269504f); }

/// A matrix in bf16 with its rounding errors, also in bf16: 16 bits of precision.
struct SplitTile {
  ScoreTile high, low;

  __device__ void store_pair(int row, int column, float a, float b) const {
    const std::uint32_t rounded = pack_bf16(a, b);
    store_shared_u32(high.at(row, column), rounded);
    store_shared_u32(low.at(row, column), pack_bf16(a - bits_to_float(rounded << 16),
                                                    b - bits_to_float(rounded & 0xffff0000u)));
  }
  __device__ float2 load_pair(int row, int column) const {
    const std::uint32_t a = load_shared_u32(high.at(row, column));
    const std::uint32_t b = load_shared_u32(low.at(row, column));
    return make_float2(bits_to_float(a << 16) + bits_to_float(b << 16),
                       bits_to_float(a & 0xffff0000u) + bits_to_float(b & 0xffff0000u));
  }
};

/// Tiles follow each other as q, A, beta and G of rows, k, and then:
///   one gate per head: T;
///   one gate per channel: 16 faded rows of q and of k, a faded k, and G of channels. T takes the
///   place of k and of faded rows, so that a multiprocessor has room for two blocks.
struct ChunkShared {
  static constexpr int kBlockRows = 16;                // of a row of blocks
  static constexpr int kSumsStride = kDeltaWidth + 4;  // of G per channel, floats
  static constexpr int kA = kKeyTileBytes;
  static constexpr int kRows = kA + 2 * kScoreTileBytes;
  static constexpr int kK = kRows + 2 * 4 * kDeltaChunkRows;
  static constexpr int kT = kK + kKeyTileBytes;
  static constexpr int kBytes = kT + 2 * kScoreTileBytes;
  static constexpr int kFadedRows = kK + kKeyTileBytes;
  static constexpr int kFadedRowsBytes = 2 * kBlockRows * (kDeltaWidth + 8);
  static constexpr int kOther = kFadedRows + 2 * kFadedRowsBytes;
  static constexpr int kSums = kOther + kKeyTileBytes;
  static constexpr int kDecayedBytes = kSums + kDeltaChunkRows * kSumsStride * 4;
  std::uint32_t base;
  bool per_channel;

  __device__ KeyTile q() const { return {base}; }
  __device__ KeyTile k() const { return {base + kK}; }
  __device__ SplitTile a() const { return {scores(kA), scores(kA + kScoreTileBytes)}; }
  /// With one gate per channel k and the faded rows must not be needed any more.
  __device__ SplitTile t() const {
    const int at = per_channel ? kK : kT;
    return {scores(at), scores(at + kScoreTileBytes)};
  }
  /// T diag(beta), and T diag(beta e^G); where A was.
  __device__ ScoreTile for_u() const { return a().high; }
  __device__ ScoreTile for_w() const { return a().low; }
  __device__ std::uint32_t beta(int i) const { return base + kRows + 4u * i; }
  /// G of rows, with one gate per head.
  __device__ std::uint32_t sum(int i) const { return beta(kDeltaChunkRows + i); }
  /// kBlockRows rows each.
  __device__ KeyTile faded_q() const { return {base + kFadedRows}; }
  __device__ KeyTile faded_k() const { return {base + kFadedRows + kFadedRowsBytes}; }
  __device__ KeyTile other_k() const { return {base + kOther}; }
  /// G of rows and channels.
  __device__ std::uint32_t sum(int i, int channel) const {
    return base + kSums + 4u * (i * kSumsStride + channel);
  }

 private:
  __device__ ScoreTile scores(int at) const { return {base + static_cast<std::uint32_t>(at)}; }
};
static_assert(ChunkShared::kK + 2 * kScoreTileBytes <= ChunkShared::kOther);

/// beta and G. Inputs are loaded before the tiles, and used while those are on their way. With one
/// gate per channel a thread has half of a channel's rows.
struct ChunkGates {
  static constexpr int kHalf = kDeltaChunkRows / 2;
  float beta = 0, a = 0, bias = 0, f[kHalf] = {};

  __device__ void load(const DeltaParams& p, const DeltaChunkRows& c, std::int64_t head,
                       bool per_channel) {
    const auto tid = static_cast<int>(threadIdx.x);
    a = p.a_log[head];
    if (tid < kDeltaChunkRows) beta = p.beta[c.near_row(tid) * p.beta_stride + head];
    if (per_channel) {
      const std::int64_t channel = head * kDeltaWidth + tid % kDeltaWidth;
      bias = p.dt_bias[channel];
      const int first = tid / kDeltaWidth * kHalf;
      LATHE_UNROLL
      for (int i = 0; i < kHalf; ++i) {
        f[i] = p.decay[c.near_row(first + i) * p.decay_stride + channel];
      }
    } else if (tid < 32) {
      bias = p.dt_bias[head];
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) f[i] = p.decay[c.near_row(2 * tid + i) * p.decay_stride + head];
    }
  }
  /// All threads call it.
  __device__ void store(const DeltaParams& p, const DeltaChunkRows& c, const ChunkShared& shared) {
    const auto tid = static_cast<int>(threadIdx.x);
    if (tid < kDeltaChunkRows) {
      store_float(shared.beta(tid), c.row(tid) < 0 ? 0 : delta_sigmoid(beta));
    }
    a = expf(a);
    if (shared.per_channel) {
      store_channel(p, c, shared);
    } else if (tid < 32) {
      store_head(p, c, shared);
    }
  }

 private:
  __device__ void store_channel(const DeltaParams& p, const DeltaChunkRows& c,
                                const ChunkShared& shared) {
    const auto tid = static_cast<int>(threadIdx.x);
    const int channel = tid % kDeltaWidth, first = tid / kDeltaWidth * kHalf;
    float sum = 0;
    LATHE_UNROLL
    for (int i = 0; i < kHalf; ++i) {
      if (c.row(first + i) >= 0) sum += delta_gate(p, f[i] + bias, a);
      f[i] = sum;
    }
    if (first == 0) store_float(shared.sum(kHalf - 1, channel), sum);
    sync_block();
    const float before = first == 0 ? 0 : load_float(shared.sum(kHalf - 1, channel));
    LATHE_UNROLL
    for (int i = 0; i < kHalf; ++i) store_float(shared.sum(first + i, channel), f[i] + before);
  }
  __device__ void store_head(const DeltaParams& p, const DeltaChunkRows& c,
                             const ChunkShared& shared) const {
    const auto tid = static_cast<int>(threadIdx.x);
    float g[2];
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      g[i] = c.row(2 * tid + i) < 0 ? 0 : delta_gate(p, f[i] + bias, a);
    }
    float sum = g[0] + g[1];
    for (int d = 1; d < 32; d *= 2) {
      const float before = shuffle_up(sum, d);
      if (tid >= d) sum += before;
    }
    store_float(shared.sum(2 * tid), sum - g[1]);
    store_float(shared.sum(2 * tid + 1), sum);
  }
};

}  // namespace lathe::cuda
