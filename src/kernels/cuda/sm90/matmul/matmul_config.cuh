// Tiles, stages and the shared-memory plan of the matmul kernels.
#pragma once

#include "kernels/cuda/common/hopper.cuh"
#include "kernels/cuda/sm90/matmul/matmul_params.h"

namespace lathe::cuda {

/// What the blocks of a cluster share.
enum class MatmulCluster {
  parts,  // the same weight rows and tokens; each block computes one part of K
  pair,   // the same tokens, two tiles of weight rows; each block computes all parts of K in turn
  // The same, but tiles have 192 weight rows, by three warpgroups. They have no registers for sums
  // of several parts of K, nor for other stores than those of bf16 boxes.
  tall,
  // As pair, but a cluster computes one part of K. All run at the same time, and the one of a
  // tile's first part adds the sums of the others (matmul_kept.cuh).
  spread,
  tokens,  // the same weight rows, two tiles of tokens; each block computes all parts of K in turn
  // Two tiles of weight rows by two of tokens, in four blocks: block r has the (r % 2)-th of rows
  // and the (r / 2)-th of tokens, and loads a half of each for the blocks that share it. `quad` and
  // `quad_spread` are otherwise as pair and spread.
  quad,
  quad_spread,
  wide,  // no cluster: a block of four warpgroups has a tile of 256 weight rows, and K has one part
  narrow,  // parts, in tiles of 64 weight rows by one warpgroup
};

/// Warpgroups of a format's tiles that share all tokens, each with matmul_rows() weight rows on
/// wgmma's N; 0: tiles are not of that kind.
template <class Format>
constexpr int matmul_sharers() {
  if constexpr (requires { Format::kSharers; }) return Format::kSharers;
  return 0;
}
template <class Format>
constexpr int matmul_rows() {
  if constexpr (requires { Format::kRows; }) return Format::kRows;
  return 64;
}

/// kGroups: grouped GEMM, in which K is not split.
template <class FormatType, int kTileTokens, MatmulCluster kClusterKind, bool kGroups = false>
struct MatmulTile {
  using Format = FormatType;
  static constexpr int kTokens = kTileTokens;
  static constexpr MatmulCluster kCluster = kClusterKind;
  static constexpr bool kSpread =
      kCluster == MatmulCluster::spread || kCluster == MatmulCluster::quad_spread;
  static constexpr bool kQuad =
      kCluster == MatmulCluster::quad || kCluster == MatmulCluster::quad_spread;
  static constexpr bool kTokenPair = kCluster == MatmulCluster::tokens || kQuad;
  static constexpr bool kTall = kCluster == MatmulCluster::tall;
  static constexpr bool kRowPair = kCluster == MatmulCluster::pair || kTall || kSpread || kQuad;
  static constexpr bool kPair = kRowPair || kTokenPair;
  static constexpr int kPairBlocks = kQuad ? 4 : 2;  // of a cluster, if kPair
  static constexpr bool kWide = kCluster == MatmulCluster::wide;
  static constexpr bool kGrouped = kGroups;
  // May have a dense GEMM next to the groups.
  static constexpr bool kDense =
      kGroups && kCluster == MatmulCluster::parts && kTokens <= 32 && Format::kPackedRow == 0;
  static constexpr bool kTokensOnM = Format::kTokensOnM;
  static constexpr bool kNarrow = kCluster == MatmulCluster::narrow;
  // That multiply, with up to 64 rows each, or kSharers that share tokens.
  static constexpr int kSharers = matmul_sharers<Format>();
  static constexpr int kWarpgroups = kSharers > 0 ? kSharers
                                     : kWide      ? 4
                                     : kTall      ? 3
                                     : kNarrow    ? 1
                                                  : 2;
  static constexpr int kTileRows = matmul_rows<Format>() * kWarpgroups;
  static constexpr int kConsumers = 128 * kWarpgroups;  // threads
  static constexpr int kThreads = kConsumers + 128;
  static constexpr bool kScales = Format::kTokenScales || Format::kPackedRow > 0;
  // Tiles of few tokens with bf16 weights leave half of the registers, and shared memory, to blocks
  // of the launches before and after, which then load what they may before the wait.
  static constexpr bool kShares = !kScales && !Format::kTwoLevels && kTokens <= 32;
  static constexpr int kRoomOfOthers = kShares ? 24 << 10 : 0;
  // Otherwise together as many as an SM has. A producer that loads scales needs more.
  static constexpr bool kMoves = kWarpgroups > 1 && !kShares;  // registers to consumers
  static constexpr int kProducerRegisters = kWarpgroups == 4 ? 64 : kTall ? 32 : kScales ? 56 : 40;
  static constexpr int kConsumerRegisters = kWarpgroups == 4   ? 104
                                            : kTall            ? 160
                                            : kWarpgroups == 3 ? 152
                                            : kScales          ? 224
                                                               : 232;

