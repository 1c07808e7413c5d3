// The norm of a row that a block, or a cluster of eight, has in shared memory, with the bits of
// norm_kernel (sm90/rowwise/norm.cuh): its 128 threads' order of sums, and no product is joined
// with a sum, which units without --fmad=false would do.
//
// A decode step's norm is latency: one SM would read the row, and what the row is summed from, at a
// hundredth of the GPU's rate. A cluster's block b has columns 16 b to 16 b + 15 of every 128,
// which are all columns of 16 of norm_kernel's threads. So each of these sums is one block's own,
// and blocks exchange 128 sums, and for codes a maximum of every 128 columns.
//
// The code is short, because each line of it that runs once comes from L2, and what does not depend
// on the previous launch is loaded before that has ended.
#pragma once

#include "kernels/cuda/common/block_team.cuh"
#include "kernels/cuda/common/cluster_wait.cuh"
#include "kernels/cuda/common/norm_after.h"
#include "kernels/cuda/common/quantize_block.cuh"

namespace lathe::cuda {

/// Blocks that share a row, if they do, and rows up to which they pay: a cluster starts later than
/// a block.
inline constexpr int kNormBlocks = 8;
inline constexpr std::int64_t kNormClusterRows = 4;

/// Of a block, where kBlocks share a row.
template <int kBlocks>
inline constexpr int kNormAfterThreads = kBlocks == 1 ? 512 : 256;

__device__ inline float rounded_product(float a, float b) {
#ifdef __CUDACC__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

/// At the start of a block's dynamic shared memory.
template <int kBlocks>
struct NormAfterShared {
  static constexpr int kGroups = kNormAfterColumns / 128;
  float x[kGroups][128 / kBlocks];
  float sums[128];
  float most[kGroups][kBlocks];
};

/// Precondition: whole words of columns.
template <int kBlocks>
class NormAfterRow {
 public:
  using Shared = NormAfterShared<kBlocks>;
  static constexpr int kThreads = kNormAfterThreads<kBlocks>;
  static constexpr int kGroupWords = 32 / kBlocks;  // of 128 columns, that the block has
  static constexpr int kWords = Shared::kGroups * kGroupWords / kThreads;  // of a thread

  /// Loads the weights; before wait_for_previous().
  __device__ NormAfterRow(const NormAfter& n, std::int64_t cols, unsigned char* shared)
      : n_(n),
        s_(*reinterpret_cast<Shared*>(shared)),
        words_(static_cast<std::int32_t>(cols / 4)),
        rank_(static_cast<std::int32_t>(blockIdx.x) % kBlocks) {
    if (kBlocks > 1) arrive_cluster();
    LATHE_UNROLL
    for (int i = 0; i < kWords; ++i) {
      weights_[i] = has(i) ? reinterpret_cast<const float4*>(n.weight)[word(i)] : float4{};
    }
  }
  /// The block's row.
  __device__ static std::int64_t row() { return blockIdx.x / kBlocks; }
  /// Word i of the thread, of four columns. Past the row's end where has() is false.
  __device__ std::int32_t word(int i) const {
    return 32 * group(i) + rank_ * kGroupWords + word_of_group();
  }
  __device__ bool has(int i) const { return word(i) < words_; }

  /// The row's word i of the thread; 0 past the row's end.
  __device__ void put(int i, const float4& v) { place(i) = v; }

  /// n.h = the norm of the row, after put() of all words.
  __device__ void run() {
    const float factor = factor_of_row();
    const std::int64_t first = row() * n_.h.stride;
    LATHE_UNROLL
    for (int i = 0; i < kWords; ++i) {
      const float4 v = place(i), w = weights_[i];
      float4 y = {rounded_product(rounded_product(v.x, factor), w.x),
                  rounded_product(rounded_product(v.y, factor), w.y),
                  rounded_product(rounded_product(v.z, factor), w.z),
                  rounded_product(rounded_product(v.w, factor), w.w)};
      if (n_.h.dtype == DType::f32) {
        if (has(i)) reinterpret_cast<float4*>(n_.h.data + 4 * first)[word(i)] = y;
      } else {
        const uint2 pairs = {to_bf16(y.x).bits | std::uint32_t{to_bf16(y.y).bits} << 16,
                             to_bf16(y.z).bits | std::uint32_t{to_bf16(y.w).bits} << 16};
        if (has(i)) reinterpret_cast<uint2*>(n_.h.data + 2 * first)[word(i)] = pairs;
        y = {bits_to_float(pairs.x << 16), bits_to_float(pairs.x & 0xffff0000u),
             bits_to_float(pairs.y << 16), bits_to_float(pairs.y & 0xffff0000u)};
      }
      weights_[i] = y;
    }
    if (n_.codes.codes != nullptr) quantize();
  }

 private:
  __device__ static std::int32_t word_of_group() {
    return static_cast<std::int32_t>(threadIdx.x) % kGroupWords;
  }
  /// The group of 128 columns of the thread's word i.
  __device__ static std::int32_t group(int i) {
    return static_cast<std::int32_t>(threadIdx.x) / kGroupWords + i * (kThreads / kGroupWords);
  }
  __device__ void sync() const { kBlocks == 1 ? sync_block() : sync_cluster(); }

  /// Calls put(shared) with every block's shared memory.
  template <class Put>
  __device__ void to_all(const Put& put) {
    LATHE_UNROLL
    for (int b = 0; b < kBlocks; ++b) put(kBlocks == 1 ? s_ : *shared_of_block(&s_, b));
  }

  __device__ float4& place(int i) {
    return *reinterpret_cast<float4*>(&s_.x[group(i)][4 * word_of_group()]);
  }
  __device__ float factor_of_row() {
    sync_block();
    // Other blocks run, so their shared memory is there.
    if (kBlocks > 1) wait_cluster();
    const auto column = static_cast<std::int32_t>(threadIdx.x);
    if (column < 128 / kBlocks) {
      const std::int32_t groups = (words_ + 31) / 32;
      float sum = 0;
      LATHE_UNROLL_BY(8)
      for (std::int32_t g = 0; g < groups; ++g) {
        sum += rounded_product(s_.x[g][column], s_.x[g][column]);
      }
      to_all([&](Shared& of) { of.sums[128 / kBlocks * rank_ + column] = sum; });
    }
    sync();
    float sums[4];
    LATHE_UNROLL
    for (int w = 0; w < 4; ++w) sums[w] = s_.sums[32 * w + static_cast<int>(threadIdx.x % 32)];
    for (int d = 16; d > 0; d /= 2) {
      LATHE_UNROLL
      for (float& sum : sums) sum += shuffle_xor(sum, d);
    }
    const float squares = ((sums[0] + sums[1]) + sums[2]) + sums[3];
    return 1 / sqrtf(squares / static_cast<float>(4 * words_) + n_.eps);
  }

  /// Codes of weights_, which are h in bf16.
  __device__ void quantize() {
    float most[kWords];
    LATHE_UNROLL
    for (int i = 0; i < kWords; ++i) {
      const float v[4] = {weights_[i].x, weights_[i].y, weights_[i].z, weights_[i].w};
      most[i] = largest_of<kGroupWords>(v);
      if (kBlocks == 1 || word_of_group() != 0) continue;
      to_all([&](Shared& of) { of.most[group(i)][rank_] = most[i]; });
    }
    if (kBlocks > 1) {
      sync_cluster();
      LATHE_UNROLL
      for (int i = 0; i < kWords; ++i) {
        LATHE_UNROLL
        for (int b = 0; b < kBlocks; ++b) most[i] = max_or_nan(most[i], s_.most[group(i)][b]);
      }
    }
    LATHE_UNROLL
    for (int i = 0; i < kWords; ++i) {
      if (!has(i)) continue;
      const float v[4] = {weights_[i].x, weights_[i].y, weights_[i].z, weights_[i].w};
      const float scale = code_scale(most[i], n_.codes.power_of_two);
      reinterpret_cast<std::uint32_t*>(n_.codes.codes + row() * 4 * words_)[word(i)] =
          codes_of(v, scale);
      if (word(i) % 32 == 0) n_.codes.scales[group(i) * n_.codes.scale_stride + row()] = scale;
    }
  }

  const NormAfter& n_;
  Shared& s_;
  std::int32_t words_, rank_;
  float4 weights_[kWords];  // later the norm
};

}  // namespace lathe::cuda
