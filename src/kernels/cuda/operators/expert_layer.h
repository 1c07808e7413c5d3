// Runs a layer of experts on the device, without waiting for the host.
//
// A row's bits depend on that row alone, and not on how many rows there are: products never split
// K, and a row's experts are added in the order of their numbers.
#pragma once

#include <cuda_runtime_api.h>

#include "base/arena.h"
#include "base/result.h"
#include "kernels/moe.h"

namespace lathe::cuda {

/// Bytes that a pass through the experts takes at most, but for what one row takes: two bf16 rows
/// for each chosen expert, one as wide as the layer and one as wide as the expert, and codes of the
/// latter where activations are quantized. More rows go in several passes, of which each reads all
/// weights: 8192 rows of DeepSeek V3, 1.3 GB, take one.
inline constexpr std::int64_t kExpertPassBytes = std::int64_t{1536} << 20;

/// Grouped products (sm90/matmul) with bf16 between them where they take x and the experts'
/// weights, quantized where the precision says so; else, or with `plain`, plain ones in f32.
/// Temporaries come from `tensors`, of device memory. Errors: a launch that fails; more experts
/// than kMostExperts.
Result<void> expert_layer(const ExpertLayer& op, MatmulPrecision precision, bool plain,
                          Arena& tensors, cudaStream_t stream);

}  // namespace lathe::cuda
