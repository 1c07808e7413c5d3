// Mixture of experts without its products: routes rows to experts, and sums the experts' results.
// Nothing waits for the host, and no atomic decides an order.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/common/device_rows.h"
#include "kernels/moe.h"

namespace lathe::cuda {

inline constexpr std::int32_t kMostExperts = 1024;

/// Of every row the experts that its router chooses, by ascending number, ties to the lower one; or
/// those that the table has for the row's token, in its order.
struct RouteParams {
  const float* logits = nullptr;                // [rows, experts], rows logits_stride apart
  const float* bias = nullptr;                  // [experts] or null
  const std::int32_t* token_experts = nullptr;  // [vocab, top_k] or null
  const std::int32_t* tokens = nullptr;         // [rows]; outside the table: as token 0
  std::int64_t vocab = 0;
  std::int32_t* ids = nullptr;  // [rows, top_k] out
  float* weights = nullptr;     // [rows, top_k] out
  std::int64_t rows = 0, logits_stride = 0;
  std::int32_t experts = 0, top_k = 0, groups = 1, top_groups = 1;
  RouterScoring scoring = RouterScoring::softmax;
  bool normalize = true;
  float scale = 1;
};

/// Places of the rows' choices, by expert and then by row: expert e has places offsets[e] to
/// offsets[e + 1] - 1.
struct PlaceParams {
  const std::int32_t* ids = nullptr;  // [choices]
  std::int64_t choices = 0;           // rows * top_k
  std::int32_t experts = 0, top_k = 0;
  std::int32_t* block_counts = nullptr;  // [place_blocks(choices), experts] scratch of several
  std::int32_t* offsets = nullptr;       // [experts + 1] out
  std::int32_t* places = nullptr;        // [choices] out
  std::int32_t* rows = nullptr;          // [choices] out: of each place the row
};

/// Blocks that place so many choices.
constexpr std::int64_t place_blocks(std::int64_t choices) {
  constexpr std::int64_t kEach = 2048;  // two turns of a warp
  return choices <= kEach ? 1 : (choices + kEach - 1) / kEach;
}

/// out[t] += the sum over j of weights[t, j] * made[places[t, j]], j ascending.
struct CombineExperts {
  DeviceRows made = {};                  // [choices, cols], rows at multiples of 8 bytes
  const float* weights = nullptr;        // [rows, top_k]
  const std::int32_t* places = nullptr;  // [rows, top_k]
  float* out = nullptr;
  std::int64_t out_stride = 0;
  std::int64_t rows = 0, cols = 0;
  std::int32_t top_k = 0;
};

cudaError_t launch_route(const RouteParams& p, cudaStream_t stream);
cudaError_t launch_place(const PlaceParams& p, cudaStream_t stream);
cudaError_t launch_combine_experts(const CombineExperts& p, cudaStream_t stream);

}  // namespace lathe::cuda
