// Stores a warpgroup's outputs.
#pragma once

#include "kernels/cuda/sm90/gqa/m128/gqa_m128_config.cuh"
#include "kernels/cuda/sm90/gqa/schedule/gqa_segments.cuh"

namespace lathe::cuda {

/// Of a thread: O of M rows `first` and `first` + 8, as wgmma has them (wgmma.cuh).
template <class N>
struct GqaM128Outputs {
  static constexpr int kValueDim = N::kValueDims * 64;

  const GqaParams& p;
  const GqaSegment& item;
  const float (&acc)[kValueDim / 2];
  const float (&factor)[2];  // of the M rows
  int first, lane;

  __device__ __forceinline__ void store() const {
    if (item.partial >= 0) {
      float* const to = p.partial_out + std::int64_t{item.partial} * N::kMRows * kValueDim;
      store_pairs([&](int m) { return to + m * kValueDim; });
    } else if (p.out_f32) {
      store_as<float, 8>();
    } else if (rows_begin_at<16>(2)) {
      store_words();
    } else {
      store_as<std::uint16_t, 4>();
    }
  }
  /// Whether rows of out, of elements of `bytes` bytes, begin at multiples of kBytes.
  template <int kBytes>
  __device__ bool rows_begin_at(int bytes) const {
    return reinterpret_cast<std::uintptr_t>(p.out) % kBytes == 0 &&
           p.out_stride * bytes % kBytes == 0;
  }
  /// kPairBytes: of two elements.
  template <class T, int kPairBytes>
  __device__ void store_as() const {
    if (rows_begin_at<kPairBytes>(kPairBytes / 2)) {
      store_pairs([&](int m) { return out_at<T>(m); });
    } else {
      store_pairs<false>([&](int m) { return out_at<T>(m); });
    }
  }
  /// An M row's out.
  template <class T>
  __device__ T* out_at(int m) const {
    const std::int32_t row = gqa_row_of(p, item.block, m);
    return static_cast<T*>(p.out) + (item.block.row + row) * p.out_stride +
           std::int64_t{gqa_head_of(p, item, m, row)} * kValueDim;
  }
  /// at(m): where M row m goes. kWhole: pairs of elements are stored as words.
  template <bool kWhole = true, class At>
  __device__ void store_pairs(const At& at) const {
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int m = first + 8 * i;
      if (m >= item.block.m_rows) continue;
      auto* const to = at(m) + 2 * (lane & 3);
      LATHE_UNROLL
      for (int j = 0; j < kValueDim / 8; ++j) {
        const float a = acc[4 * j + 2 * i] * factor[i], b = acc[4 * j + 2 * i + 1] * factor[i];
        store_pair<kWhole>(to + 8 * j, a, b);
      }
    }
  }
  template <bool kWhole>
  __device__ static void store_pair(float* to, float a, float b) {
    if constexpr (kWhole) {
      *reinterpret_cast<float2*>(to) = make_float2(a, b);
    } else {
      to[0] = a, to[1] = b;
    }
  }
  template <bool kWhole>
  __device__ static void store_pair(std::uint16_t* to, float a, float b) {
    const std::uint32_t pair = pack_bf16(a, b);
    if constexpr (kWhole) {
      *reinterpret_cast<std::uint32_t*>(to) = pair;
    } else {
      to[0] = static_cast<std::uint16_t>(pair), to[1] = static_cast<std::uint16_t>(pair >> 16);
    }
  }
  /// Transposes 4 x 4 words over four neighbouring lanes: lane l gets their words l.
  __device__ uint4 transpose_words(const std::uint32_t (&v)[4]) const {
    const bool odd = (lane & 1) != 0, high = (lane & 2) != 0;
    const std::uint32_t a = shuffle_xor(odd ? v[0] : v[1], 1);
    const std::uint32_t b = shuffle_xor(odd ? v[2] : v[3], 1);
    const std::uint32_t w[4] = {odd ? a : v[0], odd ? v[1] : a, odd ? b : v[2], odd ? v[3] : b};
    const std::uint32_t c = shuffle_xor(high ? w[0] : w[2], 2);
    const std::uint32_t d = shuffle_xor(high ? w[1] : w[3], 2);
    return {high ? c : w[0], high ? d : w[1], high ? w[2] : c, high ? w[3] : d};
  }
  /// Stores bf16, four lanes 64 bytes of a row. Without the transposition they would write 16.
  __device__ void store_words() const {
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int m = first + 8 * i;
      const bool stores = m < item.block.m_rows;
      uint4 words[kValueDim / 32];
      LATHE_UNROLL
      for (int j = 0; j < kValueDim / 32; ++j) {
        std::uint32_t v[4];
        LATHE_UNROLL
        for (int k = 0; k < 4; ++k) {
          const float* const from = acc + 16 * j + 4 * k + 2 * i;
          v[k] = pack_bf16(from[0] * factor[i], from[1] * factor[i]);
        }
        words[j] = transpose_words(v);
      }
      if (!stores) continue;
      auto* const to = reinterpret_cast<uint4*>(out_at<std::uint16_t>(m)) + (lane & 3);
      LATHE_UNROLL
      for (int j = 0; j < kValueDim / 32; ++j) to[4 * j] = words[j];
    }
  }
};

}  // namespace lathe::cuda
