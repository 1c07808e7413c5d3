// Hyper-connections with four streams (kernels/hyper.h): mixes a row's streams to the input of a
// layer part, and adds the part's result back to all of them. Each call launches one kernel, or
// none if there are no rows; a row's bits depend on that row alone.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/common/norm_after.h"
#include "kernels/cuda/sm90/matmul/plain/narrow_gemm.h"
#include "kernels/limits.h"

namespace lathe::cuda {

/// HyperMix; or HyperHead, with mix null, base [4] and scale [1], or for a mean product null.
struct HyperMixParams {
  const float* x = nullptr;        // [rows, 4 n]
  const float* product = nullptr;  // [rows, columns], or null
  const float* base = nullptr;
  const float* scale = nullptr;
  float* out = nullptr;  // [rows, n]
  float* mix = nullptr;  // [rows, 20, or 4 without iterations], or null
  std::int64_t x_stride = 0, product_stride = 0, out_stride = 0, mix_stride = 0;
  std::int64_t rows = 0, n = 0;
  std::int32_t columns = 0;  // of product: 24, 8 without iterations, or 4
  std::int32_t iterations = 0;
  float eps = 0, norm_eps = 0, post_scale = 2, post_eps = 0;
  NarrowGemm sum = {};  // makes `product` from its parts first; no parts: it is there
  NormAfter norm = {};  // of out
};

struct HyperAddParams {
  const float* y = nullptr;    // [rows, n]
  const float* mix = nullptr;  // [rows, 20], or [rows, 4] without combs
  float* x = nullptr;          // [rows, 4 n]
  std::int64_t y_stride = 0, mix_stride = 0, x_stride = 0;
  std::int64_t rows = 0, n = 0;
  bool combs = true;
};

/// Rows up to which launch_hyper_add_slices() takes less time than both launches: its blocks read x
/// four times.
inline constexpr std::int64_t kHyperSliceRows = 16;

cudaError_t launch_hyper_mix(const HyperMixParams& p, cudaStream_t stream);
cudaError_t launch_hyper_add(const HyperAddParams& p, cudaStream_t stream);
/// launch_hyper_add() and launch_narrow_slices() of its result in one kernel, with the same bits.
/// Preconditions: product.x is add.x, n a multiple of kNarrowSlice, rows up to kHyperSliceRows.
cudaError_t launch_hyper_add_slices(const HyperAddParams& add, const NarrowGemm& product,
                                    cudaStream_t stream);

}  // namespace lathe::cuda
