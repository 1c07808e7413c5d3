// Grammars: what the standard says they accept, masks against a check of every token, and output of
// models that prefer newlines.
#include "server/grammar/grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "base/test_scale.h"
#include "io/text/utf8.h"
#include "server/grammar/cache.h"
#include "server/grammar/matcher.h"

namespace lathe::grammar {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

// All bytes, and tokens that span several parts of JSON.
std::vector<std::string> token_texts() {
  std::vector<std::string> out;
  for (int i = 0; i < 256; ++i) out.emplace_back(1, static_cast<char>(i));
  for (const char* text : {"{\"",
                           "\":",
                           "\": ",
                           "\",",
                           "\", \"",
                           "\"}",
                           "\"]}",
                           "}}",
                           "]",
                           ", ",
                           ",\n",
                           "\n\n",
                           "  ",
                           "    ",
                           "true",
                           "false",
                           "null",
                           "tr",
                           "ue",
                           "12",
                           "-1",
                           "0.5",
                           "1e",
                           "ab",
                           "abc",
                           "a\"",
                           "\\n",
                           "\\u00",
                           "\\\"",
                           "é",
                           "\xC3",
                           "\xA9\"",
                           "€uro",
                           "{\"a\":",
                           "[1,",
                           "[[",
                           "]]",
                           "[]",
                           "{}",
                           " \n ",
                           "\"a\"",
                           "\"b\": [",
                           "aaaaaaaaaaaaaaaa",
                           "",
                           "ab",
                           "2020-",
                           "-02-29"}) {
    out.emplace_back(text);
  }
  out.emplace_back(40, ' ');  // longer than kLongestToken
  return out;
}

Source schema(std::string_view text) {
  Source out;
  out.kind = Source::Kind::json_schema;
  out.path = "schema";
  out.schema = Json::parse(text);
  return out;
}

Source regex(std::string text) {
  Source out;
  out.kind = Source::Kind::regex;
  out.path = "regex";
  out.regex = std::move(text);
  return out;
}

class Grammars : public testing::Test {
 protected:
  std::shared_ptr<Grammar> compile(const Source& source) {
    auto out = Grammar::compile(source, vocabulary_);
    EXPECT_TRUE(out) << out.error().message();
    return *out;
  }
  std::string fault(const Source& source) {
    const auto out = Grammar::compile(source, vocabulary_);
    EXPECT_FALSE(out);
    return out ? "" : out.error().message();
  }
  // Whether the grammar accepts the whole text and may end there.
  bool takes(const Source& source, std::string_view text) {
    const auto grammar = compile(source);
    Walk walk(grammar->automaton());
    Place place = walk.start();
    for (const char c : text) place = walk.step(place, static_cast<std::uint8_t>(c));
    return walk.may_end(place);
  }
  std::vector<std::uint32_t> bits() const {
    return std::vector<std::uint32_t>(static_cast<std::size_t>((vocabulary_.size() + 31) / 32));
  }

