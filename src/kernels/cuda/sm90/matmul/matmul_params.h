// The parameters of a launch of the product kernels, plain values.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/common/activation_terms.h"

namespace lathe::cuda {

inline constexpr int kMatmulWeights = 6;     // of a launch, at most
inline constexpr int kMatmulTileRows = 128;  // weight rows of a tile, at most
inline constexpr int kMatmulMaxSplit = 8;    // blocks of a cluster
inline constexpr int kMatmulGroups = 512;    // of a grouped product, at most

/// Tokens of a box of MatmulMaps::out, and weight rows.
inline constexpr int kMatmulOutTokens = 32, kMatmulOutRows = 32;

/// One weight of a launch and where its product goes.
struct MatmulWeight {
  void* out;          // [m, rows] f32 or bf16
  const float* bias;  // [rows] or null
  // e4m3: f32 [ceil(rows / 128), ceil(k / 128)], or null (all 1); e2m1: ue8m0 [rows, mx_blocks].
  const void* scales;
  std::int64_t out_stride;  // elements
  std::int32_t rows;
  std::int32_t first_tile;  // of the launch's weight tiles
  std::int32_t out_bf16;
  std::int32_t add;  // f32 out +=
  // In tiles of pairs and of 128 tokens of a group: f32 out goes by MatmulMaps::out, bf16 in words
  // of 16 bytes.
  std::int32_t staged;
};

struct MatmulParams {
  MatmulWeight weights[kMatmulWeights];
  std::int32_t weight_count;
  std::int32_t m;          // tokens
  std::int32_t mx_blocks;  // of a row of e2m1 weights
  std::int32_t chunks;     // of K: 128 bytes of a weight row each
  std::int32_t split;  // parts of K, a power of two, whose sums are closed before they are added
  std::int32_t tile_rows;  // weight rows of a tile: a multiple of 16, of a gated product 32
  std::int32_t tiles;      // of weight rows, over all weights
  std::int32_t token_tiles;
  const float* x_scales;        // of e4m3 tokens: [chunks, x_scale_stride], else null
  std::int32_t x_scale_stride;  // a multiple of 4
  // Of a grouped product; its weight is that of the first group.
  const std::int32_t* offsets;  // [groups + 1] first token of each, or null: each takes all
  std::int32_t groups;
  std::int32_t x_by_group;                          // x is [groups] pages
  std::int64_t out_group, bias_group, scale_group;  // elements from a group to the next
  // Of a gated product, else 0: it makes activation(gate, up), of rows of weights[0] and
  // weights[1], of which tiles hold 8 and 8 by turns. weights[0].rows counts both. From a row of
  // either to its next are gate_step rows: 2 where one array holds the rows of both by turns.
  std::int32_t gate_step;
  std::int32_t up_first;  // weights[0] is the up projection
  ActivationTerms activation;
};

/// Tensor maps of a launch.
struct MatmulMaps {
  CUtensorMap x;
  CUtensorMap weights[kMatmulWeights];
  CUtensorMap out[kMatmulWeights];  // of f32, where MatmulWeight::staged is set
};

}  // namespace lathe::cuda
