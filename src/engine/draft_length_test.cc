// Lengths of drafts, worked out by hand from what was accepted.
#include "engine/draft_length.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace lathe {
namespace {

using ::testing::ElementsAre;

// Of the average m, a fifth of each new sample, comes floor(m + 0.5).
TEST(DraftLength, FollowsWhatWasAccepted) {
  DraftLength length(4, 4);
  std::vector<std::int64_t> wanted{length.wanted()};
  for (const std::int64_t accepted : {0, 0, 4, 4, 2, 0, 0, 0}) {
    length.record(4, accepted);
    wanted.push_back(length.wanted());
  }
  // m = 3.2, 2.56, 2.848, 3.078, 2.863, 2.290, 1.832, 1.466
  EXPECT_THAT(wanted, ElementsAre(4, 3, 3, 3, 3, 3, 2, 2, 1));
}

// Where all drafts were right one more may be, and a short draft that was says nothing against a
// long one.
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

// Steps without a draft before each probe, of drafts that are always wrong.
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
  // One that is right brings the first distance back, six bring drafts: m = 0.327 * 0.8^7, then
  // 0.255, 0.404, 0.523, 0.619, 0.695, 0.756.
  for (int i = 0; i < 256; ++i) length.skip();
  length.record(1, 1);
  for (int right = 2; right <= 6; ++right) {
    EXPECT_EQ(length.wanted(), 0);
    for (int i = 0; i < 16; ++i) length.skip();
    EXPECT_EQ(length.wanted(), 1);
    length.record(1, 1);
  }
  EXPECT_EQ(length.wanted(), 1);
}

}  // namespace
}  // namespace lathe