  const Vocabulary vocabulary_{token_texts()};
};

bool has(const std::vector<std::uint32_t>& bits, std::int64_t token) {
  return (bits[static_cast<std::size_t>(token / 32)] >> (token % 32) & 1u) != 0;
}

TEST_F(Grammars, ObjectsAreJson) {
  Source object;
  for (const char* text :
       {"{}", "{ }", R"({"a":1})", R"({"a" : [1, -2.5e+3, {"b": null}], "": ""})",
        "{\"\\u00e9\\n\\\"\": \"é€😀\"}", R"({"a":"\ud83d\ude00"})", "{\n\t\"a\":\r\n true}"}) {
    EXPECT_TRUE(Json::accept(text)) << text;
    EXPECT_TRUE(takes(object, text)) << text;
  }
  for (const char* text :
       {"", "[]", "1", " {}", "{} ", "{,}", R"({"a":1,})", R"({"a"})", R"({a:1})", R"({"a":01})",
        R"({"a":1.})", R"({"a":.5})", R"({"a":+1})", R"({"a":"\ud800"})", R"({"a":"\x"})",
        "{\"a\":\"\n\"}", "{\"a\":\"\xC3\"}", "{\"a\":\"\xED\xA0\x80\"}", R"({"a":nul})"}) {
    EXPECT_FALSE(takes(object, text)) << text;
  }
  EXPECT_TRUE(takes(object, "{" + std::string(32, '\n') + "}"));
  EXPECT_FALSE(takes(object, "{" + std::string(33, '\n') + "}"));
}

struct SchemaCase {
  const char* schema;
  std::vector<const char*> good, bad;
};

TEST_F(Grammars, KeywordsMeanWhatTheStandardSays) {
  const SchemaCase cases[] = {
      {R"({"type": "integer", "minimum": -3, "maximum": 125})",
       {"-3", "-1", "0", "9", "10", "99", "100", "125"},
       {"-4", "126", "200", "1000", "-0", "01", "1.0", ""}},
      {R"({"type": "integer", "exclusiveMinimum": 9, "exclusiveMaximum": 12.5})",
       {"10", "11", "12"},
       {"9", "13"}},
      {R"({"type": "integer", "minimum": 0.5, "maximum": 1.5})", {"1"}, {"0", "2"}},
      {R"({"type": "integer", "maximum": -98})", {"-98", "-99", "-100", "-12345"}, {"-97", "0"}},
      {R"({"type": "number"})",
       {"1", "-1.5", "0.25E-7", "1e9"},
       {"1.", "e1", "1e", "1e+", "\"1\""}},
      {R"({"type": ["string", "null"], "maxLength": 2})",
       {"null", R"("")", R"("ab")", R"("😀é")", R"("\n\"")", R"("\ud83d\ude00a")"},
       {R"("abc")", "1"}},
      {R"({"type": "string", "minLength": 2, "maxLength": 3})",
       {R"("ab")", R"("abc")"},
       {R"("a")", R"("abcd")"}},
      {R"({"type": "string", "pattern": "^a+$"})", {R"("a")", R"("aaa")"}, {R"("")", R"("ba")"}},
      {R"({"type": "string", "pattern": "a|^b"})",
       {R"("xay")", R"("bx")", R"("a")", R"("\na\"")"},
       {R"("xb")", R"("")"}},
      {R"({"type": "string", "pattern": "\"|\\n"})", {R"("\"")", R"("x\n")"}, {R"("x")"}},
      {R"({"type": "string", "format": "date"})",
       {R"("2024-02-29")", R"("1999-12-31")", R"("2000-02-29")"},
       {R"("2023-02-29")", R"("1900-02-29")", R"("2023-04-31")", R"("2023-13-01")"}},
      {R"({"type": "string", "format": "date-time"})",
       {R"("2024-01-31T23:59:59Z")", R"("2024-01-31T00:00:00.5+01:30")"},
       {R"("2024-01-31")", R"("2024-01-31T24:00:00Z")"}},
      {R"({"enum": [1, "a\n", null, {"k": [1, 2]}]})",
       {"1", R"("a\n")", "null", R"({"k":[1,2]})", R"({ "k" : [ 1 , 2 ] })"},
       {"2", R"("a")", R"({"k":[1]})"}},
      {R"({"type": "string", "enum": [1, "a"]})", {R"("a")"}, {"1"}},
      {R"({"const": true})", {"true"}, {"false"}},
      {R"({"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3})",
       {"[true]", "[true,false, true]"},
       {"[]", "[true,]", "[true,true,true,true]", "[1]"}},
      {R"({"type": "array", "items": {"type": "null"}})",
       {"[]", "[null,null]"},
       {"[null,]", "[,]"}},
      {R"({"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "items": false})",
       {"[]", "[1]", "[1,2]"},
       {"[2]", "[1,2,3]"}},
      {R"({"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 2}, "minItems": 2})",
       {"[1,2]", "[1,2,2]"},
       {"[1]", "[1,1]"}},
      {R"({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}},
          "required": ["b"], "additionalProperties": false})",
       {R"({"b":2})", R"({"a":1,"b":2})", R"({"b":2,"c":3})", R"({"a":1, "b":2, "c":3})"},
       {"{}", R"({"a":1})", R"({"b":2,"a":1})", R"({"b":2,})", R"({"b":2,"d":4})", R"({"b":3})"}},
      {R"({"type": "object", "properties": {"a": {"const": 1}}})",
       {"{}", R"({"a":1})", R"({"a":1,"b":[2]})", R"({"b":0,"c":0})", R"({"aa":2})", R"({"":2})"},
       {R"({"a":2})", R"({"b":0,"a":1})", R"({"\u0061":2})", R"({"a":1,"a":1})"}},
      {R"({"type": "object", "additionalProperties": {"type": "integer"}})",
       {"{}", R"({"x":1,"y":2})"},
       {R"({"x":"1"})", R"({"x":1,})"}},
      {R"({"required": ["a"], "additionalProperties": {"const": 1}})",
       {R"({"a":1})", R"({"a":1,"b":1})"},
       {"{}", R"({"b":1})", R"({"a":2})"}},
      {R"({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]})",
       {"1", R"("x")"},
       {R"("xy")", "true"}},
      {R"({"$ref": "#/$defs/list", "$defs": {"list": {"type": "array", "items":
          {"anyOf": [{"$ref": "#/$defs/list"}, {"const": 0}]}}}})",
       {"[]", "[0]", "[[0,[]],0]"},
       {"0", "[1]", "[[]"}},
      {R"({"allOf": [{"type": "null"}], "title": "t", "default": 3, "x-mine": 1})",
       {"null"},
       {"3"}},
      {R"({"properties": {"a/b": {"$ref": "#/properties/c~1d"}, "c/d": {"const": 1}}})",
       {R"({"a/b":1})"},
       {R"({"a/b":2})"}},
      {"true", {"1", "{}", R"("x")", "[null]"}, {"", "x"}},
      {"{}", {"1"}, {"x"}},
  };
  for (const SchemaCase& c : cases) {
    for (const char* text : c.good) EXPECT_TRUE(takes(schema(c.schema), text)) << c.schema << text;
    for (const char* text : c.bad) EXPECT_FALSE(takes(schema(c.schema), text)) << c.schema << text;
  }
}

