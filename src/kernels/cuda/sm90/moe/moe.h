// Mixture of experts except its GEMMs: routes rows to experts, and adds up the experts' outputs.
// Nothing waits for the host, and no order depends on atomics.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/common/norm_after.h"
#include "kernels/moe.h"

namespace lathe::cuda {

inline constexpr std::int32_t kMostExperts = 1024;

/// Every row's experts in ascending order, as its router chooses them, ties to the lower number; or
/// the experts that the table lists for the row's token, in the table's order.
struct RouteParams {
  const float* logits = nullptr;                // [rows, experts], rows logits_stride apart
  const float* bias = nullptr;                  // [experts], or null
  const float* expert_scale = nullptr;          // [experts] of the weights, or null
  const std::int32_t* token_experts = nullptr;  // [vocab, top_k], or null
  const std::int32_t* tokens = nullptr;         // [rows]; outside the table: as token 0
  std::int64_t vocab = 0;
  std::int32_t* ids = nullptr;  // [rows, top_k] out
  float* weights = nullptr;     // [rows, top_k] out
  std::int64_t rows = 0, logits_stride = 0;
  std::int32_t experts = 0, top_k = 0, groups = 1, top_groups = 1;
  RouterScoring scoring = RouterScoring::softmax;
  bool normalize = true;
  float scale = 1;
  bool group_by_best = false;  // ranks a group by its best score, not by the sum of its two best
};

/// Places of the rows' choices, sorted by expert and then by row: expert e has places offsets[e] to
/// offsets[e + 1] - 1.
struct PlaceParams {
  const std::int32_t* ids = nullptr;  // [choices]
  std::int64_t choices = 0;           // rows * top_k
  std::int32_t experts = 0, top_k = 0;
  std::int32_t* block_counts = nullptr;  // [place_blocks(choices), experts] scratch, if there are
                                         // several blocks
  std::int32_t* offsets = nullptr;       // [experts + 1] out
  std::int32_t* places = nullptr;        // [choices] out
  std::int32_t* rows = nullptr;          // [choices] out: the row of each place
};

/// Thread blocks for placing `choices` routed rows.
constexpr std::int64_t place_blocks(std::int64_t choices) {
  constexpr std::int64_t kEach = 2048;  // two rounds of each warp
  return choices <= kEach ? 1 : (choices + kEach - 1) / kEach;
}

/// Codes of rows in the order of places, and of the rows in order from row `own` on, as
/// quantize_rows_on_device() makes them.
struct DispatchCodes {
  std::uint8_t* codes = nullptr;  // [*, cols], aligned to 4 bytes; null: none are made
  float* scales = nullptr;        // [blocks of 128 columns, scale_stride]
  std::int64_t cols = 0;          // a multiple of 4
  std::int64_t scale_stride = 0;
  std::int64_t own = -1;  // negative: none
  bool power_of_two = false;
};

/// Routes rows and places their choices, and gathers the rows in the order of places or makes their
/// codes, in one launch.
struct DispatchParams {
  RouteParams route = {};  // route.ids is not written. No logits: the choices are place.ids
  PlaceParams place = {};  // block_counts is not used; rows: null if nothing reads them
  // Rows in words of 16 bytes, `words` of them; 0: nothing is gathered.
  const std::byte* x = nullptr;  // [rows] x_bytes apart; with codes bf16, aligned to 8 bytes
  std::byte* sorted = nullptr;   // [choices] sorted_bytes apart
  std::int64_t x_bytes = 0, sorted_bytes = 0;
  std::int64_t words = 0;
  DispatchCodes codes = {};
};

/// Most rows that launch_dispatch() routes: a warp each, in every block.
inline constexpr std::int64_t kDispatchRoutes = 8;
/// Most choices of launch_dispatch().
inline constexpr std::int64_t kDispatchChoices = 1024;
inline constexpr std::int32_t kDispatchSharedBytes = 64 * 1024;

/// Dynamic shared memory of a block besides that of routes: a bit for each expert and choice, and a
/// word an expert.
constexpr std::int32_t dispatch_shared_bytes(std::int64_t choices, std::int32_t experts) {
  const auto words = static_cast<std::int32_t>((choices + 31) / 32);
  return experts * ((words | 1) + 1) * 4;
}
/// Whether launch_dispatch() can place `choices` choices.
constexpr bool dispatch_takes(std::int64_t choices, std::int32_t experts) {
  return choices <= kDispatchChoices &&
         dispatch_shared_bytes(choices, experts) <= kDispatchSharedBytes;
}

/// Multiplies row places[c] by weights[c] for every choice c: the inputs of experts, where the
/// router's weights multiply these (Router::weighs_inputs).
struct WeighRowsParams {
  MutableDeviceRows rows = {};           // [choices, cols] f32 or bf16
  const float* weights = nullptr;        // [choices]
  const std::int32_t* places = nullptr;  // [choices]
  std::int64_t choices = 0, cols = 0;
  std::int64_t words = 0;  // 16-byte words of a row of bf16, or 0; launch sets it
};

/// out[t] += the sum over j of weights[t, j] * made[places[t, j]], j ascending. Places outside of
/// begin .. end - 1 are another rank's and add nothing.
struct CombineExperts {
  DeviceRows made = {};                  // [choices, cols], rows aligned to 8 bytes
  const float* weights = nullptr;        // [rows, top_k]; null: 1
  const std::int32_t* places = nullptr;  // [rows, top_k]
  // In device memory, as PlaceParams::offsets. Null: this rank has all places.
  const std::int32_t *begin = nullptr, *end = nullptr;
  float* out = nullptr;
  std::int64_t out_stride = 0;
  std::int64_t rows = 0, cols = 0;
  std::int32_t top_k = 0;
  bool add = true;
  // [shared_parts, rows, cols] Sums over the parts of K of what the shared experts make; they are
  // added to each other in order, and the result to out, last or with shared_first before all else.
  // Or null. Precondition: as with a norm.
  const float* shared = nullptr;
  std::int32_t shared_parts = 0;
  bool shared_first = false;
  // Of out. Precondition: made is bf16; rows of out are whole words of 16 bytes.
  NormAfter norm = {};
};

cudaError_t launch_route(const RouteParams& p, cudaStream_t stream);
cudaError_t launch_place(const PlaceParams& p, cudaStream_t stream);
/// Precondition: dispatch_takes(); with logits, at most kDispatchRoutes rows.
cudaError_t launch_dispatch(const DispatchParams& p, cudaStream_t stream);
cudaError_t launch_weigh_rows(const WeighRowsParams& p, cudaStream_t stream);
cudaError_t launch_combine_experts(const CombineExperts& p, cudaStream_t stream);

}  // namespace lathe::cuda
