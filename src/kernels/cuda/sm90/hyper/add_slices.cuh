// Adds a layer part's result to the streams of few rows, and multiplies the sum by the weight that
// the next part reads first: a slice of the narrow GEMM (narrow_gemm.cuh) per block, with the bits
// of both kernels. A launch less, and the weight is loaded before the part's result is there.
//
// Every stream's sum reads all streams, so the blocks of the four streams' slices are a cluster,
// and none writes before all have read.
#pragma once

#include "kernels/cuda/common/cluster_wait.cuh"
#include "kernels/cuda/sm90/hyper/hyper.cuh"

namespace lathe::cuda {

inline constexpr int kSliceThreads = 128, kSliceWarps = kSliceThreads / 32;

/// kLaneRows: rows per lane; a lane's group of eight has every fourth such group. Grid: slices, the
/// streams' of the same columns next to each other.
template <int kLaneRows>
static __global__ void __launch_bounds__(kSliceThreads)
    hyper_add_slices_kernel(const __grid_constant__ HyperAddParams add,
                            const __grid_constant__ NarrowGemm p) {
  constexpr int kRows = kSliceWarps * kLaneRows;
  constexpr int kWords = kNarrowSlice / kHyperWord;  // a warp's
  constexpr int kLaneWords = kWords / kSliceWarps;   // of the weight
  static_assert(kWords == 32 && kHyperWord == 4);
  __shared__ float4 x[kRows][kWords];
  __shared__ float sums[kSliceWarps][kRows][kNarrowOutputs];
  let_next_begin();
  const auto warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int group = lane % kNarrowGroups, lane_row = lane / kNarrowGroups * kLaneRows;
  const auto stream = static_cast<int>(blockIdx.x % kHyperStreams);
  const std::int64_t first_word = std::int64_t{blockIdx.x / kHyperStreams} * kWords;
  const std::int64_t first_of_stream = stream * (add.n / kHyperWord);
  const std::int64_t slice = (first_of_stream + first_word) / kWords;
  // Outputs past the last are the last one again; their sums are dropped.
  float4 u[kLaneWords][kNarrowLaneOutputs];
  LATHE_UNROLL
  for (int j = 0; j < kNarrowLaneOutputs; ++j) {
    const int output = group + j * kNarrowGroups;
    const float* const w = p.w + (output < p.outputs ? output : p.outputs - 1) * p.cols;
    LATHE_UNROLL
    for (int k = 0; k < kLaneWords; ++k) {
      u[k][j] = word_at(w, slice * kWords + warp * kLaneWords + k);
    }
  }
  wait_for_previous();
  float4 own[kLaneRows];
  LATHE_UNROLL
  for (int i = 0; i < kLaneRows; ++i) {
    const int r = warp + i * kSliceWarps;
    const std::int64_t row = r < add.rows ? r : add.rows - 1;
    own[i] = AddedWord(add, row, first_word + lane).stream(add, row, stream);
    x[r][lane] = own[i];
  }
  release_cluster();
  sync_block();
  float acc[kLaneRows][kNarrowLaneOutputs] = {};
  LATHE_UNROLL
  for (int k = 0; k < kLaneWords; ++k) {
    float4 v[kLaneRows];
    LATHE_UNROLL
    for (int i = 0; i < kLaneRows; ++i) v[i] = x[lane_row + i][warp * kLaneWords + k];
    multiply_words(v, u[k], acc);
  }
  LATHE_UNROLL
  for (int i = 0; i < kLaneRows; ++i) {
    LATHE_UNROLL
    for (int j = 0; j < kNarrowLaneOutputs; ++j) {
      sums[warp][lane_row + i][group + j * kNarrowGroups] = acc[i][j];
    }
  }
  sync_block();
  for (auto at = static_cast<int>(threadIdx.x); at < kRows * kNarrowOutputs; at += kSliceThreads) {
    const int output = at % kNarrowOutputs, row = at / kNarrowOutputs;
    if (output >= p.outputs || row >= p.rows) continue;
    float sum = 0;
    LATHE_UNROLL
    for (int i = 0; i < kSliceWarps; ++i) sum += sums[i][row][output];
    p.parts[(slice * p.rows + row) * p.outputs + output] = sum;
  }
  wait_cluster();
  LATHE_UNROLL
  for (int i = 0; i < kLaneRows; ++i) {
    const int row = warp + i * kSliceWarps;
    if (row >= add.rows) continue;
    auto* const to = reinterpret_cast<float4*>(add.x + row * add.x_stride);
    to[first_of_stream + first_word + lane] = own[i];
  }
}

}  // namespace lathe::cuda
