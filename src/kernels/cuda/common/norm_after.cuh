// The norm of a row that the block has in shared memory, with the bits of norm_kernel
// (sm90/rowwise/norm.cuh): its 128 threads' order of sums, and no product is joined with a sum,
// which units without --fmad=false would do.
//
// A decode step's norm is one block's work, and most of its time is latency. So the code is short
// (each line of it that is run once comes from L2), and what does not depend on the previous launch
// is loaded before that has ended.
#pragma once

#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/common/norm_after.h"
#include "kernels/cuda/common/quantize_block.cuh"

namespace lathe::cuda {

inline constexpr int kNormAfterThreads = 512;

__device__ inline float rounded_product(float a, float b) {
#ifdef __CUDACC__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

/// A row in shared memory, and the sums of its warps.
struct NormedRow {
  float4 words[kNormAfterColumns / 4];
  float room[4];
};

/// For a block of kNormAfterThreads. Precondition: whole words of columns.
class NormAfterRow {
 public:
  /// Loads the weights; before wait_for_previous().
  __device__ NormAfterRow(const NormAfter& n, std::int64_t cols) : n_(n) {
    const auto words = static_cast<std::int32_t>(cols / 4);
    LATHE_UNROLL
    for (int i = 0; i < kWords; ++i) {
      const std::int32_t word = word_of(i);
      weights_[i] = word < words ? reinterpret_cast<const float4*>(n.weight)[word] : float4{};
    }
  }
  /// n.h = the norm of the row. Begins with a barrier, after which all of `x` is there.
  __device__ void run(std::int64_t row, std::int64_t cols, NormedRow& x) const {
    const float factor = factor_of(cols, x);
    const auto words = static_cast<std::int32_t>(cols / 4);
    const std::int64_t first = row * n_.h.stride;
    LATHE_UNROLL
    for (int i = 0; i < kWords; ++i) {
      const std::int32_t word = word_of(i);
      if (word >= words) break;
      const float4 v = x.words[word], w = weights_[i];
      const float4 y = {rounded_product(rounded_product(v.x, factor), w.x),
                        rounded_product(rounded_product(v.y, factor), w.y),
                        rounded_product(rounded_product(v.z, factor), w.z),
                        rounded_product(rounded_product(v.w, factor), w.w)};
      if (n_.h.dtype == DType::f32) {
        reinterpret_cast<float4*>(n_.h.data + 4 * first)[word] = y;
      } else {
        const uint2 pairs = {to_bf16(y.x).bits | std::uint32_t{to_bf16(y.y).bits} << 16,
                             to_bf16(y.z).bits | std::uint32_t{to_bf16(y.w).bits} << 16};
        reinterpret_cast<uint2*>(n_.h.data + 2 * first)[word] = pairs;
        x.words[word] = {bits_to_float(pairs.x << 16), bits_to_float(pairs.x & 0xffff0000u),
                         bits_to_float(pairs.y << 16), bits_to_float(pairs.y & 0xffff0000u)};
      }
    }
    if (n_.codes.codes != nullptr) quantize(row, cols, x);
  }

 private:
  // Of the thread's words, which are h in bf16: a warp's are a block. Not unrolled, because code
  // that runs once comes from L2.
  __device__ void quantize(std::int64_t row, std::int64_t cols, const NormedRow& x) const {
    const auto words = static_cast<std::int32_t>(cols / 4);
    LATHE_ROLLED
    for (std::int32_t word = word_of(0); word < words; word += kNormAfterThreads) {
      const float4 at = x.words[word];
      const float v[4] = {at.x, at.y, at.z, at.w};
      const auto [codes, scale] = quantize_block(v, n_.codes.power_of_two);
      reinterpret_cast<std::uint32_t*>(n_.codes.codes + row * cols)[word] = codes;
      if (word % 32 == 0) n_.codes.scales[word / 32 * n_.codes.scale_stride + row] = scale;
    }
  }
  static constexpr int kWords = kNormAfterColumns / 4 / kNormAfterThreads;

  __device__ static std::int32_t word_of(int i) {
    return i * kNormAfterThreads + static_cast<std::int32_t>(threadIdx.x);
  }
  __device__ float factor_of(std::int64_t cols, NormedRow& x) const {
    constexpr int kSums = 128;
    const float* const v = reinterpret_cast<const float*>(x.words);
    sync_block();
    if (threadIdx.x < kSums) {
      float squares = 0;
      LATHE_UNROLL_BY(8)
      for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < cols; i += kSums) {
        squares += rounded_product(v[i], v[i]);
      }
      for (int d = 16; d > 0; d /= 2) squares += shuffle_xor(squares, d);
      if (threadIdx.x % 32 == 0) x.room[threadIdx.x / 32] = squares;
    }
    sync_block();
    const float squares = ((x.room[0] + x.room[1]) + x.room[2]) + x.room[3];
    return 1 / sqrtf(squares / static_cast<float>(cols) + n_.eps);
  }

  const NormAfter& n_;
  float4 weights_[kWords];
};

}  // namespace lathe::cuda
