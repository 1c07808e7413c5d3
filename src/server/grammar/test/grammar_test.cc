// Grammars: what the standard says they accept.
#include "server/grammar/grammar.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/grammar/cache.h"
#include "server/grammar/test/grammar_test_util.h"

namespace lathe::grammar {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

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
      {std::pair{R"({"type": "object", "properties": {"a": {"multipleOf": 1e18}}})",
                 "schema.properties.a.multipleOf"},
       {R"({"not": {"multipleOf": 3}})", "schema.not.multipleOf"},
       {R"({"not": {"unevaluatedItems": {"type": "string"}}})", "schema.not.unevaluatedItems"},
       {R"({"not": {"properties": {"a": {"type": "null"}}, "anyOf": [{"required": ["a"]},
           {"required": ["b"]}], "unevaluatedProperties": false}})",
        "schema.not.unevaluatedProperties"},
       {R"({"type": "array", "uniqueItems": true})", "schema.uniqueItems"},
       {R"({"patternProperties": {"a": {}, "b": {}, "c": {}, "d": {}, "e": {}, "f": {}, "g": {}}})",
        "schema.patternProperties"},
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
       {R"({"enum": []})", "schema"},
       {R"({"type": "string", "pattern": "\\p{Greek}"})", "schema.pattern"},
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
  for (const char* text :
       {"(",        ")",     "[",       "a**",    "*",   "\\",    "[b-a]", "a{3,2}",
        "a{10001}", "\\b",   "(?i)a",   "a^b",    "a$b", "(^a)*", "[]",    "\\p{Script=Greek}",
        "\\pL",     "\\p{L", "(?<!a)b", "\\ud800"}) {
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
}

// The work is counted, not timed: what is refused does not depend on the machine.
TEST_F(Grammars, WorkHasALimit) {
  const auto compiled = [&](int patterns, std::int64_t work) {
    Json members = Json::object();
    for (int i = 0; i < patterns; ++i) {  // each follows the last nine characters
      members[fmt::format("p{}", i)] = {
          {"type", "string"}, {"pattern", "^[ab]*a[ab]{8}$"}, {"maxLength", 100 + i}};
    }
    Limits limits;
    limits.work = work;
    return Grammar::compile(schema(Json{{"properties", members}}.dump()), vocabulary_, limits);
  };
  const auto one = compiled(1, Limits().work), four = compiled(4, Limits().work);
  ASSERT_TRUE(one && four);
  EXPECT_GT((*four)->work(), 3 * (*one)->work());
  EXPECT_LT((*four)->work(), 5 * (*one)->work());
  EXPECT_TRUE(compiled(4, (*four)->work()));
  const auto got = compiled(4, (*four)->work() - 1);
  ASSERT_FALSE(got);
  EXPECT_THAT(got.error().message(),
              HasSubstr("wanted constraints that need at most 200000000 steps to compile"));
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
