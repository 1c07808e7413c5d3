// Reads a request's part of a step: its keys, rows and window.
#pragma once

#include "kernels/cuda/sm90/step/lists.cuh"

namespace lathe::cuda {

__device__ __forceinline__ bool is_padding(const BatchParams& b, std::int64_t r) {
  return b.padding != nullptr && b.padding[r] != 0;
}

__device__ __forceinline__ std::int32_t rows_of(const BatchParams& b, std::int64_t r) {
  const std::int32_t rows = b.rows[r];
  return rows > 0 ? rows : 0;
}

// a + b; negative if the sum is 2^31 or more.
__device__ __forceinline__ std::int32_t length_sum(std::int32_t a, std::int32_t b) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
}

// Keys of a request: the cached ones plus its own rows; 0 if the sum is not a valid length.
__device__ __forceinline__ std::int32_t kv_len(const BatchParams& b, std::int64_t r) {
  const std::int32_t keys = length_sum(b.cached[r], rows_of(b, r));
  return is_padding(b, r) || keys < 0 ? 0 : keys;
}

__device__ __forceinline__ std::int32_t entries_of(const BatchParams& b, std::int32_t keys) {
  return keys <= 0 ? 0 : static_cast<std::int32_t>(b.ratio(static_cast<std::uint32_t>(keys)));
}

}  // namespace lathe::cuda
