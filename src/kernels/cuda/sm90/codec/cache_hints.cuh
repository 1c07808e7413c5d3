// Loads and stores with L2 cache hints.
//
// Where a layout stores scales in a separate plane, a scale is part of a 32-byte sector that it
// shares with other rows' scales. With unordered slots those rows are accessed much later, so the
// sector would be fetched once per row, or written in pieces. The hints make L2 keep scales longest
// (they are at most an eighth of the codes) and evict codes and rows first, which are accessed
// once. Kept data stay in L2 after a call until other kept data replace them. Hints is a
// compile-time constant; it has what measured faster per layout.
#pragma once

#include <type_traits>

#include "kernels/cuda/sm90/codec/chunk.cuh"

namespace lathe::cuda {

template <class T>
__device__ __forceinline__ T load_scale_bits(const RunParams& run, Address at, bool vector) {
  return run.hints.keeps_scales && vector ? load_kept<T, Keep::longest>(at) : load<T>(at, vector);
}
// To: Address, or a type with store_global() for memory that L2 does not cache, such as shared
// memory.
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

// Loads eight elements of a row. f32 rows are rare and get no hints.
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