  static constexpr int kWeightBytes = kTileRows * Format::kWeightRowBytes;
  static constexpr int kTokenBoxBytes = kTokens * 128;
  static constexpr int kTokenBytes = Format::kTokenBoxes * kTokenBoxBytes;
  static constexpr int kStageBytes = kWeightBytes + kTokenBytes;
  // Scales of a stage's tokens. They are loaded in 16-byte words, and a group may start inside a
  // word.
  static constexpr int kScaleBytes = Format::kTokenScales ? (kTokens + (kGrouped ? 4 : 0)) * 4 : 0;
  static constexpr int kPackedBytes = kTileRows * Format::kDepth * Format::kPackedRow;
  // Partials that other blocks of the cluster send: 16 bytes per consumer thread, group of 8 tokens
  // and part.
  static constexpr int kEights = kTokens / 8;
  static constexpr int kMaxSplit = kNarrow ? kNarrowSplit : kMatmulMaxSplit;
  static constexpr int kPartialSlots = kEights > kMaxSplit ? kEights : kMaxSplit;
  static constexpr int kPartialBytes =
      kPair || kGrouped || kWide ? 0 : kPartialSlots * kConsumers * 16;
  // Output buffer for many tokens, half of it for each warpgroup: as f32, two groups of two boxes.
  static constexpr int kOutBoxBytes = kMatmulOutTokens * kMatmulOutRows * 4;
  static constexpr bool kStaged = kPair || (kGrouped && kTokens >= 128);
  // With tokens on M a whole tile in bf16, which is stored while the next one is summed. Pairs of
  // 128 tokens, which are loaded at the rate of L2, and parts of K, which have no next tile, have
  // 2 KB a warp and another stage.
  static constexpr bool kWholeOut = kSharers > 0 || (kTokens == 256 && !kSpread);
  static constexpr int kManyOutBytes =
      kWholeOut ? kTokens * (kSharers > 0 ? kTileRows : 128) * 2 : 8 * 2048;
  static constexpr int kOutBytes = kTokensOnM ? kManyOutBytes
                                   : kStaged  ? 4 * kOutBoxBytes * kWarpgroups
                                              : 0;
  static constexpr int kBarrierBytes = 256;
  // Token tiles before each group.
  static constexpr int kGroupBytes = kGrouped ? (kMatmulGroups + 1) * 4 : 0;
  static constexpr int kMaxStages = 12;
  // Work tiles that a pair's producer has found: of those that have stages and the one that is
  // stored.
  static constexpr int kWorks = 16;
  static constexpr int kWorkBytes = kPair ? kWorks * 16 : 0;
  // Blocks of an SM. Two share it with those of the next launch, whose weights load meanwhile.
  static constexpr int kBlocks = kNarrow && kTokens <= 32 ? 2 : 1;
  static constexpr int kMost = kBlocks == 2 ? 115712 : 232448;  // bytes of a block
  static constexpr int kRoom = (kMost - kRoomOfOthers - kPartialBytes - kOutBytes - kBarrierBytes -
                                kGroupBytes - kWorkBytes) /
                               (kStageBytes + kScaleBytes + kPackedBytes);
  static constexpr int kStages = kRoom < kMaxStages ? kRoom : kMaxStages;
  // TMA swizzles by address, so boxes must start where the swizzle pattern starts.
  static constexpr int kOutAt = kStages * kStageBytes;
  static_assert(kOutBytes == 0 || kOutAt % 1024 == 0);
  static constexpr int kScalesAt = kOutAt + kOutBytes;
  static constexpr int kPackedAt = kScalesAt + kStages * kScaleBytes;
  static constexpr int kPartialsAt = kPackedAt + kStages * kPackedBytes;
  static constexpr int kBarriersAt = kPartialsAt + kPartialBytes;
  static constexpr int kGroupsAt = kBarriersAt + kBarrierBytes;
  static constexpr int kWorksAt = (kGroupsAt + kGroupBytes + 15) / 16 * 16;
  static constexpr int kSharedBytes = kWorksAt + kWorkBytes;
  static_assert(kStages < kWorks && kStages >= (kNarrow ? 2 : 3) &&
                (2 * kStages + 2) * 8 <= kBarrierBytes);
  // The registers hold a second accumulator: one part of K next to the sum of the others.
  static constexpr bool kPairSplits =
      kPair && !kSpread && !kGrouped && kTokens <= 128 && (!Format::kTwoLevels || kTokensOnM);
  // They do not: those sums are in memory (MatmulParams::kept).
  static constexpr bool kKeepsSums = kPair && !kTall && !kSpread && !kGrouped && kTokens > 128;
  // The last round's tiles may be computed as with MatmulCluster::spread (MatmulParams::whole).
  // With bf16 ptxas then waits for each product.
  static constexpr bool kSplitsLast = kKeepsSums && kTokensOnM;
  // A pair's shared tokens are loaded in boxes, by the two blocks in turns.
  static constexpr int kBoxTokens = kRowPair ? matmul_pair_tokens(kTokens) : kTokens;
  static constexpr int kBoxes = kTokens / kBoxTokens;
  // Boxes past a group's tokens, and in dense tiles of more than 128 past the last token, are not
  // multiplied. Other dense tiles have no registers for a second loop over K.
  static constexpr bool kTails = kPair && !kSpread && (kGrouped || kTokens > 128) && Format::kTails;
  // Boxes are dealt to tiles evenly. With tokens on M a box alone takes a warpgroup's whole turn,
  // so all tiles but the last are full.
  static constexpr bool kDeals = kTails && !kTokensOnM;
};

/// Shared memory addresses of a block.
template <class T>
struct MatmulShared {
  std::uint32_t base;

