#include "attn/ranks.h"

#include <algorithm>

#include "base/check.h"

namespace lathe {
namespace {

std::int64_t blocks_of(std::int64_t total, std::int64_t block) {
  return (total + block - 1) / block;
}

Range share_of_whole(std::int64_t total, std::int32_t rank, std::int32_t ranks) {
  LATHE_CHECK(total % ranks == 0, "a count that the ranks do not divide");
  const std::int64_t each = total / ranks;
  return {rank * each, each};
}

}  // namespace

Range share_of_blocks(std::int64_t total, std::int64_t block, std::int32_t rank,
                      std::int32_t ranks) {
  LATHE_CHECK(block > 0 && rank >= 0 && rank < ranks, "no such share");
  const std::int64_t blocks = blocks_of(total, block);
  const std::int64_t first = std::min(total, rank * blocks / ranks * block);
  const std::int64_t end = std::min(total, (rank + 1) * blocks / ranks * block);
  return {first, end - first};
}

Range share_of_kv_heads(std::int32_t kv_heads, std::int32_t rank, std::int32_t ranks) {
  if (kv_heads == 0 || kv_heads >= ranks) return share_of_whole(kv_heads, rank, ranks);
  LATHE_CHECK(ranks % kv_heads == 0, "key heads that the ranks cannot share");
  return {rank / (ranks / kv_heads), 1};
}

Range share_of_vocab(std::int64_t vocab, std::int32_t rank, std::int32_t ranks) {
  LATHE_CHECK(rank >= 0 && rank < ranks, "no such share");
  const std::int64_t each = blocks_of(blocks_of(vocab, kVocabBlock), ranks) * kVocabBlock;
  const std::int64_t first = std::min(vocab, rank * each);
  return {first, std::min(vocab, first + each) - first};
}

Share share_of(const SplitSizes& s, const Parallel& parallel, std::int32_t rank) {
  const std::int32_t n = parallel.tp, wide = parallel.expert_width;
  LATHE_CHECK(rank >= 0 && rank < n, "no such rank");
  LATHE_CHECK(wide * parallel.expert_number == n, "experts on other ranks than attention");
  Share out;
  out.rank = rank;
  out.ranks = n;
  out.heads = share_of_whole(s.heads, rank, n);
  out.kv_heads = share_of_kv_heads(s.kv_heads, rank, n);
  out.o_groups = share_of_whole(s.o_groups, rank, n);
  out.delta_keys = share_of_whole(s.delta_keys, rank, n);
  out.delta_values = {out.delta_keys.first * s.delta_values, out.delta_keys.count * s.delta_values};
  out.ffn = share_of_blocks(s.ffn, s.ffn_block, rank, n);
  out.shared = share_of_blocks(s.shared, s.ffn_block, rank, n);
  out.expert_width = share_of_blocks(s.expert_width, s.expert_block, rank % wide, wide);
  out.experts = share_of_whole(s.experts, rank / wide, parallel.expert_number);
  out.vocab = share_of_vocab(s.vocab, rank, n);
  return out;
}

Share whole_share(const SplitSizes& sizes) { return share_of(sizes, {}, 0); }

AttentionProblem rank_problem(AttentionProblem whole, std::int32_t ranks) {
  whole.heads /= ranks;
  if (whole.kv_heads > 0) whole.kv_heads = std::max(1, whole.kv_heads / ranks);
  return whole;
}

DeltaRuleProblem rank_problem(DeltaRuleProblem whole, std::int32_t ranks) {
  whole.heads /= ranks;
  whole.key_heads /= ranks;
  return whole;
}

}  // namespace lathe
