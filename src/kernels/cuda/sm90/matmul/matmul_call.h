// Launches a product kernel with given tiles, for tests and benches.
#pragma once

#include <span>

#include "kernels/cuda/common/row_map.h"
#include "kernels/cuda/sm90/matmul/matmul.h"
#include "kernels/cuda/sm90/matmul/matmul_cut.h"
#include "kernels/cuda/sm90/matmul/matmul_kernels.h"

namespace lathe::cuda {

/// What matmul_on_device() cuts for calls that it takes.
MatmulShape shape_of(std::span<const MatmulCall> calls, int sms);

/// A launch before its tensor maps are made.
struct MatmulLaunch {
  MatmulParams params;
  MatmulInstance instance;  // no clusters: nothing to launch
  RowBoxes x;
  RowBoxes weights[kMatmulWeights];
  RowBoxes out[kMatmulWeights];  // of f32, where MatmulWeight::staged is set
};
MatmulLaunch make_launch(std::span<const MatmulCall> calls, const MatmulCut& cut, int sms);

/// tokens: of a tile; 8, 16 or 32, in pairs 128 or 256.
MatmulLaunch make_launch(const GroupedMatmulCall& call, int tokens, int sms);
/// What grouped_matmul_on_device() chooses.
int grouped_tile_tokens(const GroupedMatmulCall& call);

/// matmul_on_device() of calls that have been checked, cut like this.
Result<void> matmul_as_cut(std::span<const MatmulCall> calls, const MatmulCut& cut, int sms,
                           cudaStream_t stream);

}  // namespace lathe::cuda