TEST_F(Grammars, WhatIsNotHonouredIsNamed) {
  for (
      const auto& [text, path] :
      {std::pair{R"({"type": "object", "properties": {"a": {"multipleOf": 100003}}})",
                 "schema.properties.a.multipleOf"},
       {R"({"not": {"additionalProperties": {"type": "string"}}})",
        "schema.not.additionalProperties"},
       {R"({"type": "array", "uniqueItems": true})", "schema.uniqueItems"},
       {R"({"contains": {"type": "string"}, "unevaluatedItems": false})",
        "schema.unevaluatedItems"},
       {R"({"patternProperties": {"a": {}, "b": {}, "c": {}, "d": {}, "e": {}, "f": {}, "g": {}}})",
        "schema.patternProperties"},
       {R"({"if": {"propertyNames": {"maxLength": 3}}, "then": {"required": ["a"]}})",
        "schema.if.propertyNames"},
       {R"({"maxlength": 3})", "schema.maxlength"},
       {R"({"type": "string", "pattern": "(?=a)b"})", "schema.pattern"},
       {R"({"type": "string", "pattern": "(a)\\1"})", "schema.pattern"},
       {R"({"type": "string", "pattern": "a\\bc"})", "schema.pattern"},
       {R"({"type": "number", "multipleOf": 0})", "schema.multipleOf"},
       {R"({"not": {"type": "strang"}})", "schema.not.type"},
       {R"({"not": {}})", "schema"},
       {R"({"allOf": [{"type": "string"}, {"type": "integer"}]})", "schema"},
       {R"({"type": "string", "maxLength": 10001})", "schema.maxLength"},
       {R"({"$ref": "https://example.com/s"})", "schema.$ref"},
       {R"({"$ref": "#/$defs/none"})", "schema.$ref"},
       {R"({"$ref": "#"})", "schema"},
       {R"({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]})", "schema"},
       {R"({"enum": []})", "schema.enum"},
       {R"({"type": "strang"})", "schema.type"},
       {R"({"properties": {"a": 3}})", "schema.properties.a"},
       {R"({"required": [1]})", "schema.required"},
       {"false", "schema"},
       {R"({"type": "string", "minLength": 3, "maxLength": 2})", "schema"},
       {R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})",
        "schema"}}) {
    const auto got = Grammar::compile(schema(text), vocabulary_);
    ASSERT_FALSE(got) << text;
    EXPECT_EQ(got.error().field, path) << text << got.error().message();
  }
  for (const char* text : {"(", ")", "[", "a**", "*", "\\", "[b-a]", "a{3,2}", "a{10001}", "\\b",
                           "(?i)a", "a^b", "a$b", "(^a)*", "[]", "\\p{L}", "(?<!a)b", "\\ud800"}) {
    EXPECT_THAT(fault(regex(text)), HasSubstr("regex: wanted")) << text;
  }
}

TEST_F(Grammars, LimitsHold) {
  EXPECT_THAT(fault(regex("((((a{1,999}){1,999}){1,999}){1,999})")), HasSubstr("states"));
  EXPECT_THAT(fault(regex(std::string(300'000, 'a'))), HasSubstr("at most 262144 bytes"));
  std::string deep = R"({"const": 1})";
  for (int i = 0; i < 80; ++i) deep = R"({"type": "array", "items": )" + deep + "}";
  EXPECT_THAT(fault(schema(deep)), HasSubstr("at most 64 levels"));
  std::string nested(100, '(');
  nested.append("a").append(100, ')');
  EXPECT_THAT(fault(regex(nested)), HasSubstr("at most 64 nested groups"));
  Limits slow;
  slow.time = std::chrono::milliseconds(0);
  const auto got =
      Grammar::compile(schema(R"({"type": "string", "maxLength": 9999})"), vocabulary_, slow);
  ASSERT_FALSE(got);
  EXPECT_THAT(got.error().message(), HasSubstr("compiles in 0 ms"));
}

TEST_F(Grammars, E1CompilingStopsWhenNobodyWaits) {
  const std::atomic<bool> stop = true;
  Limits limits;
  limits.stop = &stop;
  const auto got =
      Grammar::compile(schema(R"({"type": "string", "maxLength": 9999})"), vocabulary_, limits);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().offered, "one that has left");
}

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

const char* const kSchemas[] = {
    R"({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "array", "items":
       {"type": "integer"}}, "ab": {"enum": ["a", "abc", 12]}}, "required": ["b"]})",
    R"({"type": "array", "items": {"type": "string", "maxLength": 50}, "maxItems": 4})",
    R"({"type": "array", "items": {"type": "string", "minLength": 40, "maxLength": 90}})",
    R"({"$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "properties": {"a": {"anyOf":
       [{"$ref": "#/$defs/t"}, {"type": "null"}]}, "b": {"type": "string", "pattern": "^(ab|abc)+"}},
       "additionalProperties": false}}})",
    R"({"anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"type": "array", "items":
       {"anyOf": [{"$ref": "#"}, {"type": "string"}]}}, {"type": "boolean"}]})",
    R"({"type": "string", "format": "date"})",
    "true"};

