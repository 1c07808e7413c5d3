// --draft and --draft-tokens: what they mean, and what they refuse with a way out.
#include "engine/draft/draft_kind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lathe {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(DraftKind, IsReadInSmallLettersAndInCapitals) {
  EXPECT_EQ(parse_draft("none")->kind, DraftKind::none);
  EXPECT_EQ(parse_draft("ngram")->kind, DraftKind::ngram);
  EXPECT_EQ(parse_draft("NGRAM")->kind, DraftKind::ngram);
  EXPECT_EQ(parse_draft("mtp")->kind, DraftKind::mtp);
  EXPECT_EQ(parse_draft("NEXTN")->kind, DraftKind::mtp);
}

// A value that is no kind's name is a draft model if it has a slash or is a directory.
TEST(DraftKind, ADirectoryIsADraftModel) {
  for (const char* directory : {"models/Small", "./ngram", "/nowhere"}) {
    const auto draft = parse_draft(directory);
    ASSERT_TRUE(draft) << directory;
    EXPECT_EQ(draft->kind, DraftKind::model);
    EXPECT_EQ(draft->directory, directory);
  }
  for (const char* algorithm : {"STANDALONE", "standalone", "none"}) {
    const auto draft = parse_draft(algorithm, "small");
    ASSERT_TRUE(draft) << algorithm;
    EXPECT_EQ(draft->kind, DraftKind::model);
    EXPECT_EQ(draft->text(), "small");
  }
  EXPECT_THAT(parse_draft("STANDALONE").error().message(),
              AllOf(HasSubstr("--speculative-draft-model-path: wanted a draft model's directory"),
                    HasSubstr("--draft DIR")));
  EXPECT_THAT(parse_draft("NEXTN", "small").error().message(),
              AllOf(HasSubstr("wanted --speculative-algorithm STANDALONE with it, got \"NEXTN\""),
                    HasSubstr("--draft DIR")));
}

TEST(DraftKind, WhatDoesNotRunIsRefusedByName) {
  for (const char* layer : {"EAGLE", "EAGLE3"}) {
    const auto kind = parse_draft(layer);
    ASSERT_FALSE(kind) << layer;
    EXPECT_THAT(
        kind.error().message(),
        AllOf(HasSubstr("--draft: wanted none, ngram, mtp or a draft model's directory, got \""),
              HasSubstr(layer), HasSubstr("EAGLE are not run"), HasSubstr("--draft mtp"),
              HasSubstr("--draft ngram")));
  }
  for (const char* name : {"n-gram", "model"}) ASSERT_FALSE(parse_draft(name)) << name;
  EXPECT_THAT(parse_draft("n-gram").error().message(),
              AllOf(HasSubstr("got \"n-gram\""), HasSubstr("--draft ngram")));
}

TEST(DraftKind, TokensAreItsOwnOrThoseAskedFor) {
  EXPECT_EQ(*draft_tokens_of(DraftKind::none, 0), 0);
  EXPECT_EQ(*draft_tokens_of(DraftKind::ngram, 0), 4);
  EXPECT_EQ(*draft_tokens_of(DraftKind::ngram, 1), 1);
  EXPECT_EQ(*draft_tokens_of(DraftKind::ngram, 15), 15);
  EXPECT_EQ(*draft_tokens_of(DraftKind::model, 0), 4);
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
