#include "engine/draft/ngram_drafter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/test_scale.h"

namespace lathe {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Tokens = std::vector<std::int32_t>;

Tokens propose(NgramDrafter& drafter, const Tokens& tokens, std::int64_t most = 4,
               RequestId id = {1}) {
  DraftRequest r{id, tokens, most};
  drafter.propose(std::span(&r, 1));
  return r.drafts;
}

TEST(NgramDrafter, DraftsWhatFollowedTheLatestOccurrence) {
  NgramDrafter drafter;
  EXPECT_THAT(propose(drafter, {1, 2, 3, 4, 5, 1, 2, 6, 7, 8, 9, 1, 2}), ElementsAre(6, 7, 8, 9));
  EXPECT_THAT(propose(drafter, {1, 2, 3, 4, 5, 1, 2, 6, 7, 8, 9, 1, 2, 3}),
              ElementsAre(4, 5, 1, 2));  // a match of three tokens wins over two
  EXPECT_THAT(propose(drafter, {1, 2, 3, 4, 5, 1, 2, 6, 7, 8, 9, 1, 2, 3, 4}, 1), ElementsAre(5));
}

TEST(NgramDrafter, OfNoMatchNothing) {
  NgramDrafter drafter;
  EXPECT_THAT(propose(drafter, {1, 2}), IsEmpty());
  EXPECT_THAT(propose(drafter, {1, 2, 3, 4, 1}), IsEmpty());  // one token is no n-gram
}

TEST(NgramDrafter, EndsAtTheLastToken) {
  NgramDrafter drafter;
  EXPECT_THAT(propose(drafter, {5, 5, 5, 5}, 4, {1}), ElementsAre(5));
  EXPECT_THAT(propose(drafter, {1, 2, 3, 1, 2}, 4, {2}), ElementsAre(3, 1, 2));
}

TEST(NgramDrafter, KeepsRequestsApartAndForgets) {
  NgramDrafter drafter;
  EXPECT_THAT(propose(drafter, {1, 2, 3, 1, 2}, 1, {1}), ElementsAre(3));
  EXPECT_THAT(propose(drafter, {1, 2, 4, 1, 2}, 1, {2}), ElementsAre(4));
  drafter.forget({1});
  EXPECT_THAT(propose(drafter, {9, 8, 7, 9, 8}, 1, {1}), ElementsAre(7));
}

// Compares with a linear search from the end, on random texts over few tokens that arrive a few at
// a time.
TEST(NgramDrafter, FindsWhatASearchFinds) {
  std::mt19937 rng(test_seed(7));
  for (int text = 0; text < 50; ++text) {
    NgramDrafter drafter;
    Tokens tokens{0, 1};
    while (tokens.size() < 200) {
      for (auto n = 1 + rng() % 6; n > 0; --n) {
        tokens.push_back(static_cast<std::int32_t>(rng() % 4));
      }
      Tokens want;
      const std::size_t n = tokens.size();
      for (std::size_t size = 4; size >= 2 && want.empty(); --size) {
        for (std::size_t end = n - 1; end >= size && want.empty(); --end) {
          if (!std::equal(tokens.end() - static_cast<std::ptrdiff_t>(size), tokens.end(),
                          tokens.begin() + static_cast<std::ptrdiff_t>(end - size))) {
            continue;
          }
          for (std::size_t i = end; i < n && want.size() < 5; ++i) want.push_back(tokens[i]);
        }
      }
      ASSERT_EQ(propose(drafter, tokens, 5), want);
    }
  }
}

}  // namespace
}  // namespace lathe