std::vector<Source> sources() {
  std::vector<Source> out;
  out.emplace_back();
  for (const char* text : kSchemas) out.push_back(schema(text));
  for (const char* text :
       {"(ab|a|abc)*", "[^\"]{0,80}\"?", "(.|\\n){30,70}", "é+|€uro", "\\d+(,\\d+)*"}) {
    out.push_back(regex(text));
  }
  Source choice;
  choice.kind = Source::Kind::choice;
  choice.choices = {"true", "tr", "abc\"", "[[", "é"};
  out.push_back(choice);
  Source calls;
  calls.kind = Source::Kind::calls;
  calls.tools = {
      {"a", Json::parse(R"({"type": "object", "properties": {"x": {"type": "string"}}})"), "t"},
      {"ab", Json::object(), "t"}};
  out.push_back(calls);
  calls.thinking = Thinking::possible;
  out.push_back(calls);
  return out;
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

TEST_F(Grammars, ReasoningComesFirst) {
  const auto grammar = compile(regex("ab"));
  const std::int32_t begin = 299, end = 301;
  const auto allows = [&](Matcher& m, std::int32_t token) {
    std::vector<std::uint32_t> own = bits();
    EXPECT_TRUE(m.allowed(own));
    return has(own, token);
  };
  Matcher inside(grammar, {true, std::nullopt, end});
  EXPECT_TRUE(allows(inside, 'x'));
  EXPECT_TRUE(inside.accept('x'));
  EXPECT_TRUE(inside.accept(end));
  EXPECT_FALSE(allows(inside, 'x'));
  EXPECT_TRUE(allows(inside, 'a'));
  Matcher possible(grammar, {false, begin, end});
  EXPECT_TRUE(allows(possible, begin));
  EXPECT_TRUE(allows(possible, 'a'));
  EXPECT_FALSE(allows(possible, 'x'));
  EXPECT_TRUE(possible.clone()->accept('a'));
  EXPECT_TRUE(possible.accept(begin));
  EXPECT_TRUE(possible.accept('x'));
  Source text = regex("ab");
  text.thinking = Thinking::possible;
  for (const char* good :
       {"ab", "<think></think>ab", "<think>a</</think>ab", "<think>\xFF<</think>ab"}) {
    EXPECT_TRUE(takes(text, good)) << good;
  }
  for (const char* bad : {"<think>", "</think>ab", "xab", "<think></think>x", "<think>ab"}) {
    EXPECT_FALSE(takes(text, bad)) << bad;
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

// A text may begin with marks around reasoning, and calls may have one form alone.
TEST_F(Grammars, ChannelsHaveMarks) {
  Source text = regex("ab");
  text.thinking = Thinking::possible;
  text.think_begin = "<c>t<m>";
  text.think_end = "<e>";
  text.after_think = "<s>";
  text.opening = "<c>f<m>";
  for (const char* good : {"<c>f<m>ab", "<c>t<m><e><s><c>f<m>ab", "<c>t<m>x<<e><s><c>f<m>ab"}) {
    EXPECT_TRUE(takes(text, good)) << good;
  }
  for (const char* bad : {"ab", "<c>t<m>ab", "<c>t<m><e><c>f<m>ab", "<c>f<m>ba", "<c>t<m>x<e>ab"}) {
    EXPECT_FALSE(takes(text, bad)) << bad;
  }
  Source calls;
  calls.kind = Source::Kind::text_and_calls;
  calls.tools = {{"f", Json::object(), "t"}};
  calls.form = {.begin = "<c> to=", .after_name = "<m>"};
  calls.form.avoided = {"a to", "<<"};
  calls.form.not_first = " ";
  calls.one_call = true;
  for (const char* good : {"", "x", "x a t", "<c> to", "<c> to=f<m>{}", "a<c> to=f<m>{\"x\":1}",
                           "<c><c> to=f<m>{}", "b to=g"}) {
    EXPECT_TRUE(takes(calls, good)) << good;
  }
  for (const char* bad :
       {" x", "a to", "xa to=f", "<<", "<c> to=g", "<c> to=f<m>{} ", "<c> to=f<m>[]", "<c<<"}) {
    EXPECT_FALSE(takes(calls, bad)) << bad;
  }
  calls.must_call = true;
  EXPECT_TRUE(takes(calls, "<c> to=f<m>{}"));
  EXPECT_FALSE(takes(calls, "x<c> to=f<m>{}"));
}

// The mark's beginning occurs again in it.
TEST_F(Grammars, MarksAreFoundWhereverTheyBegin) {
  Source text = regex("z");
  text.thinking = Thinking::inside;
  text.think_end = "aabaac";
  for (const char* good : {"aabaacz", "aabaabaacz", "aaabaacz", "aabaaabaacz", "xaabaacz"}) {
    EXPECT_TRUE(takes(text, good)) << good;
  }
  EXPECT_FALSE(takes(text, "aabaabaaz"));
}

TEST_F(Grammars, AreSharedByTheirText) {
  Cache cache(Vocabulary(token_texts()), 2);
  const auto first = cache.get(regex("a"));
  EXPECT_EQ(*first, *cache.get(regex("a")));
  EXPECT_TRUE(cache.get(regex("b")));
  EXPECT_TRUE(cache.get(regex("c")));
  EXPECT_NE(*first, *cache.get(regex("a")));
  EXPECT_FALSE(cache.get(regex("(")));
  EXPECT_EQ(cache.compiled(), 4);
  EXPECT_EQ(cache.found(), 1);
  EXPECT_EQ(cache.refused(), 1);
}

}  // namespace
}  // namespace lathe::grammar