  __device__ std::uint32_t weights(int stage) const {
    return base + static_cast<std::uint32_t>(stage * T::kStageBytes);
  }
  __device__ std::uint32_t tokens(int stage) const { return weights(stage) + T::kWeightBytes; }
  __device__ std::uint32_t scales(int stage) const {
    return base + static_cast<std::uint32_t>(T::kScalesAt + stage * T::kScaleBytes);
  }
  /// Packed scales of a stage's chunk `chunk` of 128 columns: one record for each row of the tile,
  /// in a gated GEMM first for the rows of one weight, then for the other's.
  __device__ std::uint32_t packed_scales(int stage, int chunk) const {
    return base + static_cast<std::uint32_t>(T::kPackedAt + stage * T::kPackedBytes +
                                             chunk * T::kTileRows * kMatmulPackedScale);
  }
  __device__ std::uint32_t packed_zeros(int stage, int chunk) const {
    return packed_scales(stage, T::Format::kDepth) +
           static_cast<std::uint32_t>(chunk * T::kTileRows * kMatmulPackedZero);
  }
  __device__ std::uint32_t partials() const { return base + T::kPartialsAt; }
  /// Output buffer of warpgroup `group`, as consecutive boxes or as 16-byte words.
  __device__ std::uint32_t out(int group) const {
    return base + static_cast<std::uint32_t>(T::kOutAt + group * (T::kOutBytes / T::kWarpgroups));
  }
  __device__ std::uint32_t tiles_before(std::int32_t group) const {
    return base + T::kGroupsAt + static_cast<std::uint32_t>(4 * group);
  }
  /// The block's work tile `n`, counted from its first one.
  __device__ std::uint32_t work(int n) const {
    return base + static_cast<std::uint32_t>(T::kWorksAt + n % T::kWorks * 16);
  }
  __device__ std::uint32_t full(int stage) const {
    return base + T::kBarriersAt + static_cast<std::uint32_t>(8 * stage);
  }
  __device__ std::uint32_t empty(int stage) const { return full(T::kStages + stage); }
  __device__ std::uint32_t partials_full() const { return full(2 * T::kStages); }
  __device__ std::uint32_t partials_empty() const { return full(2 * T::kStages + 1); }
};

/// The next stage to fill or read, and the phase parity of its barriers.
template <class T>
struct MatmulStage {
  int index = 0;
  std::uint32_t parity = 0;

  __device__ void next() {
    if (++index == T::kStages) {
      index = 0;
      parity ^= 1;
    }
  }
};

/// Chunks of K in part `part`.
struct MatmulPart {
  std::int32_t begin, end;
  __device__ MatmulPart(std::int32_t first, std::int32_t last) : begin(first), end(last) {}
  __device__ MatmulPart(const MatmulParams& p, std::int32_t part)
      : begin(p.chunks * part / p.split), end(p.chunks * (part + 1) / p.split) {}
  __device__ MatmulPart(const MatmulDense& p, std::int32_t part)
      : begin(p.chunks * part / p.split), end(p.chunks * (part + 1) / p.split) {}
};

}  // namespace lathe::cuda
