// Sums of a tile that wait in memory (MatmulParams::kept) for other parts of K, of the same block
// or, with MatmulCluster::spread, of others. A block has room for one tile.
#pragma once

#include "kernels/cuda/common/arrivals.cuh"
#include "kernels/cuda/sm90/matmul/matmul_work.cuh"

namespace lathe::cuda {

/// The first of a thread's words of four sums in a block's room; they are kConsumers apart.
template <int kConsumers>
__device__ inline float4* kept_at(const MatmulParams& p, std::uint32_t block) {
  return reinterpret_cast<float4*>(p.kept + block * kMatmulKeptFloats) + threadIdx.x;
}

template <int kConsumers, int kValues>
__device__ __forceinline__ void keep_sums(const MatmulParams& p, const float (&sums)[kValues]) {
  float4* const to = kept_at<kConsumers>(p, blockIdx.x);
  LATHE_UNROLL
  for (int j = 0; j < kValues / 4; ++j) {
    to[j * kConsumers] = {sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]};
  }
}
/// sums = those that this thread kept + sums.
template <int kConsumers, int kValues>
__device__ __forceinline__ void add_kept_sums(const MatmulParams& p, float (&sums)[kValues]) {
  const float4* const from = kept_at<kConsumers>(p, blockIdx.x);
  LATHE_UNROLL
  for (int j = 0; j < kValues / 4; ++j) {
    const float4 v = from[j * kConsumers];
    sums[4 * j] = v.x + sums[4 * j];
    sums[4 * j + 1] = v.y + sums[4 * j + 1];
    sums[4 * j + 2] = v.z + sums[4 * j + 2];
    sums[4 * j + 3] = v.w + sums[4 * j + 3];
  }
}

/// With MatmulCluster::spread, after a part of K: sends its sums, or, after the first part, adds
/// those of the others in order. Returns whether this is the first part. All consumers call it. A
/// part's cluster precedes that of the part before it and waits for none behind it, so all end
/// however few SMs there are.
template <int kConsumers, int kValues>
__device__ __forceinline__ bool join_parts(const MatmulParams& p, std::int32_t part,
                                           float (&sums)[kValues]) {
  constexpr int kBatch = kValues <= 64 ? 16 : 8;  // as registers allow
  // Of the first part's block.
  std::uint32_t* const arrivals = p.arrivals + blockIdx.x + 2 * static_cast<std::uint32_t>(part);
  if (part > 0) {
    keep_sums<kConsumers>(p, sums);
    group_sync(kMatmulConsumersBarrier, kConsumers);
    if (threadIdx.x == 0) arrive_release(arrivals);
    return false;
  }
  if (threadIdx.x == 0) wait_arrivals(arrivals, static_cast<std::uint32_t>(p.split - 1));
  group_sync(kMatmulConsumersBarrier, kConsumers);
  LATHE_ROLLED
  for (std::int32_t other = 1; other < p.split; ++other) {
    const float4* const from =
        kept_at<kConsumers>(p, blockIdx.x - 2 * static_cast<std::uint32_t>(other));
    LATHE_UNROLL
    for (int batch = 0; batch < kValues / 4; batch += kBatch) {
      // All loads are issued before the first result is used.
      float4 v[kBatch];
      LATHE_UNROLL
      for (int j = 0; j < kBatch; ++j) v[j] = load_sent(from + (batch + j) * kConsumers);
      LATHE_UNROLL
      for (int j = 0; j < kBatch; ++j) {
        float* const to = sums + 4 * (batch + j);
        to[0] += v[j].x;
        to[1] += v[j].y;
        to[2] += v[j].z;
        to[3] += v[j].w;
      }
    }
  }
  return true;
}

}  // namespace lathe::cuda
