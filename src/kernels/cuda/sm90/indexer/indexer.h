// The lightning indexer: scores a row's keys, and finds the slots of the best ones.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/common/fast_div.h"
#include "kernels/limits.h"

namespace lathe::cuda {

/// Index pages as kernels read them: page_tokens codes of `dim` e4m3, then page_tokens f32 scales.
struct IndexPages {
  const std::byte* data = nullptr;
  std::int64_t pages = 0, page_stride = 0;  // bytes
  std::int32_t page_tokens = 1, dim = 0;
};

/// logits[t, j] = sum over heads h of weights[t, h] * constant * (scale of q[t, h]) * relu(q . k),
/// for keys 0 .. lens[t] - 1 of the row's request. Other logits are not written.
struct IndexLogits {
  IndexPages q = {};               // a page per row, a token per head
  const float* weights = nullptr;  // [rows, heads], rows weights_stride apart
  std::int64_t weights_stride = 0;
  float constant = 1;
  IndexPages keys = {};
  const std::int32_t* page_table = nullptr;  // [requests, width]
  std::int64_t width = 0;
  const std::int32_t* request = nullptr;  // [rows]
  const std::int32_t* lens = nullptr;     // [rows]
  float* logits = nullptr;                // [rows, cols] out
  std::int64_t rows = 0, cols = 0;        // cols: at least the most keys of a row
  std::int32_t heads = 0;
};

/// slots[t]: slots of the k keys of row t with the highest logits, ordered by position, then -1.
/// Ties go to the lower position. A row with at most k keys selects all of them, without reading
/// logits. A NaN logit is never selected.
struct SelectSlots {
  const float* logits = nullptr;  // [rows, cols]
  std::int64_t rows = 0, cols = 0;
  const std::int32_t* lens = nullptr;        // [rows]
  const std::int32_t* page_table = nullptr;  // [requests, width]
  std::int64_t width = 0;
  const std::int32_t* request = nullptr;  // [rows]
  std::int32_t page_tokens = 1;           // page size of the pool that attention reads
  FastDiv page_of = {};                   // by page_tokens; the launch sets it
  std::int64_t pages = 0;
  std::int32_t* slots = nullptr;  // [rows, k] out
  std::int64_t k = 0;
};

/// slots[t]: row choice_rows[t] of `choices`, or, where that is -1, the row's first k keys, then
/// -1. select: as for SelectSlots, without logits.
struct TakeChoices {
  SelectSlots select = {};
  const std::int32_t* choice_rows = nullptr;  // [rows]
  const std::int32_t* choices = nullptr;      // [n, choice_width]
  std::int64_t choice_width = 0;
};

/// slots[t]: list_tokens() of kernels/key_groups.h.
struct ListGroups {
  const std::int32_t* keys = nullptr;  // [rows, k] slots of groups
  std::int64_t k = 0;
  const std::int32_t* lens = nullptr;  // [rows] tokens that a row sees
  const std::int32_t* own = nullptr;   // [rows] slots of the rows' own tokens
  std::int32_t group = 1;              // tokens of a key
  FastDiv key_of = {};                 // by group; the launch sets it
  std::int32_t* slots = nullptr;       // [rows, width] out
  std::int64_t rows = 0, width = 0;
};

/// out[t, h] = H x[t, h] / sqrt(dim), H the Hadamard matrix: layout/hadamard.h, bit for bit.
struct HadamardRows {
  const float* x = nullptr;  // [rows, heads, dim], rows x_stride apart
  float* out = nullptr;      // [rows, heads, dim]
  std::int64_t x_stride = 0, rows = 0;
  std::int32_t heads = 0, dim = 0;  // dim: a power of two up to kHadamardMostDim
};

cudaError_t launch_hadamard_rows(const HadamardRows& p, cudaStream_t stream);
/// slots[i] = i, but -1 where like[i] is negative; like: [count], or null.
cudaError_t launch_count_up(std::int32_t* slots, const std::int32_t* like, std::int64_t count,
                            cudaStream_t stream);
cudaError_t launch_index_logits(const IndexLogits& p, cudaStream_t stream);
cudaError_t launch_select_slots(const SelectSlots& p, cudaStream_t stream);
cudaError_t launch_take_choices(const TakeChoices& p, cudaStream_t stream);
cudaError_t launch_list_groups(const ListGroups& p, cudaStream_t stream);

}  // namespace lathe::cuda
