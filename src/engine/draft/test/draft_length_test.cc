// Draft lengths, computed by hand from the accepted counts.
#include "engine/draft/draft_length.h"

#include "attn/draft_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace lathe {
namespace {

using ::testing::ElementsAre;

// m is the moving average, to which each sample counts a fifth. The length is floor(m + 0.5).
TEST(DraftLength, FollowsWhatWasAccepted) {
  DraftLength length(4, 4);
  std::vector<std::int64_t> wanted{length.wanted()};
  for (const std::int64_t accepted : {0, 0, 4, 4, 2, 0, 0, 0}) {
    length.record(4, accepted);
    wanted.push_back(length.wanted());
  }
  // m = 3.2, 2.56, 3.048, 3.438, 3.151, 2.521, 2.016, 1.613
  EXPECT_THAT(wanted, ElementsAre(4, 3, 3, 3, 3, 3, 3, 2, 2));
}

// If all drafts were accepted the length may grow, even if there were few of them.
TEST(DraftLength, GrowsWhereAllWereRight) {
  DraftLength length(6, 1);
  std::vector<std::int64_t> wanted;
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(length.record(1, 1), 2);
    wanted.push_back(length.wanted());
  }
  EXPECT_THAT(wanted, ElementsAre(1, 1, 1, 2));  // m = 1.2, 1.36, 1.488, 1.590
  DraftLength longest(6, 6);
  for (int i = 0; i < 20; ++i) longest.record(1, 1);
  EXPECT_EQ(longest.wanted(), 6);
}

TEST(DraftLength, BeginsWhereOthersHaveBeen) {
  EXPECT_EQ(DraftLength(4, 4).wanted(), 4);
  EXPECT_EQ(DraftLength(4, 1.6).wanted(), 2);
  EXPECT_EQ(DraftLength(4, 0.7).wanted(), 1);
  DraftLength off(4, 0.69);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(off.wanted(), 0);
    off.skip();
  }
  EXPECT_EQ(off.wanted(), 1);
}

TEST(DraftLength, FallsWithTheNumberOfRequests) {
  for (const auto& [running, most] :
       {std::pair{1, 7}, {7, 7}, {8, 3}, {31, 3}, {32, 1}, {63, 1}, {64, 0}, {1000, 0}}) {
    EXPECT_EQ(drafts_at(running), most) << running;
  }
}

// The maximum over all numbers of running requests.
TEST(DraftRows, AreBoundedByTheNumberOfRequests) {
  for (const std::int64_t requests : {1, 5, 7, 8, 30, 31, 32, 63, 64, 100, 200}) {
    for (const std::int64_t draft_tokens : {0, 1, 3, 4, 7, 15}) {
      std::int64_t most = 0;
      for (std::int64_t n = 1; n <= requests; ++n) {
        most = std::max(most, n * (1 + std::min(draft_tokens, drafts_at(n))));
      }
      EXPECT_EQ(decoding_rows(requests, draft_tokens), most) << requests << ", " << draft_tokens;
    }
  }
  for (std::int64_t rows = 1; rows < 300; ++rows) {
    EXPECT_GE(padded_verify_rows(rows), rows);
    EXPECT_LT(padded_verify_rows(rows), 2 * rows) << rows;
    EXPECT_GE(padded_verify_rows(rows + 1), padded_verify_rows(rows));
  }
}

// The number of steps without drafts before each probe, if every draft is wrong.
TEST(DraftLength, ProbesMoreAndMoreRarely) {
  DraftLength length(1, 1);
  int until_off = 0;
  for (; length.wanted() > 0; ++until_off) length.record(1, 0);
  EXPECT_EQ(until_off, 5);  // m = 0.8, then four times below 0.7
  std::vector<int> silent;
  for (int probes = 0; probes < 7; ++probes) {
    int steps = 0;
    for (; length.wanted() == 0; ++steps) length.skip();
    silent.push_back(steps);
    EXPECT_EQ(length.wanted(), 1);
    length.record(1, 0);
  }
  EXPECT_THAT(silent, ElementsAre(16, 32, 64, 128, 256, 256, 256));
  // One accepted probe halves the silence, two turn drafts on: m = 0.327 * 0.8^7, then 0.455,
  // 0.764.
  for (int i = 0; i < 256; ++i) length.skip();
  length.record(1, 1);
  EXPECT_EQ(length.wanted(), 0);
  for (int i = 0; i < 127; ++i) length.skip();
  EXPECT_EQ(length.wanted(), 0);
  length.skip();
  EXPECT_EQ(length.wanted(), 1);
  length.record(1, 1);
  EXPECT_EQ(length.wanted(), 1);
}

