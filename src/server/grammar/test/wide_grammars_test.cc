// What compiling and masks may cost: wide grammars are followed or refused before an answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "base/test_scale.h"
#include "server/grammar/cache.h"
#include "server/grammar/matcher.h"
#include "server/grammar/test/grammar_test_util.h"

namespace lathe::grammar {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

// A place that the search for costs does not reach, behind a long text, is followed all the same,
// in short tokens, and its masks do not depend on what the grammar was used for before.
TEST_F(Grammars, B2WideGrammarsAreFollowed) {
  std::string lead;
  for (int i = 0; i < 6000; ++i) lead += static_cast<char>('b' + i * i % 7);
  const std::uint32_t seed = test_seed(5);
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto many = compile(regex(lead + "[^x]*a(bc|[^x]){900}"));
  Matcher used(many, {});
  for (const char c : lead) ASSERT_TRUE(used.accept(c));
  std::vector<std::uint32_t> mask = bits(), fresh_mask = bits();
  std::vector<std::int32_t> answer;
  for (int i = 0; i < 1500; ++i) {
    ASSERT_TRUE(used.allowed(mask));
    if (i % 300 == 299) {
      Matcher fresh(compile(regex(lead + "[^x]*a(bc|[^x]){900}")), {});
      for (const char c : lead) ASSERT_TRUE(fresh.accept(c));
      for (const std::int32_t t : answer) ASSERT_TRUE(fresh.accept(t));
      ASSERT_TRUE(fresh.allowed(fresh_mask));
      EXPECT_EQ(mask, fresh_mask) << i;
    }
    const auto has = [&](std::int32_t t) {
      return (mask[static_cast<std::size_t>(t) / 32] >> (t % 32) & 1) != 0;
    };
    EXPECT_FALSE(has('x'));
    std::int32_t token = 'a';
    for (int k = 0; k < 20 && i % 3 != 0; ++k) {
      const auto t =
          static_cast<std::int32_t>(random() % static_cast<unsigned>(vocabulary_.size()));
      if (has(t)) token = t;
    }
    for (std::int32_t t = 0; t < 256 && !has(token); ++t) token = t;  // inside a character
    ASSERT_TRUE(has(token));
    ASSERT_TRUE(used.accept(token));
    answer.push_back(token);
  }
}

// Many alternatives share the bytes that they begin with, so one state is alive at a time.
TEST_F(Grammars, B2FiniteLanguagesAreNarrow) {
  std::mt19937 random(7);
  Json values = Json::array();
  Source choice;
  choice.kind = Source::Kind::choice;
  for (int i = 0; i < 1000; ++i) {
    std::string word;
    for (int k = 0; k < 24; ++k) word += static_cast<char>('a' + random() % 26);
    values.push_back(word);
    choice.choices.push_back(word);
  }
  const auto follow = [&](const Source& source, const std::string& text) {
    Matcher matcher(compile(source), {});
    std::vector<std::uint32_t> mask = bits();
    for (const char c : text) {
      EXPECT_FALSE(*matcher.allowed(mask));
      EXPECT_TRUE((mask[static_cast<unsigned char>(c) / 32] >> (c % 32) & 1) != 0) << text;
      EXPECT_TRUE(matcher.accept(static_cast<unsigned char>(c)));
    }
    EXPECT_TRUE(*matcher.allowed(mask));
  };
  follow(choice, choice.choices[77]);
  follow(schema(Json{{"enum", values}}.dump()), values[77].dump());
  Automaton automaton;
  Builder b(Limits{});
  const Rule root = b.rule();
  b.texts(b.start(root), choice.choices, b.end(root));
  ASSERT_EQ(b.finish(automaton), Fault::none);
  Walk walk(automaton);
  EXPECT_EQ(walk.width(walk.start()), 1);
  const Place next = walk.step(walk.start(), static_cast<std::uint8_t>(choice.choices[0][0]));
  EXPECT_EQ(walk.width(next), 1);
}

// By a cost that only the grammar and the vocabulary decide. This one has tokens enough.
TEST_F(Grammars, B2WhatCostsTooMuchIsRefused) {
  const std::uint32_t seed = test_seed(9);
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  std::vector<std::string> texts = token_texts();
  for (int i = 0; i < 60'000; ++i) {
    std::string text;
    for (auto n = 3 + random() % 10; n > 0; --n) text += "abce "[random() % 5];
    texts.push_back(text);
  }
  const Vocabulary large(texts);
  for (int time = 0; time < 2; ++time) {
    const auto got = Grammar::compile(regex("[^x]*a(bc|[^x]){900}"), large);
    ASSERT_FALSE(got);
    EXPECT_THAT(got.error().message(), HasSubstr("regex: wanted a constraint that can be read in"));
  }
  compile(regex("[^x]*a(bc|[^x]){900}"));  // cheap with few tokens
  for (const char* narrow :
       {"(\\w{1,20} ?){1,50}", "[a-z]{1,50}(,[a-z]{1,50}){0,50}", ".{0,10000}"}) {
    const auto got = Grammar::compile(regex(narrow), large);
    EXPECT_TRUE(got) << narrow << got.error().message();
  }
  for (const Source& source : sources()) EXPECT_TRUE(Grammar::compile(source, large));
}

// A list costs its length, and two that must both hold their product, which counts.
TEST_F(Grammars, B2LongListsOfValuesHaveTheirCost) {
  const auto values = [](int count, const char* name) {
    Json out = Json::array();
    for (int i = 0; i < count; ++i) out.push_back(name + std::to_string(i));
    return Json{{"enum", out}};
  };
  Matcher matcher(compile(schema(values(18'000, "name").dump())), {});
  for (const char c : std::string("\"name17999\"")) ASSERT_TRUE(matcher.accept(c)) << c;
  const auto both = [&](int count) {
    return schema(Json{{"allOf", {values(count, "a"), values(count, "a")}}}.dump());
  };
  compile(both(2'000));
  const Source without =
      schema(Json{{"allOf", {values(14'000, "a"), Json{{"not", values(14'000, "b")}}}}}.dump());
  // An integer and a double are compared as decimals.
  Json halves = Json::array(), integers = Json::array(), many = Json::array();
  for (int i = 0; i < 20'000; ++i) {
    if (i < 4'000) halves.push_back(i + 0.5);
    if (i < 4'000) integers.push_back(i);
    many.push_back(i);
  }
  const auto lists = [&](const Json& a, const Json& b) {
    return schema(Json{{"allOf", {{{"enum", a}}, {{"enum", b}}}}}.dump());
  };
  compile(lists(halves, halves));
  const Source unique = schema(Json{{"const", many}, {"uniqueItems", true}}.dump());
  for (const Source& long_lists : {both(14'000), without, lists(halves, integers), unique}) {
    const auto got = Grammar::compile(long_lists, vocabulary_);
    ASSERT_FALSE(got);
    EXPECT_NE(got.error().field, "");
    EXPECT_THAT(got.error().message(), HasSubstr("wanted lists of values that are compared in"));
  }
}

// The cache frees its own grammars for another one, but not grammars of requests.
TEST_F(Grammars, E2AllOfThemHaveALimit) {
  Cache cache(Vocabulary(token_texts()), 128, 1 << 20);
  const auto wide = [](int n) { return regex("(" + std::to_string(n) + "[^x]{9000})?y"); };
  std::vector<std::shared_ptr<Grammar>> used;
  std::optional<Error> full;
  for (int n = 0; n < 20 && !full; ++n) {
    auto made = cache.get(wide(n));
    if (made) {
      used.push_back(*made);
    } else {
      full = made.error();
    }
  }
  ASSERT_TRUE(full);
  EXPECT_EQ(full->field, kAllConstraints);
  EXPECT_GT(used.size(), 0u);
  EXPECT_EQ(cache.refused(), 1);
  used.clear();
  for (int n = 0; n < 20; ++n) EXPECT_TRUE(cache.get(wide(n))) << n;
}

}  // namespace
}  // namespace lathe::grammar
