// Acceptance figures, counted by hand.
#include "engine/draft/draft_stats.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace lathe {
namespace {

TEST(DraftStats, CountByPlace) {
  DraftStats s;
  EXPECT_EQ(s.acceptance_length(), 1);
  EXPECT_EQ(s.acceptance_rate(), 0);
  EXPECT_EQ(describe(s), "none were made");
  s.record(3, 3);
  s.record(3, 1);
  const DraftStats before = s;
  s.record(1, 1);
  s.record(2, 0);
  EXPECT_EQ(s.places(), 3u);
  EXPECT_EQ(s.rate(1), 0.75);
  EXPECT_EQ(s.rate(2), 0.25);
  EXPECT_EQ(s.rate(3), 0.25);
  EXPECT_EQ(s.acceptance_length(), 1 + 5 / 4.0);
  EXPECT_EQ(s.acceptance_rate(), 5 / 9.0);
  EXPECT_EQ(describe(s), "2.25 tokens in each of 4 checks, accepted by place 0.75 0.25 0.25");
  EXPECT_EQ(to_json(s).dump(),
            R"({"checks":4,"drafted":[4,3,2],"accepted":[3,1,1],"acceptance_length":2.25})");
  EXPECT_EQ(to_json(s.since(before)).dump(),
            R"({"checks":2,"drafted":[2,1],"accepted":[1,0],"acceptance_length":1.5})");
}

}  // namespace
}  // namespace lathe
