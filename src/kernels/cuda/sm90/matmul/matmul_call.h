// From calls to launches of the matmul kernels. Tests and benches launch with given tiles.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/common/row_map.h"
#include "kernels/cuda/sm90/matmul/matmul.h"
#include "kernels/cuda/sm90/matmul/matmul_kernels.h"
#include "kernels/cuda/sm90/matmul/matmul_tiling.h"

namespace lathe::cuda {

/// Whether p is null or aligned to `bytes`.
inline bool at_multiple(const void* p, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(p) % bytes == 0;
}

/// The first group as an ungated call: out gets as many columns as the weight has rows.
MatmulCall first_group(const GroupedMatmulCall& call);

/// The shape from which matmul_on_device() chooses its tiles.
MatmulShape shape_of(std::span<const MatmulCall> calls, int sms);

/// A launch before its tensor maps are made.
struct MatmulLaunch {
  MatmulParams params;
  MatmulInstance instance;  // no clusters: nothing to launch
  RowBoxes x;
  RowBoxes x_tail;  // if MatmulParams::tail_tokens is set
  RowBoxes x_dense;
  RowBoxes weights[kMatmulWeights];
  RowBoxes out[kMatmulWeights];  // if MatmulWeight::staged is set
};
MatmulLaunch make_launch(std::span<const MatmulCall> calls, const MatmulTiling& tiling, int sms);

/// tokens: per tile; 8, 16 or 32, or 128 or 256 in pairs.
MatmulLaunch make_launch(const GroupedMatmulCall& call, int tokens, int sms);
/// Tokens per tile as grouped_matmul_on_device() chooses them.
int grouped_tile_tokens(const GroupedMatmulCall& call);

/// matmul_on_device() for checked calls, with the given tiles and split.
Result<void> matmul_with_tiling(std::span<const MatmulCall> calls, const MatmulTiling& tiling,
                                int sms, cudaStream_t stream);

}  // namespace lathe::cuda
