// Mixes streams: a block reads a row twice, for its norm and for the weighted sum; the second read
// hits L2. To add a layer part's result to the streams, each thread updates one word.
#pragma once

#include <cmath>

#include "kernels/cuda/common/block_sum.cuh"
#include "kernels/cuda/common/norm_after.cuh"
#include "kernels/cuda/sm90/hyper/hyper.h"
#include "kernels/cuda/sm90/matmul/plain/narrow_lanes.cuh"

namespace lathe::cuda {

inline constexpr int kMixThreads = 512, kHyperAddThreads = 128;
inline constexpr int kCombs = kHyperStreams * kHyperStreams;

__device__ inline float sigmoid(float v) { return 1 / (1 + expf(-v)); }
__device__ inline float4 word_at(const float* row, std::int64_t word) {
  return reinterpret_cast<const float4*>(row)[word];
}

/// Every lane's value divided by the sum over the four lanes that differ from it in the bits of
/// `step` and 2 * step: a row of comb (step 1) or a column (step 4).
__device__ inline float normalised(float v, int step, float eps) {
  float sum = v + shuffle_xor(v, step);
  sum += shuffle_xor(sum, 2 * step);
  return v / (sum + eps);
}

/// Sinkhorn normalisation in a warp: lane l has the logit of comb[l / 4][l % 4]; lanes from 16 on
/// repeat the others.
__device__ inline float sinkhorn(float logit, std::int32_t iterations, float eps) {
  float most = fmaxf(logit, shuffle_xor(logit, 1));
  most = fmaxf(most, shuffle_xor(most, 2));
  float comb = normalised(expf(logit - most), 1, 0) + eps;
  comb = normalised(comb, kHyperStreams, eps);
  for (std::int32_t i = 1; i < iterations; ++i) {
    comb = normalised(comb, 1, eps);
    comb = normalised(comb, kHyperStreams, eps);
  }
  return comb;
}

/// kNorm: norms the result as well.
template <bool kNorm>
static __global__ void __launch_bounds__(kMixThreads, 1)
    hyper_mix_kernel(const __grid_constant__ HyperMixParams p) {
  LATHE_DYNAMIC_SHARED(shared_bytes);
  __shared__ float room[kMixThreads / 32];
  __shared__ float slices[kNarrowSumParts][kNarrowOutputs];
  let_next_begin();
  wait_for_previous();
  const std::int64_t row = blockIdx.x;
  const float* const x = p.x + row * p.x_stride;
  const std::int64_t words = p.n / kHyperWord;
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const bool sums = p.sum.parts != nullptr, has = lane < p.columns;
  const auto part = static_cast<int>(threadIdx.x / 32);
  const SlicesOfPart of_part(p.sum.parts + (has ? row * p.columns + lane : 0), p.rows * p.columns,
                             sums && part < kNarrowSumParts ? narrow_slices(p.sum) : 0, part);
  float squares = 0;
  LATHE_UNROLL_BY(4)
  for (std::int64_t i = threadIdx.x; i < kHyperStreams * words; i += kMixThreads) {
    const float4 v = word_at(x, i);
    squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  }
  if (part < kNarrowSumParts) slices[part][lane] = of_part.sum();
  const auto elements = static_cast<float>(kHyperStreams * p.n);
  const float factor = 1 / sqrtf(block_sum<kMixThreads>(squares, room) / elements + p.norm_eps);
  // Lane l of every warp has element l.
  float product = 0;
  if (sums) {
    product = sum_of_parts(slices, lane);
    if (threadIdx.x < 32 && has) p.sum.out[row * p.sum.out_stride + lane] = product;
  } else if (has) {
    product = p.product[row * p.product_stride + lane];
  }
  const auto at = [&](int i, int scale) {
    return p.scale[scale] * (shuffle(product, static_cast<unsigned>(i)) * factor) + p.base[i];
  };
  // Meanwhile the other warps continue with the weighted sum.
  if (p.mix != nullptr && threadIdx.x < 32) {
    float* const mix = p.mix + row * p.mix_stride;
    if (p.iterations > 0) {
      const float comb = sinkhorn(at(2 * kHyperStreams + lane % kCombs, 2), p.iterations, p.eps);
      if (lane < kCombs) mix[kHyperStreams + lane] = comb;
    }
    const float post = at(kHyperStreams + lane % kHyperStreams, 1);
    if (lane < kHyperStreams) mix[lane] = p.post_scale * sigmoid(post) + p.post_eps;
  }
  float pre[kHyperStreams];
  LATHE_UNROLL
  for (int j = 0; j < kHyperStreams; ++j) {
    pre[j] = p.columns == 0 ? 1.0f / kHyperStreams : sigmoid(at(j, 0)) + p.eps;
  }
  auto* const out = reinterpret_cast<float4*>(p.out + row * p.out_stride);
  const auto mixed = [&](std::int64_t i) {
    float4 sum = {};
    LATHE_UNROLL
    for (int j = 0; j < kHyperStreams; ++j) {
      const float4 v = word_at(x, j * words + i);
      sum = {sum.x + pre[j] * v.x, sum.y + pre[j] * v.y, sum.z + pre[j] * v.z,
             sum.w + pre[j] * v.w};
    }
    out[i] = sum;
    return sum;
  };
  if constexpr (kNorm) {
    static_assert(kMixThreads == kNormAfterThreads<1>);
    NormAfterRow<1> after(p.norm, p.n, shared_bytes);
    LATHE_ROLLED
    for (int i = 0; i < after.kWords; ++i) {
      after.put(i, after.has(i) ? mixed(after.word(i)) : float4{});
    }
    after.run();
  } else {
    for (std::int64_t i = threadIdx.x; i < words; i += kMixThreads) mixed(i);
  }
}

/// A word of all streams of a row, and of what is added to them. Each product but the first is
/// joined with its sum, so that all kernels give the same bits.
struct AddedWord {
  float4 y, before[kHyperStreams];

