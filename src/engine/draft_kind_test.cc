// --draft and --draft-tokens: what they mean, and what they refuse with a way out.
#include "engine/draft_kind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lathe {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(DraftKind, IsReadInSmallLettersAndInCapitals) {
  EXPECT_EQ(*parse_draft("none"), DraftKind::none);
  EXPECT_EQ(*parse_draft("ngram"), DraftKind::ngram);
  EXPECT_EQ(*parse_draft("NGRAM"), DraftKind::ngram);
  EXPECT_EQ(*parse_draft("mtp"), DraftKind::mtp);
  EXPECT_EQ(*parse_draft("NEXTN"), DraftKind::mtp);
}

TEST(DraftKind, WhatDoesNotRunIsRefusedByName) {
  for (const char* layer : {"EAGLE", "EAGLE3"}) {
    const auto kind = parse_draft(layer);
    ASSERT_FALSE(kind) << layer;
    EXPECT_THAT(kind.error().message(),
                AllOf(HasSubstr("--draft: wanted one of none, ngram, mtp, got \""),
                      HasSubstr(layer), HasSubstr("EAGLE are not run"), HasSubstr("--draft mtp"),
                      HasSubstr("--draft ngram")));
  }
  for (const char* model : {"models/small", "STANDALONE"}) {
    const auto kind = parse_draft(model);
    ASSERT_FALSE(kind) << model;
    EXPECT_THAT(kind.error().message(), HasSubstr("a separate draft model is not run"));
  }
  ASSERT_FALSE(parse_draft("n-gram"));
  EXPECT_THAT(parse_draft("n-gram").error().message(),
              AllOf(HasSubstr("got \"n-gram\""), HasSubstr("--draft ngram")));
}

TEST(DraftKind, TokensAreItsOwnOrThoseAskedFor) {
  EXPECT_EQ(*draft_tokens_of(DraftKind::none, 0), 0);
  EXPECT_EQ(*draft_tokens_of(DraftKind::ngram, 0), 4);
  EXPECT_EQ(*draft_tokens_of(DraftKind::ngram, 1), 1);
  EXPECT_EQ(*draft_tokens_of(DraftKind::ngram, 15), 15);
  EXPECT_EQ(*draft_tokens_of(DraftKind::mtp, 0), 1);
  EXPECT_EQ(*draft_tokens_of(DraftKind::mtp, 3), 3);
  ASSERT_FALSE(draft_tokens_of(DraftKind::mtp, 4));
  EXPECT_THAT(draft_tokens_of(DraftKind::mtp, 4).error().message(),
              HasSubstr("--draft-tokens: wanted 1 to 3 with --draft mtp, got 4"));
  for (const std::int32_t wrong : {-1, 16}) {
    const auto tokens = draft_tokens_of(DraftKind::ngram, wrong);
    ASSERT_FALSE(tokens);
    EXPECT_THAT(tokens.error().message(), HasSubstr("--draft-tokens: wanted 1 to 15, got "));
  }
  const auto alone = draft_tokens_of(DraftKind::none, 4);
  ASSERT_FALSE(alone);
  EXPECT_THAT(alone.error().message(),
              AllOf(HasSubstr("--draft-tokens: wanted a drafter with it, got --draft none"),
                    HasSubstr("--draft ngram")));
}

}  // namespace
}  // namespace lathe
