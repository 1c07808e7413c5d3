// Loads and stores with hints to the L2 cache on what to keep.
//
// A scale in a plane of its own is a part of a sector (32 bytes) whose other bytes belong to other
// rows. If slots are unordered those rows come much later, so the sector would be fetched for each
// of them, or written in pieces. So the cache keeps scales longest (they are at most an eighth of
// the codes) and drops codes and rows, which are accessed once, first. Kept data stay in the cache
// after a call until other kept data replace them. Hints, a compile-time constant, says which of
// these gained where.
#pragma once

#include <type_traits>

#include "kernels/cuda/sm90/codec/chunk.cuh"

namespace lathe::cuda {

template <class T>
__device__ __forceinline__ T load_scale_bits(const RunParams& run, Address at, bool vector) {
  return run.hints.keeps_scales && vector ? load_kept<T, Keep::longest>(at) : load<T>(at, vector);
}
// To: Address, or another type with a store_global(), whose memory the L2 cache does not hold.
template <class To, class T>
__device__ __forceinline__ void store_scale_bits(const RunParams& run, To at, T v, bool vector) {
  if constexpr (std::is_same_v<To, Address>) {
    if (run.hints.keeps_scales && vector) return store_kept<Keep::longest>(at, v);
  }
  store(at, v, vector);
}

template <class T>
__device__ __forceinline__ T load_value(const RunParams& run, Address at, bool vector) {
  return run.hints.drops_values && vector ? load_kept<T, Keep::shortest>(at) : load<T>(at, vector);
}
template <class To, class T>
__device__ __forceinline__ void store_value(const RunParams& run, To at, T v, bool vector) {
  if constexpr (std::is_same_v<To, Address>) {
    if (run.hints.drops_values && vector) return store_kept<Keep::shortest>(at, v);
  }
  store(at, v, vector);
}

// Eight elements of a row. f32 rows are rare and go without hints.
template <class T>
__device__ __forceinline__ Raw<T> load_row(const RunParams& run, Address at, bool vector) {
  if constexpr (std::is_same_v<T, bf16>) {
    return {load_value<uint4>(run, at, vector)};
  } else {
    return load_raw<T>(at, vector);
  }
}
template <class T>
__device__ __forceinline__ void store_row(const RunParams& run, Address at, const Raw<T>& raw,
                                          bool vector) {
  if constexpr (std::is_same_v<T, bf16>) {
    store_value(run, at, raw.v, vector);
  } else {
    store_raw(at, raw, vector);
  }
}

}  // namespace lathe::cuda
