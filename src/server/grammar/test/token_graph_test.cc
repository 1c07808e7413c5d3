// Constraints that few tokens may write: against every sequence of the tokens, read byte by byte.
#include "server/grammar/token_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "base/test_scale.h"
#include "server/grammar/cache.h"
#include "server/grammar/matcher.h"

namespace lathe::grammar {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string> kFewTexts = {"a",  "b",  "ab", "ba", "aab", "bb", "{", "}",
                                            "[",  "]",  "1",  "2",  "12",  ",",  ":", "\"",
                                            "{}", "[]", "c",  "ca", "t",   "at", "",  "é"};

std::vector<std::uint32_t> bits_for(const std::vector<std::int32_t>& tokens) {
  std::vector<std::uint32_t> out(1);
  for (const std::int32_t t : tokens) out[0] |= 1u << t;
  return out;
}

Source limited(Source::Kind kind, const std::string& text, const std::vector<std::int32_t>& few) {
  Source out;
  out.kind = kind;
  out.path = "regex";
  out.regex = text;
  out.choices = {text, text + "!"};
  out.tokens = bits_for(few);
  out.tokens_path = "allowed_token_ids";
  return out;
}

std::vector<std::int32_t> tokens_in(const std::vector<std::uint32_t>& bits) {
  std::vector<std::int32_t> out;
  for (std::int32_t t = 0; t < std::ssize(kFewTexts); ++t) {
    if (has_bit(bits, t)) out.push_back(t);
  }
  return out;
}

// Whether some of the tokens complete a text, at most `depth` of them.
bool completes(Walk& walk, Place place, const std::vector<std::int32_t>& few, int depth) {
  if (walk.may_end(place)) return true;
  if (depth == 0) return false;
  for (const std::int32_t t : few) {
    Place to = place;
    for (const char c : kFewTexts[static_cast<std::size_t>(t)]) {
      to = walk.step(to, static_cast<std::uint8_t>(c));
    }
    if (to != place && to != Walk::kNowhere && completes(walk, to, few, depth - 1)) return true;
  }
  return false;
}

TEST(TokenGraph, AllowsWhatCanBeCompletedAndNothingElse) {
  const std::uint32_t seed = test_seed(17);
  SCOPED_TRACE(seed);
  std::mt19937 rng(seed);
  const Vocabulary vocabulary(kFewTexts);
  const char* const patterns[] = {"cat|cab",       "(ab|ba){1,3}c?", "[abc]{2,5}",
                                  "(1|12),(2|21)", "a*b{2}a*",       "\\[(1,)*12\\]"};
  int refused = 0, followed = 0;
  for (int round = 0; round < 60 * test_scale(); ++round) {
    std::vector<std::int32_t> few;
    for (std::int32_t t = 0; t < std::ssize(kFewTexts); ++t) {
      if (rng() % 2 == 0 && !kFewTexts[static_cast<std::size_t>(t)].empty()) few.push_back(t);
    }
    const char* const pattern = patterns[rng() % std::size(patterns)];
    SCOPED_TRACE(pattern);
    const auto made = Grammar::compile(limited(Source::Kind::regex, pattern, few), vocabulary);
    Source all = limited(Source::Kind::regex, pattern, few);
    std::vector<std::string> bytes;
    for (int b = 0; b < 256; ++b) bytes.emplace_back(1, static_cast<char>(b));
    const Vocabulary whole(bytes);
    all.tokens.clear();
    const auto reference = Grammar::compile(all, whole);
    ASSERT_TRUE(reference);
    Walk walk((*reference)->automaton());
    if (!made) {
      ++refused;
      EXPECT_FALSE(completes(walk, walk.start(), few, 7));
      EXPECT_THAT(made.error().message(), HasSubstr("allowed_token_ids: wanted tokens that can"));
      continue;
    }
    Matcher matcher(*made, {});
    Place place = walk.start();
    std::vector<std::uint32_t> bits(1);
    for (int n = 0; n < 12; ++n) {
      const auto may_end = matcher.allowed(bits);
      ASSERT_TRUE(may_end);
      EXPECT_EQ(*may_end, walk.may_end(place));
      const std::vector<std::int32_t> next = tokens_in(bits);
      for (std::int32_t t = 0; t < std::ssize(kFewTexts); ++t) {
        Place to = place;
        for (const char c : kFewTexts[static_cast<std::size_t>(t)]) {
          to = walk.step(to, static_cast<std::uint8_t>(c));
        }
        const bool usable = std::ranges::find(few, t) != few.end();
        const bool right = usable && to != Walk::kNowhere && completes(walk, to, few, 7);
        EXPECT_EQ(has_bit(bits, t), right) << kFewTexts[static_cast<std::size_t>(t)];
      }
      if (next.empty()) {
        EXPECT_TRUE(*may_end);
        ++followed;
        break;
      }
      const std::int32_t token = next[rng() % next.size()];
      ASSERT_TRUE(matcher.accept(token));
      for (const char c : kFewTexts[static_cast<std::size_t>(token)]) {
        place = walk.step(place, static_cast<std::uint8_t>(c));
      }
    }
  }
  EXPECT_GT(refused, 5);
  EXPECT_GT(followed, 5);
}

// Too many texts to look at: those that tokens of one byte can write.
TEST(TokenGraph, WideConstraintsKeepToBytesThatHaveATokenOfTheirOwn) {
  std::vector<std::string> texts;
  for (int b = 0; b < 128; ++b) texts.emplace_back(1, static_cast<char>(b));
  for (int i = 0; i < 20'000; ++i) texts.push_back("w" + std::to_string(i));
  texts.emplace_back("\xC3\xA9");
  const Vocabulary vocabulary(texts);
  Source source;
  source.kind = Source::Kind::regex;
  source.path = "regex";
  source.regex = "(.{1,60}x){1,20}";
  const auto made = Grammar::compile(source, vocabulary);
  ASSERT_TRUE(made) << made.error().message();
  EXPECT_EQ((*made)->graph(), nullptr);
  Matcher matcher(*made, {});
  std::vector<std::uint32_t> bits(static_cast<std::size_t>((vocabulary.size() + 31) / 32));
  ASSERT_TRUE(matcher.allowed(bits));
  EXPECT_TRUE(has_bit(bits, 'a'));
  EXPECT_TRUE(has_bit(bits, 128 + 77));
  EXPECT_FALSE(has_bit(bits, 128 + 20'000));
  source.regex = "é+(.{1,60}x){1,20}";
  const auto none = Grammar::compile(source, vocabulary);
  EXPECT_FALSE(none);
}

}  // namespace
}  // namespace lathe::grammar
