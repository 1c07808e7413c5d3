// Sums of a tile that wait in memory (MatmulParams::kept) for other parts of K, of the same block
// (then partly in shared memory) or, with MatmulCluster::spread, of others. A block has room for
// one tile.
#pragma once

#include "kernels/cuda/common/arrivals.cuh"
#include "kernels/cuda/sm90/matmul/matmul_work.cuh"

namespace lathe::cuda {

/// The first of a thread's words of four sums in a block's room. They are T::kConsumers apart.
template <class T>
__device__ inline float4* kept_at(const MatmulParams& p, std::uint32_t block) {
  return reinterpret_cast<float4*>(p.kept + block * kMatmulKeptFloats) + threadIdx.x;
}

/// Of four sums a word's element (i + kKeptTurn) % 4 is the i-th. A word is stored from registers
/// that begin at a multiple of 4. With a turn by one, totals are not in the banks of chunks' sums,
/// which wgmma keeps in such registers: an FMA takes two clocks if all its operands are in one
/// bank. Other formats' totals are in wgmma's registers.
template <class T>
inline constexpr int kKeptTurn = T::kTokensOnM ? 1 : 0;
template <class T>
__device__ __forceinline__ float4 kept_word(const float* v) {
  constexpr int kTurn = kKeptTurn<T>;
  return {v[(4 - kTurn) % 4], v[(5 - kTurn) % 4], v[(6 - kTurn) % 4], v[(7 - kTurn) % 4]};
}
/// v += the four sums of a word.
template <class T>
__device__ __forceinline__ void add_word(float* v, const float4& word) {
  constexpr int kTurn = kKeptTurn<T>;
  v[(4 - kTurn) % 4] += word.x;
  v[(5 - kTurn) % 4] += word.y;
  v[(6 - kTurn) % 4] += word.z;
  v[(7 - kTurn) % 4] += word.w;
}

/// Keeps a thread's sums from `kFirst` on in memory.
template <class T, int kFirst, int kValues>
__device__ __forceinline__ void keep_sums(const MatmulParams& p, const float (&sums)[kValues]) {
  float4* const to = kept_at<T>(p, blockIdx.x);
  LATHE_UNROLL
  for (int j = kFirst / 4; j < kValues / 4; ++j) {
    to[j * T::kConsumers] = kept_word<T>(sums + 4 * j);
  }
}

/// Of a thread's sums between parts of K in one block, those that the output buffer has room for
/// stay in shared memory: all blocks write and read the others at about the same time, at the rate
/// of L2.
template <class T>
inline constexpr int kKeptInShared = T::kOutBytes / 4 / T::kConsumers;
/// The first of the thread's words; they are 512 bytes apart, in the warp's part of the buffer.
template <class T>
__device__ inline std::uint32_t kept_in_shared(const MatmulShared<T>& s) {
  const std::uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  return s.out(0) + warp * (T::kOutBytes / T::kConsumers * 32) + 16 * lane;
}
/// Precondition: nothing in the warp's part of the output buffer is waited for.
template <class T, int kValues>
__device__ __forceinline__ void keep_own_sums(const MatmulParams& p, const MatmulShared<T>& s,
                                              const float (&sums)[kValues]) {
  const std::uint32_t to = kept_in_shared(s);
  LATHE_UNROLL
  for (int j = 0; j < kKeptInShared<T> / 4; ++j) {
    const float4 v = kept_word<T>(sums + 4 * j);
    store_shared(to + static_cast<std::uint32_t>(512 * j), float_to_bits(v.x), float_to_bits(v.y),
                 float_to_bits(v.z), float_to_bits(v.w));
  }
  keep_sums<T, kKeptInShared<T>>(p, sums);
}
/// sums = those that this thread kept + sums.
template <class T, int kValues>
__device__ __forceinline__ void add_own_sums(const MatmulParams& p, const MatmulShared<T>& s,
                                             float (&sums)[kValues]) {
  const float4* const from = kept_at<T>(p, blockIdx.x);
  LATHE_UNROLL
  for (int j = kKeptInShared<T> / 4; j < kValues / 4; ++j) {
    add_word<T>(sums + 4 * j, from[j * T::kConsumers]);
  }
  const std::uint32_t shared = kept_in_shared(s);
  LATHE_UNROLL
  for (int j = 0; j < kKeptInShared<T> / 4; ++j) {
    add_word<T>(sums + 4 * j, load_floats(shared + static_cast<std::uint32_t>(512 * j)));
  }
}

/// With MatmulCluster::spread, after a part of K: sends its sums, or, after the first part, adds
/// those of the others in order. Returns whether this is the first part. All consumers call it. A
/// part's cluster precedes that of the part before it and waits for none behind it, so all end
/// however few SMs there are.
template <class T, int kValues>
__device__ __forceinline__ bool join_parts(const MatmulParams& p, std::int32_t part,
                                           float (&sums)[kValues]) {
  constexpr int kBatch = kValues <= 64 ? 16 : 8;  // as registers allow
  // Of the first part's block.
  std::uint32_t* const arrivals =
      p.arrivals + blockIdx.x + T::kPairBlocks * static_cast<std::uint32_t>(part);
  if (part > 0) {
    keep_sums<T, 0>(p, sums);
    group_sync(kMatmulConsumersBarrier, T::kConsumers);
    if (threadIdx.x == 0) arrive_release(arrivals);
    return false;
  }
  if (threadIdx.x == 0) wait_arrivals(arrivals, static_cast<std::uint32_t>(p.split - 1));
  group_sync(kMatmulConsumersBarrier, T::kConsumers);
  LATHE_ROLLED
  for (std::int32_t other = 1; other < p.split; ++other) {
    const float4* const from =
        kept_at<T>(p, blockIdx.x - T::kPairBlocks * static_cast<std::uint32_t>(other));
    LATHE_UNROLL
    for (int batch = 0; batch < kValues / 4; batch += kBatch) {
      // All loads are issued before the first result is used.
      float4 v[kBatch];
      LATHE_UNROLL
      for (int j = 0; j < kBatch; ++j) v[j] = load_sent(from + (batch + j) * T::kConsumers);
      LATHE_UNROLL
      for (int j = 0; j < kBatch; ++j) add_word<T>(sums + 4 * (batch + j), v[j]);
    }
  }
  return true;
}

}  // namespace lathe::cuda
