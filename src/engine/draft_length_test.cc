// Lengths of drafts, worked out by hand from what was accepted.
#include "engine/draft_length.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace lathe {
namespace {

using ::testing::ElementsAre;

// Of the average m of accepted drafts, a fifth of each new one, comes floor(m + 0.5) + 1.
TEST(DraftLength, FollowsWhatWasAccepted) {
  DraftLength length(4);
  std::vector<std::int64_t> wanted{length.wanted()};  // m = 2
  for (const std::int64_t accepted : {0, 0, 4, 4, 4, 0, 0, 0}) {
    length.record(4, accepted);
    wanted.push_back(length.wanted());
  }
  // m = 1.6, 1.28, 1.824, 2.259, 2.607, 2.086, 1.669, 1.335
  EXPECT_THAT(wanted, ElementsAre(3, 3, 2, 3, 3, 4, 3, 3, 2));
}

// A short draft that was right says nothing against a long one.
TEST(DraftLength, AllOfAFewDraftsDoNotShortenIt) {
  DraftLength length(6);  // m = 3
  for (int i = 0; i < 20; ++i) length.record(1, 1);
  EXPECT_EQ(length.wanted(), 4);
  for (int i = 0; i < 20; ++i) length.record(2, 1);
  EXPECT_EQ(length.wanted(), 2);
}

TEST(DraftLength, FallsWithTheNumberOfRequests) {
  for (const auto& [running, most] :
       {std::pair{1, 7}, {7, 7}, {8, 3}, {31, 3}, {32, 1}, {63, 1}, {64, 0}, {1000, 0}}) {
    EXPECT_EQ(drafts_at(running), most) << running;
  }
}

// Steps without a draft before each probe, of drafts that are always wrong.
TEST(DraftLength, ProbesMoreAndMoreRarely) {
  DraftLength length(1);  // m = 0.5, and below 0.25 from the fourth on
  int until_off = 0;
  for (; length.wanted() > 0; ++until_off) length.record(1, 0);
  EXPECT_EQ(until_off, 11);
  std::vector<int> silent;
  for (int probes = 0; probes < 7; ++probes) {
    int steps = 0;
    for (; length.wanted() == 0; ++steps) length.skip();
    silent.push_back(steps);
    EXPECT_EQ(length.wanted(), 1);
    length.record(1, 0);
  }
  EXPECT_THAT(silent, ElementsAre(16, 32, 64, 128, 256, 256, 256));
  // One that is right brings it back to the first distance, two in a row to drafts.
  for (int i = 0; i < 256; ++i) length.skip();
  length.record(1, 1);
  EXPECT_EQ(length.wanted(), 0);
  for (int i = 0; i < 16; ++i) length.skip();
  EXPECT_EQ(length.wanted(), 1);
  length.record(1, 1);
  EXPECT_EQ(length.wanted(), 1);
}

}  // namespace
}  // namespace lathe
