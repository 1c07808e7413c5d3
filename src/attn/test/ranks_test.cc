#include "attn/ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace lathe {
namespace {

std::vector<std::int64_t> counts(std::int64_t total, std::int64_t block, std::int32_t ranks) {
  std::vector<std::int64_t> out;
  for (std::int32_t r = 0; r < ranks; ++r) {
    out.push_back(share_of_blocks(total, block, r, ranks).count);
  }
  return out;
}

TEST(Ranks, BlocksOfAWidthAreSharedUnevenly) {
  using Counts = std::vector<std::int64_t>;
  EXPECT_EQ(counts(2048, 128, 8), Counts(8, 256));
  // 12 blocks of 128 on 8 ranks: every second rank has one more.
  EXPECT_EQ(counts(1536, 128, 8), (Counts{128, 256, 128, 256, 128, 256, 128, 256}));
  EXPECT_EQ(counts(1536, 128, 4), Counts(4, 384));
  // gpt-oss: 90 groups of 32, so at most 45, 23 and 12 of them.
  EXPECT_EQ(counts(2880, 32, 2), Counts(2, 1440));
  EXPECT_EQ(std::ranges::max(counts(2880, 32, 4)), 23 * 32);
  EXPECT_EQ(std::ranges::max(counts(2880, 32, 8)), 12 * 32);
  // The last block is short.
  EXPECT_EQ(counts(100, 16, 2), (Counts{48, 52}));
  // Fewer blocks than ranks.
  EXPECT_EQ(counts(128, 128, 4), (Counts{0, 0, 0, 128}));
}

TEST(Ranks, SharesAreInOrderAndCoverEveryElementOnce) {
  for (const std::int64_t total : {0, 1, 63, 64, 65, 1000, 2880, 18432}) {
    for (const std::int64_t block : {1, 16, 32, 128}) {
      for (const std::int32_t ranks : {1, 2, 4, 8}) {
        std::int64_t blocks_end = 0, vocab_end = 0;
        for (std::int32_t r = 0; r < ranks; ++r) {
          const Range width = share_of_blocks(total, block, r, ranks);
          EXPECT_EQ(width.first, blocks_end);
          EXPECT_TRUE(width.first % block == 0 || width.count == 0);
          blocks_end = width.end();
          const Range rows = share_of_vocab(total, r, ranks);
          EXPECT_EQ(rows.first, vocab_end);
          EXPECT_TRUE(rows.count % kVocabBlock == 0 || rows.end() == total);
          vocab_end = rows.end();
        }
        EXPECT_EQ(blocks_end, total);
        EXPECT_EQ(vocab_end, total);
      }
    }
  }
}

TEST(Ranks, VocabularyIsSharedInWhole64s) {
  EXPECT_EQ(share_of_vocab(129280, 1, 2), (Range{64640, 64640}));
  // 2,020 blocks of 64 on 8 ranks: 253 each, and 249 for the last one.
  EXPECT_EQ(share_of_vocab(129280, 6, 8), (Range{6 * 16192, 16192}));
  EXPECT_EQ(share_of_vocab(129280, 7, 8), (Range{7 * 16192, 249 * 64}));
  EXPECT_EQ(share_of_vocab(100, 3, 4), (Range{100, 0}));
}

TEST(Ranks, KeyHeadsAreOnSeveralRanksIfThereAreMoreRanks) {
  // Qwen3-235B: 64 query heads, 4 key heads. A rank's 8 query heads use one key head.
  for (std::int32_t r = 0; r < 8; ++r) {
    const Range kv = share_of_kv_heads(4, r, 8);
    EXPECT_EQ(kv.count, 1);
    for (std::int64_t head = r * 8; head < (r + 1) * 8; ++head) EXPECT_EQ(kv.first, head / 16);
  }
  EXPECT_EQ(share_of_kv_heads(8, 1, 2), (Range{4, 4}));
  EXPECT_EQ(share_of_kv_heads(0, 1, 2), (Range{0, 0}));
}

TEST(Ranks, ExpertsAreSharedByWidthWithinGroupsByNumber) {
  SplitSizes sizes;
  sizes.heads = 64;
  sizes.kv_heads = 4;
  sizes.experts = 128;
  sizes.expert_width = 1536;
  sizes.expert_block = 128;
  sizes.vocab = 151936;
  const Parallel parallel{.tp = 8, .expert_width = 4, .expert_number = 2};
  const Share share = share_of(sizes, parallel, 6);
  EXPECT_EQ(share.experts, (Range{64, 64}));
  EXPECT_EQ(share.expert_width, (Range{2 * 384, 384}));
  EXPECT_EQ(share.heads, (Range{48, 8}));
  EXPECT_EQ(share.kv_heads, (Range{3, 1}));
  EXPECT_EQ(share.ffn, Range{});
  EXPECT_EQ(whole_share(sizes).experts, (Range{0, 128}));
  EXPECT_EQ(whole_share(sizes).expert_width, (Range{0, 1536}));
}

TEST(Ranks, ARanksProblemHasItsHeads) {
  const AttentionProblem grouped = rank_problem(gqa_problem(64, 4, 128), 8);
  EXPECT_EQ(grouped.heads, 8);
  EXPECT_EQ(grouped.kv_heads, 1);
  EXPECT_EQ(grouped.head_dim, 128);
  EXPECT_EQ(rank_problem(deepseek_v4_problem(), 2).heads, 32);
  EXPECT_EQ(rank_problem(deepseek_v4_problem(), 2).kv_heads, 0);
}

}  // namespace
}  // namespace lathe
