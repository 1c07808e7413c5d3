// Masks against a check of every token, and output of models that prefer newlines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "base/test_scale.h"
#include "server/grammar/matcher.h"
#include "server/grammar/test/grammar_test_util.h"

namespace lathe::grammar {
namespace {

using Json = nlohmann::ordered_json;

// Checks every token separately, in a walk that uses neither the trie nor inner places.
TEST_F(Grammars, MasksAreWhatEachTokenLeadsTo) {
  const std::uint32_t seed = test_seed(21);
  SCOPED_TRACE(seed);
  std::mt19937 rng(seed);
  for (const Source& source : sources()) {
    const auto grammar = compile(source);
    for (int round = 0; round < 4 * test_scale(); ++round) {
      const auto masks = grammar->masks();
      Place place = masks->start();
      Walk plain(grammar->automaton());
      Place same = plain.start();
      for (int i = 0; i < 60; ++i) {
        std::vector<std::uint32_t> mask = bits();
        Masks::Next next;
        masks->fill(place, mask, next);
        std::vector<std::int32_t> allowed;
        for (std::int32_t t = 0; t < vocabulary_.size(); ++t) {
          Place to = same;
          for (const char c : vocabulary_.text(t))
            to = plain.step(to, static_cast<std::uint8_t>(c));
          const bool may = !vocabulary_.text(t).empty() && to != Walk::kNowhere;
          ASSERT_EQ(has(mask, t), may) << source.key() << " token " << vocabulary_.text(t);
          if (may) allowed.push_back(t);
        }
        EXPECT_EQ(next.any, !allowed.empty());
        EXPECT_EQ(next.may_end, plain.may_end(same));
        if (allowed.empty()) break;
        // Pick tokens of several bytes half of the time; they are rare otherwise.
        std::vector<std::int32_t> longer;
        for (const std::int32_t t : allowed) {
          if (t >= 256) longer.push_back(t);
        }
        const auto& from = !longer.empty() && rng() % 2 == 0 ? longer : allowed;
        const std::int32_t token = from[rng() % from.size()];
        place = masks->step(place, token);
        for (const char c : vocabulary_.text(token)) {
          same = plain.step(same, static_cast<std::uint8_t>(c));
        }
      }
    }
  }
}

TEST_F(Grammars, MasksBeginAnewWhereTheyStood) {
  const std::uint32_t seed = test_seed(22);
  SCOPED_TRACE(seed);
  std::mt19937 rng(seed);
  for (const Source& source : sources()) {
    const auto grammar = compile(source);
    auto masks = grammar->masks();
    Place place = masks->start();
    const auto kept = masks;
    Place same = place;
    for (int i = 0; i < 80; ++i) {
      std::vector<std::uint32_t> mask = bits(), other = bits();
      Masks::Next next, next_other;
      masks->fill(place, mask, next);
      kept->fill(same, other, next_other);
      ASSERT_EQ(mask, other);
      ASSERT_EQ(next.may_end, next_other.may_end);
      std::vector<std::int32_t> allowed;
      for (std::int32_t t = 0; t < vocabulary_.size(); ++t) {
        if (has(mask, t)) allowed.push_back(t);
      }
      if (allowed.empty()) break;
      const std::int32_t token = allowed[rng() % allowed.size()];
      place = masks->step(place, token);
      same = kept->step(same, token);
      if (i % 5 != 4) continue;
      const auto fresh = grammar->masks(masks.get());
      ASSERT_NE(fresh, masks);
      place = fresh->bring(*masks, place);
      masks = fresh;
    }
  }
}

// Output is valid and finite even if a model picks a newline wherever one is allowed.
TEST_F(Grammars, ALoverOfNewlinesWritesValidJson) {
  const std::uint32_t seed = test_seed(23);
  SCOPED_TRACE(seed);
  std::mt19937 rng(seed);
  const Source source = schema(
      R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}, "tags": {"type":
      "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 3}, "n": {"type": "integer"},
      "x": {"anyOf": [{"type": "number"}, {"type": "null"}]}}, "required": ["name", "tags", "n", "x"],
      "additionalProperties": false})");
  const auto grammar = compile(source);
  for (int round = 0; round < 50 * test_scale(); ++round) {
    Matcher matcher(grammar, {});
    std::string text;
    for (int i = 0;; ++i) {
      ASSERT_LT(i, 2000) << text;
      std::vector<std::uint32_t> mask = bits();
      const auto may_end = matcher.allowed(mask);
      ASSERT_TRUE(may_end);
      std::vector<std::int32_t> allowed;
      for (std::int32_t t = 0; t < vocabulary_.size(); ++t) {
        if (has(mask, t)) allowed.push_back(t);
      }
      if (allowed.empty()) {
        EXPECT_TRUE(*may_end);
        break;
      }
      const std::int32_t token = has(mask, '\n') ? '\n' : allowed[rng() % allowed.size()];
      ASSERT_TRUE(matcher.accept(token));
      text += vocabulary_.text(token);
    }
    const Json json = Json::parse(text, nullptr, false);
    ASSERT_FALSE(json.is_discarded()) << text;
    EXPECT_EQ(json.size(), 4u);
    EXPECT_TRUE(json["name"].is_string() && json["tags"].is_array() && json["n"].is_number());
  }
}

}  // namespace
}  // namespace lathe::grammar