// A single draft pays if at least 35 % are accepted and making one is free, or 60 % if making one
// costs a quarter of a row. The average is twice that share.
TEST(DraftLength, WantsMoreOfDraftsThatCost) {
  EXPECT_EQ(DraftLength(4, 1.21).wanted(), 1);
  EXPECT_EQ(DraftLength(4, 1.21, 0.25).wanted(), 1);
  EXPECT_EQ(DraftLength(4, 1.19, 0.25).wanted(), 0);
}

TEST(DraftLength, WantsMoreWhereRowsCostMore) {
  std::vector<double> shares;
  for (const std::int64_t running : {1, 7, 8, 15, 16, 31, 32, 63}) {
    shares.push_back(draft_row_share(running, true));
    EXPECT_EQ(draft_row_share(running, false), 0.35) << running;
  }
  EXPECT_THAT(shares, ElementsAre(0.45, 0.45, 0.55, 0.55, 0.7, 0.7, 0.85, 0.85));
  DraftLength length(4, 1.5);
  for (const auto& [running, wanted] :
       {std::pair{1, 2}, {8, 2}, {16, 2}, {32, 0}, {63, 0}, {16, 2}, {1, 2}}) {
    length.adapt(draft_row_share(running, true), 1.5);
    EXPECT_EQ(length.wanted(), wanted) << running;
  }
}

// An accepted draft saves a token's row, so it must cost less than one. A single request's rows
// share the weights; where many run they do not.
TEST(DraftLength, MakesNoneThatCostMoreThanTokens) {
  DraftLength length(4, 4, 0.5);
  for (const auto& [running, wanted] : {std::pair{1, 4}, {8, 0}, {1, 4}}) {
    length.adapt(draft_row_share(running, true), 4);
    EXPECT_EQ(length.wanted(), wanted) << running;
  }
  DraftLength layer(1, 2, 0.25);
  for (const auto& [running, wanted] : {std::pair{8, 1}, {16, 1}, {32, 0}}) {
    layer.adapt(draft_row_share(running, true), 2);
    EXPECT_EQ(layer.wanted(), wanted) << running;
  }
}

// Until a request has four checks of its own, the average over all requests counts if it is lower.
TEST(DraftLength, GoesByOthersWhereManyRun) {
  DraftLength length(4, 4);
  length.adapt(0.45, 0.8);  // few requests run
  EXPECT_EQ(length.wanted(), 4);
  length.adapt(0.55, 0.8);
  EXPECT_EQ(length.wanted(), 0);
  length.adapt(0.55, 1.6);  // higher again: the request's own average stays at 0.8
  EXPECT_EQ(length.wanted(), 0);
  DraftLength other(4, 4);
  for (int i = 0; i < 4; ++i) {
    other.adapt(0.55, 3);
    other.record(4, 4);
  }
  other.adapt(0.55, 0.1);
  EXPECT_EQ(other.wanted(), 3);  // m = 3.4
}

TEST(DraftLength, ProbesLessWhereManyRun) {
  for (const auto& [share, silent] : {std::pair{0.45, 16}, {0.55, 64}}) {
    DraftLength length(4, 0.1);
    int steps = 0;
    for (length.adapt(share, 0.1); length.wanted() == 0; length.adapt(share, 0.1), ++steps) {
      length.skip();
    }
    EXPECT_EQ(steps, silent);
  }
}

TEST(DraftLength, WaitsOnWhereAnotherRequestEnded) {
  DraftLength first(1, 0);
  for (int i = 0; i < 16; ++i) first.skip();
  first.record(1, 0);
  for (int i = 0; i < 20; ++i) first.skip();
  DraftLength next(1, 0, 0, first.silence());
  for (int i = 20; i < 32; ++i) {
    EXPECT_EQ(next.wanted(), 0);
    next.skip();
  }
  EXPECT_EQ(next.wanted(), 1);
}

TEST(BatchDrafts, RestsLongerWhereGuessesStayWrong) {
  BatchDrafts batch;
  const auto rest = [&] {
    int steps = 0;
    for (; batch.rests(8); ++steps) batch.step();
    return steps;
  };
  batch.record(7, 0);
  EXPECT_FALSE(batch.rests(8)) << "few requests";
  for (const int want : {16, 32, 64, 128, 256, 256}) {
    batch.record(8, 0);
    EXPECT_FALSE(batch.rests(7));
    EXPECT_EQ(rest(), want);
  }
  batch.record(8, 3);
  EXPECT_EQ(rest(), 0);
  batch.record(80, 2);
  EXPECT_EQ(rest(), 16);
  // Earlier successes count for a while.
  batch.record(8, 8);
  for (int i = 0; i < 2; ++i) batch.record(8, 0);
  EXPECT_EQ(rest(), 0);
  batch.record(8, 1);  // an eighth of a token
  EXPECT_EQ(rest(), 16);
}

}  // namespace
}  // namespace lathe
