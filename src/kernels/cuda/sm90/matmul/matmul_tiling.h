// Chooses work tiles and the split of K: host arithmetic, tested without a GPU.
#pragma once

#include <cstdint>

namespace lathe::cuda {

/// GEMMs of one x with weights of `rows` out features in total.
struct MatmulShape {
  std::int64_t rows = 0;
  std::int64_t k = 0;
  std::int64_t m = 0;    // tokens
  int weight_bits = 16;  // per element
  int sms = 132;
  int x_bits = 16;
  bool factors = false;  // each chunk is summed separately and then scaled
  bool many = false;     // e4m3 tokens, scales of blocks: pairs have tokens on wgmma's M
  bool packed = false;   // codes are converted, with scales of groups
  bool gated = false;    // tiles interleave rows of two weights
  bool keeps = false;    // there is memory for sums of tiles (MatmulCall::kept)
  bool spreads = false;  // and for counts (MatmulCall::arrivals), and the format has such tiles
  bool boxes = false;    // all outputs are bf16 in rows of whole 16-byte words
  // Packed: fewest tokens for which a block of four warpgroups is faster than the kernel of few
  // tokens.
  int least_wide = 9;
};

struct MatmulTiling {
  int split = 1;        // parts of K: 1, 2, 4 or 8; depends on (rows, k, weight_bits, sms) alone
  int tile_rows = 128;  // weight rows per tile; in pairs of 64 tokens 32, 64, 128, 192 or 256
  // 8, 16, 32, 64, 128 or 256, and in pairs of bf16 192; if spread 128, and 192 (bf16) or 256
  // (e4m3)
  int tile_tokens = 8;
  bool pair = false;  // clusters of two tiles; false: of the parts of K
  // Warpgroups of a block that multiply, up to 64 rows each. 4 and 1 are MatmulCluster::wide and
  // narrow: packed weights by few tokens, and narrow also codes of both by 33 to 64 tokens.
  int warpgroups = 2;
  bool spread = false;  // of pairs: the parts of K are work tiles (MatmulCluster::spread)
  // Of pairs of 256 tokens: parts of K of the last round's tiles are work tiles
  // (MatmulParams::whole).
  bool splits_last = false;
  bool quad = false;       // of pairs of 128 tokens: two of them, MatmulCluster::quad
  bool by_tokens = false;  // of pairs of 64 tokens: MatmulCluster::tokens, with up to 128 rows
  bool tall = false;       // pairs of 192 rows by 256 tokens, MatmulCluster::tall; K has one part
};

/// Whether stages have two chunks.
constexpr bool is_deep(const MatmulTiling& t, std::int64_t weight_bits) {
  return t.warpgroups != 2 && weight_bits == 4;
}

/// Elements of K in a chunk, the step by which K is processed and split.
constexpr std::int64_t matmul_chunk(int weight_bits) { return weight_bits == 16 ? 64 : 128; }

MatmulTiling choose_tiling(const MatmulShape& shape);

/// Clusters of `blocks` blocks that run at a time.
std::int64_t clusters_at_once(int sms, int blocks);

/// Rows per tile of a grouped GEMM, chosen so that all SMs read about the same amount of weights. A
/// row's bits do not depend on it. shape.rows: weight rows of a group. tiles: most tiles of
/// `tokens` tokens that have any, over all groups. dense: weight rows of a dense GEMM in the same
/// launch, each of which is read in `dense_tiles` work tiles.
int choose_group_rows(const MatmulShape& shape, std::int64_t tiles, int tokens,
                      std::int64_t dense = 0, std::int64_t dense_tiles = 0);

}  // namespace lathe::cuda