  __device__ __forceinline__ AddedWord(const HyperAddParams& p, std::int64_t row, std::int64_t word)
      : y(word_at(p.y + row * p.y_stride, word)) {
    LATHE_UNROLL
    for (int j = 0; j < kHyperStreams; ++j) {
      before[j] = word_at(p.x + row * p.x_stride, j * (p.n / kHyperWord) + word);
    }
  }
  /// The new word of stream k.
  __device__ __forceinline__ float4 stream(const HyperAddParams& p, std::int64_t row, int k) const {
    const float* const mix = p.mix + row * p.mix_stride;
    const float post = mix[k];
    if (!p.combs) {
      float4 old = before[0];
      LATHE_UNROLL
      for (int j = 1; j < kHyperStreams; ++j) old = j == k ? before[j] : old;
      return joined(post, y, old);
    }
    float4 sum = {post * y.x, post * y.y, post * y.z, post * y.w};
    LATHE_UNROLL
    for (int j = 0; j < kHyperStreams; ++j) {
      sum = joined(mix[kHyperStreams + j * kHyperStreams + k], before[j], sum);
    }
    return sum;
  }

 private:
  __device__ static float4 joined(float a, const float4& v, const float4& sum) {
    return {fmaf(a, v.x, sum.x), fmaf(a, v.y, sum.y), fmaf(a, v.z, sum.z), fmaf(a, v.w, sum.w)};
  }
};

static __global__ void __launch_bounds__(kHyperAddThreads)
    hyper_add_kernel(const __grid_constant__ HyperAddParams p) {
  let_next_begin();
  wait_for_previous();
  const std::int64_t row = blockIdx.x;
  const std::int64_t words = p.n / kHyperWord;
  const std::int64_t i = std::int64_t{blockIdx.y} * kHyperAddThreads + threadIdx.x;
  if (i >= words) return;
  auto* const x = reinterpret_cast<float4*>(p.x + row * p.x_stride) + i;
  const AddedWord added(p, row, i);
  LATHE_UNROLL
  for (int k = 0; k < kHyperStreams; ++k) x[k * words] = added.stream(p, row, k);
}

}  // namespace lathe::cuda
