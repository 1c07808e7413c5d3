#include "server/grammar/token_rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "server/grammar/think_budget.h"

namespace lathe::grammar {
namespace {

constexpr std::int32_t kVocab = 37;  // not a multiple of 32

std::set<std::int32_t> allowed_by(TokenConstraint& constraint, bool may_end) {
  std::vector<std::uint32_t> bits((kVocab + 31) / 32, 0xdeadbeef);
  const auto end = constraint.allowed(bits);
  EXPECT_TRUE(end.ok());
  EXPECT_EQ(end.value(), may_end);
  std::set<std::int32_t> out;
  for (std::int32_t t = 0; t < std::ssize(bits) * 32; ++t) {
    if ((bits[static_cast<std::size_t>(t / 32)] >> (t % 32) & 1) != 0) out.insert(t);
  }
  return out;
}

// Even tokens alone, at most `most` of them.
struct EvenTokens : TokenConstraint {
  explicit EvenTokens(int most) : left(most) {}
  Result<bool> allowed(std::span<std::uint32_t> bits) override {
    for (auto& word : bits) word = left > 0 ? 0x55555555 : 0;
    bits.back() &= (1u << kVocab % 32) - 1;
    return left == 0;
  }
  bool accept(std::int32_t token) override { return token % 2 == 0 && left-- > 0; }
  std::unique_ptr<TokenConstraint> clone() const override {
    return std::make_unique<EvenTokens>(*this);
  }
  int left;
};

// vLLM's rule, from the whole answer: a token is bad if it completes a sequence.
bool completes(const std::vector<std::int32_t>& answer, std::int32_t token,
               const std::vector<std::vector<std::int32_t>>& bad) {
  std::vector<std::int32_t> with = answer;
  with.push_back(token);
  return std::ranges::any_of(bad, [&](const auto& s) {
    return s.size() <= with.size() && std::equal(s.rbegin(), s.rend(), with.rbegin());
  });
}

TEST(TokenRules, BadSequencesAndAllowedTokensAgainstTheWholeAnswer) {
  std::mt19937 random(11);
  for (int round = 0; round < 50; ++round) {
    auto lists = std::make_shared<TokenLists>();
    lists->vocab = kVocab;
    std::vector<std::int32_t> ids = {1, 2, 3, 4, 33, 36};
    if (round % 2 == 0) lists->allowed = bits_of(ids, kVocab);
    if (round % 2 != 0) {
      for (ids.clear(); std::ssize(ids) < kVocab;) ids.push_back(static_cast<int>(ids.size()));
    }
    for (int i = 0; i < round % 5; ++i) {
      auto& s = lists->bad.emplace_back();
      for (std::uint32_t n = random() % 4 + 1; n > 0; --n)
        s.push_back(1 + static_cast<std::int32_t>(random() % 3));
    }
    std::unique_ptr<TokenConstraint> rules = std::make_unique<TokenRules>(lists, nullptr);
    std::vector<std::int32_t> answer;
    for (int step = 0; step < 40; ++step) {
      std::set<std::int32_t> want;
      for (const std::int32_t t : ids) {
        if (!completes(answer, t, lists->bad)) want.insert(t);
      }
      ASSERT_EQ(allowed_by(*rules, true), want) << "round " << round << ", step " << step;
      // Small tokens, so that sequences come about; a token that is not allowed changes nothing.
      const auto token = static_cast<std::int32_t>(1 + random() % 4);
      ASSERT_EQ(rules->accept(token), want.contains(token));
      if (want.contains(token)) answer.push_back(token);
      if (step % 7 == 0) rules = rules->clone();
    }
  }
}

TEST(TokenRules, WithinAnotherConstraint) {
  auto lists = std::make_shared<TokenLists>();
  lists->vocab = kVocab;
  lists->allowed = bits_of({3, 4, 6}, kVocab);
  lists->bad = {{4, 4}};
  TokenRules rules(lists, std::make_unique<EvenTokens>(2));
  EXPECT_EQ(allowed_by(rules, false), (std::set<std::int32_t>{4, 6}));
  EXPECT_FALSE(rules.accept(3));  // the other constraint's
  EXPECT_FALSE(rules.accept(8));  // not in the list
  EXPECT_TRUE(rules.accept(4));
  EXPECT_EQ(allowed_by(rules, false), (std::set<std::int32_t>{6}));
  EXPECT_TRUE(rules.accept(6));
  EXPECT_TRUE(allowed_by(rules, true).empty());
}

// Two stop tokens: one is in the list, unless it completes a bad sequence; the other is not.
TEST(TokenRules, StopTokensAreThoseOfTheList) {
  auto lists = std::make_shared<TokenLists>();
  lists->vocab = kVocab;
  lists->allowed = bits_of({4, 35}, kVocab);
  lists->stops = bits_of({35, 36}, kVocab);
  lists->bad = {{4, 4, 35}};
  std::unique_ptr<TokenConstraint> rules = std::make_unique<ThinkBudget>(
      100, ThinkTokens{}, kVocab, std::make_unique<TokenRules>(lists, nullptr));
  for (const bool ends : {true, true, false}) {
    EXPECT_EQ(allowed_by(*rules, true),
              ends ? (std::set<std::int32_t>{4, 35}) : (std::set<std::int32_t>{4}));
    EXPECT_EQ(rules->may_end_with(35), ends);
    EXPECT_FALSE(rules->may_end_with(36));
    EXPECT_TRUE(rules->accept(4));
    rules = rules->clone();
  }
}

TEST(TokenRules, WithoutAListEachStopTokenEndsButABadOne) {
  auto lists = std::make_shared<TokenLists>();
  lists->vocab = kVocab;
  lists->bad = {{35}};
  const TokenRules rules(lists, std::make_unique<EvenTokens>(1));
  EXPECT_FALSE(rules.may_end_with(35));
  EXPECT_TRUE(rules.may_end_with(36));
}

}  // namespace
}  // namespace lathe::grammar
