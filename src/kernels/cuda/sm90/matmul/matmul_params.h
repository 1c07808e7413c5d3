// Parameters of a launch of the matmul kernels: plain values.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/common/activation_terms.h"
#include "kernels/cuda/common/fast_div.h"

namespace lathe::cuda {

inline constexpr int kMatmulWeights = 6;     // of a launch, at most
inline constexpr int kMatmulTileRows = 128;  // weight rows of a tile, at most
inline constexpr int kMatmulMaxSplit = 8;    // blocks of a cluster, at most
inline constexpr int kNarrowSplit = 4;       // the same in MatmulCluster::narrow
inline constexpr int kMatmulGroups = 512;    // of a grouped GEMM, at most

/// Named barrier of all threads that multiply.
inline constexpr int kMatmulConsumersBarrier = 3;

/// Sums of a tile of 256 tokens.
inline constexpr std::int64_t kMatmulKeptFloats = kMatmulTileRows * 256;

/// Most bytes of the packed scales and zeros of a row's chunk.
inline constexpr int kMatmulPackedScale = 8, kMatmulPackedZero = 4;

/// Tokens of a box of MatmulMaps::x, for pairs with tiles of that many.
constexpr int matmul_pair_tokens(int tile) { return tile < 128 ? tile / 2 : 64; }

/// Tokens of a box of MatmulMaps::out, with tokens on wgmma's M fewer (has_tokens_on_m()). A box is
/// as wide as its swizzle: kMatmulOutRows rows in f32, 64 in bf16, or 32 of a gated GEMM unless
/// tokens are on M.
inline constexpr int kMatmulOutTokens = 32, kMatmulManyOutTokens = 16, kMatmulOutRows = 32;

/// One weight of a launch and its output.
struct MatmulWeight {
  void* out;          // [m, rows] f32 or bf16
  const float* bias;  // [rows], or null
  // e4m3: f32 [ceil(rows / 128), ceil(k / 128)], or [rows] with scale_rows, or null (all 1);
  // weights of 4 bits: packed (pack/packed_weights.h).
  const void* scales;
  const std::uint8_t* zeros;  // of u4, packed; or null (all kU4Zero)
  const float* factor;        // of NVFP4, multiplies all scales
  std::int64_t out_stride;    // elements
  std::int32_t rows;
  std::int32_t first_tile;  // index of its first tile among the launch's weight tiles
  std::int32_t out_bf16;
  std::int32_t add;  // out +=, for f32
  // For tiles of pairs, and of 128 tokens in a group: rows of out are whole 16-byte words. Stores
  // through shared memory and MatmulMaps::out.
  std::int32_t staged;
  std::int32_t scale_rows;    // of both weights of a gated GEMM
  std::int32_t packed_rows;   // rows of a chunk's packed scales, the weight's rounded up to 16
  std::int32_t scale_blocks;  // of e4m3: blocks of a row
};

/// Index of the weights of a dense GEMM, in MatmulParams::weights and MatmulMaps::weights.
inline constexpr int kDenseWeight = 2;

/// A dense GEMM in the launch of a grouped one of at most 32 tokens a tile. Its tiles come first,
/// because they do not depend on the groups: their weights are loaded before the previous launch
/// has ended. It has the launch's tile_rows, gate_step and activation.
struct MatmulDense {
  std::int32_t items;   // work tiles; 0: there is no such GEMM
  std::int32_t tiles;   // tiles of weight rows
  std::int32_t m;       // tokens
  std::int32_t chunks;  // of K
  std::int32_t split;   // parts of K; each is summed before they are added
  // split: a work tile computes one part and stores it to an out of its own, out_part elements
  // after the part before it; 1: a work tile adds all parts.
  std::int32_t parts;
  std::int64_t out_part;
  std::int32_t up_first;  // weights[kDenseWeight] is the up projection
  std::int32_t x_scale_stride;
  const float* x_scales;       // as MatmulParams::x_scales
  const float* factor;         // [m] logits: a gated row is multiplied by their sigmoid; or null
  std::int64_t factor_stride;  // elements
};

struct MatmulParams {
  MatmulWeight weights[kMatmulWeights];
  std::int32_t weight_count;
  std::int32_t m;  // tokens
  std::int32_t k;  // columns of tokens and weights
  // Packed scales, and zeros if there are any: bytes of a row's chunk (1 to 8).
  std::int32_t scale_bytes, zero_bytes;
  std::int32_t chunks;     // of K: 128 bytes of a weight row each
  std::int32_t split;      // parts of K, a power of two; each is summed before they are added
  std::int32_t tile_rows;  // weight rows of a tile: a multiple of 16, or of 32 if gated
  std::int32_t tiles;      // tiles of weight rows, of all weights
  std::int32_t token_tiles;
  // Where boxes of x are dealt to tiles (MatmulTile::kDeals) of a dense GEMM: boxes of each tile,
  // and how many tiles have one more.
  std::int32_t boxes_each, boxes_more;
  // Rows of a box of MatmulMaps::x_tail, in which tokens after the last whole box of x are loaded;
  // 0: they are loaded in a box of x, of whose rows most have tokens.
  std::int32_t tail_tokens;
  const float* x_scales;        // of e4m3 tokens: [chunks, x_scale_stride]; else null
  std::int32_t x_scale_stride;  // a multiple of 4
  // Sums of a tile that wait for the next part of K, for tiles of 256 tokens if K has parts:
  // [blocks, kMatmulKeptFloats].
  float* kept;
  // Work tiles of a dense GEMM. For tiles of 256 tokens on M: only those that are computed with all
  // parts of K, a number that all clusters share evenly if there are others. Their parts are work
  // tiles, too, at most one of a cluster.
  std::int32_t whole;
  // [blocks] if parts of K are work tiles: those of the block's tile that have been sent to it; 0
  // before and after a launch.
  std::uint32_t* arrivals;
  // For a grouped GEMM; the weight is the first group's.
  const std::int32_t* offsets;  // [groups + 1] each group's first token; null: each has all
  std::int32_t offsets_known;   // GroupedMatmulCall::offsets_known
  std::int32_t groups;
  FastDiv columns;          // tiles of weight rows, or pairs of them
  std::int32_t x_by_group;  // x is [groups] pages
  // Elements from one group to the next.
  std::int64_t out_group, bias_group, scale_group;
  // For a gated GEMM, else 0: it computes activation(gate, up) from rows of weights[0] and
  // weights[1], which a tile interleaves by 8. weights[0].rows counts both. Consecutive rows of one
  // weight are gate_step rows apart: 2 if one array interleaves the rows of both.
  std::int32_t gate_step;
  std::int32_t up_first;  // weights[0] is the up projection
  ActivationTerms activation;
  MatmulDense dense;
};

/// Whether a pair of e4m3 tokens has the tokens on M (matmul_many.cuh): no weight has a scale for
/// each row.
inline bool has_tokens_on_m(const MatmulParams& p) {
  if (p.x_scales == nullptr) return false;
  for (int i = 0; i < p.weight_count; ++i) {
    if (p.weights[i].scale_rows != 0) return false;
  }
  return true;
}

/// Tensor maps of a launch.
struct MatmulMaps {
  CUtensorMap x;
  CUtensorMap x_tail;   // the same with lower boxes, if MatmulParams::tail_tokens is set
  CUtensorMap x_dense;  // for a dense GEMM
  CUtensorMap weights[kMatmulWeights];
  CUtensorMap out[kMatmulWeights];  // if MatmulWeight::staged is set
};

}  // namespace lathe::cuda
