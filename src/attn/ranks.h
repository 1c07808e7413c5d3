// Ranks: how a model is divided among the devices that compute a step together. Plain data and
// pure functions, without a device. Every rank computes all rows of a step with its share of the
// weights, and the ranks' partial sums are added after attention and after the feed-forward
// (Megatron, arXiv 1909.08053, section 3).
#pragma once

#include <cstdint>

#include "attn/delta_rule.h"
#include "attn/problem.h"

namespace lathe {

/// A power of two; more ranks have no measured exchange.
inline constexpr std::int32_t kMostRanks = 8;

/// How a model is divided. The ranks of a group for attention and dense layers are also the
/// experts' ranks: expert_width * expert_number = tp. Rank r has the width share
/// r % expert_width and the number share r / expert_width.
struct Parallel {
  std::int32_t tp = 1;             // ranks that share heads, widths and the vocabulary
  std::int32_t expert_width = 1;   // ranks that share the width of one expert
  std::int32_t expert_number = 1;  // groups of ranks, each with its own experts
  std::int32_t dp = 1;             // ranks whose attention serves requests of their own
  std::int32_t cp = 1;             // ranks that share one request's cache by position

  bool alone() const { return tp == 1 && dp == 1 && cp == 1; }
  bool operator==(const Parallel&) const = default;
};

/// Elements first .. first + count - 1 of an axis of the whole model. May be empty.
struct Range {
  std::int64_t first = 0;
  std::int64_t count = 0;

  std::int64_t end() const { return first + count; }
  bool contains(std::int64_t i) const { return i >= first && i < end(); }
  bool operator==(const Range&) const = default;
};

/// Rows of the vocabulary are shared in multiples of this.
inline constexpr std::int64_t kVocabBlock = 64;

/// Rank `rank`'s share of `total` elements that can be cut at multiples of `block`: of B blocks,
/// the last one maybe short, rank r of N has floor(rB / N) .. floor((r + 1)B / N) - 1. Empty for
/// some ranks if B < N. Preconditions: block > 0, 0 <= rank < ranks.
Range share_of_blocks(std::int64_t total, std::int64_t block, std::int32_t rank,
                      std::int32_t ranks);

/// Rank's share of key and value heads. If there are more ranks than heads, each head is on
/// ranks / kv_heads ranks, which are consecutive and write equal bits to their caches.
/// Precondition: one of kv_heads and ranks divides the other.
Range share_of_kv_heads(std::int32_t kv_heads, std::int32_t rank, std::int32_t ranks);

/// Rank's rows of the embedding and the head: equal shares, each a multiple of kVocabBlock; only
/// the last ones may be shorter or empty. So a row's owner is row / share_of_vocab(.., 0,
/// ..).count.
Range share_of_vocab(std::int64_t vocab, std::int32_t rank, std::int32_t ranks);

/// The sizes of a whole model that are divided. 0 where a model has no such part. Blocks are the
/// multiples at which a width can be cut: 128 for e4m3 (a scale's block), 32 for e2m1, else 16.
struct SplitSizes {
  std::int32_t heads = 0;     // query heads of a layer
  std::int32_t kv_heads = 0;  // grouped_query; 0: latents, which every rank has whole
  // ... of layers with another count than the first group of layers; 0: all are alike
  std::int32_t other_kv_heads = 0;
  std::int32_t o_groups = 0;  // groups of heads in DeepSeek V4's output projection
  // Key heads of delta-rule layers. Each has delta_values value heads.
  std::int32_t delta_keys = 0;
  std::int32_t delta_values = 0;
  std::int64_t ffn = 0;           // width of dense layers
  std::int64_t shared = 0;        // width of the shared experts together
  std::int64_t expert_width = 0;  // width of one routed expert
  std::int32_t experts = 0;       // routed experts of a layer
  std::int64_t vocab = 0;
  std::int64_t ffn_block = 16;     // of ffn and shared
  std::int64_t expert_block = 16;  // of expert_width

  bool operator==(const SplitSizes&) const = default;
};

/// What one rank has of a model. Everything else is replicated: norms, routers, latents'
/// projections, indexers, compressors, stream mixing.
struct Share {
  std::int32_t rank = 0;
  std::int32_t ranks = 1;
  Range heads;         // q, sinks, per-head halves of kv_b; columns of the output projection
  Range kv_heads;      // k and v of grouped_query
  Range o_groups;      // DeepSeek V4: matrices of out_a; columns of out_b, times o_lora
  Range delta_keys;    // key heads of delta-rule layers
  Range delta_values;  // their value heads
  Range ffn;           // rows of gate and up, columns of down, in dense layers
  Range shared;        // the same of shared experts
  Range expert_width;  // the same of each expert in `experts`
  Range experts;       // routed experts whose matrices this rank has
  Range vocab;         // rows of embedding and head

  bool operator==(const Share&) const = default;
};

/// Rank's share. Preconditions: 0 <= rank < tp; expert_width * expert_number = tp; tp divides
/// heads, o_groups and delta_keys, and divides kv_heads or is a multiple; expert_number divides
/// experts. Ranges of widths are empty on some ranks where there are fewer blocks than ranks.
Share share_of(const SplitSizes& sizes, const Parallel& parallel, std::int32_t rank);

/// The whole model on one rank.
Share whole_share(const SplitSizes& sizes);

/// A rank's part of a whole model's attention problem: `heads` divided by `ranks`, and kv_heads,
/// but at least one. The same for every rank, so that one plan serves all. Precondition: as for
/// share_of().
AttentionProblem rank_problem(AttentionProblem whole, std::int32_t ranks);
/// A rank's heads of a delta rule. Precondition: ranks divides key_heads.
DeltaRuleProblem rank_problem(DeltaRuleProblem whole, std::int32_t ranks);

}  // namespace lathe
