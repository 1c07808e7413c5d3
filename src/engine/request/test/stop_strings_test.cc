#include "engine/request/stop_strings.h"

#include <gtest/gtest.h>

#include <random>

#include "base/test_scale.h"

namespace lathe {
namespace {

StopStrings make(std::vector<std::string> strings) {
  auto made = StopStrings::create(std::move(strings));
  EXPECT_TRUE(made);
  return std::move(*made);
}

TEST(StopStrings, HoldsBackABeginning) {
  StopStrings stop = make({"</s>", "User:"});
  EXPECT_EQ(stop.push("Hello <"), "Hello ");
  EXPECT_EQ(stop.push("b> Us"), "<b> ");
  EXPECT_EQ(stop.push("e"), "");
  EXPECT_EQ(stop.push("ful"), "Useful");
  EXPECT_FALSE(stop.matched());
  EXPECT_EQ(stop.push(" end</"), " end");
  EXPECT_EQ(stop.push("s> more"), "");
  EXPECT_TRUE(stop.matched());
  EXPECT_EQ(stop.match(), 0);
  EXPECT_EQ(stop.push("more"), "");
  EXPECT_EQ(stop.flush(), "");
}

TEST(StopStrings, FlushGivesWhatWasHeld) {
  StopStrings stop = make({"abc"});
  EXPECT_EQ(stop.push("xab"), "x");
  EXPECT_EQ(stop.flush(), "ab");
  StopStrings none = make({});
  EXPECT_EQ(none.push("anything"), "anything");
  EXPECT_EQ(none.flush(), "");
}

TEST(StopStrings, FallsBackInsideARepetition) {
  StopStrings stop = make({"aab"});
  EXPECT_EQ(stop.push("aaa"), "a");
  EXPECT_EQ(stop.push("b"), "");
  EXPECT_TRUE(stop.matched());
}

TEST(StopStrings, TheFirstEndWinsAndThenTheLongest) {
  StopStrings inner = make({"abcd", "bc"});
  EXPECT_EQ(inner.push("xabcd"), "xa");
  EXPECT_EQ(inner.match(), 1);
  StopStrings longest = make({"c", "bc", "abc"});
  EXPECT_EQ(longest.push("xabc"), "x");
  EXPECT_EQ(longest.match(), 2);
}

TEST(StopStrings, RefusesAnEmptyString) {
  const auto made = StopStrings::create({"a", ""});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().field, "stop[1]");
}

TEST(StopStrings, ACopyHasItsOwnState) {
  StopStrings stop = make({"aba", "z"});
  EXPECT_EQ(stop.push("xab"), "x");
  StopStrings copy = stop;
  EXPECT_EQ(copy.push("c"), "abc");
  EXPECT_EQ(stop.push("a"), "");
  EXPECT_TRUE(stop.matched());
  EXPECT_FALSE(copy.matched());
  EXPECT_EQ(copy.push("z"), "");
  EXPECT_EQ(copy.match(), 1);
}

TEST(StopStrings, B6NoMatchBeforeItMay) {
  StopStrings stop = make({"aba", "z"});
  EXPECT_EQ(stop.push("xab", false), "x");
  EXPECT_EQ(stop.push("a", false), "ab");  // its end may begin another
  EXPECT_EQ(stop.push("z", false), "az");
  EXPECT_FALSE(stop.matched());
  EXPECT_EQ(stop.push("ab", false), "");
  EXPECT_EQ(stop.push("a", true), "");
  EXPECT_EQ(stop.match(), 0);
}

// By definition, on the whole text: the end of the first match and the text before it.
struct ExpectedStop {
  std::string text;
  bool matched = false;
};
ExpectedStop search(const std::string& text, const std::vector<std::string>& strings) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::size_t longest = 0;
    for (const std::string& s : strings) {
      if (s.size() <= end && text.compare(end - s.size(), s.size(), s) == 0) {
        longest = std::max(longest, s.size());
      }
    }
    if (longest > 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

TEST(StopStrings, AnyPiecesGiveTheSearchOfTheWholeText) {
  std::mt19937 rng(test_seed(3));
  const auto word = [&](std::size_t length) {
    std::string out;
    for (std::size_t i = 0; i < length; ++i) out += static_cast<char>('a' + rng() % 2);
    return out;
  };
  int matches = 0;
  for (int i = 0; i < 5000 * test_scale(); ++i) {
    std::vector<std::string> strings;
    for (auto n = rng() % 4; n > 0; --n) strings.push_back(word(1 + rng() % 6));
    const std::string text = word(rng() % 30);
    const ExpectedStop expected = search(text, strings);
    StopStrings stop = make(strings);
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t n = std::min<std::size_t>(rng() % 5, text.size() - at);
      out += stop.push(text.substr(at, n));
      at += n;
      // Exactly the text that could become a match is held back.
      ASSERT_TRUE(expected.text.starts_with(out)) << text;
      if (stop.matched()) continue;
      std::size_t possible = 0;
      for (const std::string& s : strings) {
        for (std::size_t k = 1; k < s.size() && k <= at; ++k) {
          if (text.compare(at - k, k, s, 0, k) == 0) possible = std::max(possible, k);
        }
      }
      ASSERT_EQ(out.size(), at - possible) << text;
    }
    out += stop.flush();
    ASSERT_EQ(out, expected.text) << text;
    ASSERT_EQ(stop.matched(), expected.matched) << text;
    matches += expected.matched;
  }
  EXPECT_GT(matches, 1000 * test_scale());
}

}  // namespace
}  // namespace lathe
