// Schemas by what draft 2020-12 says of each keyword: values that they allow, and values that they
// do not.
#include "server/grammar/schema/schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/json_digits.h"
#include "server/grammar/cache.h"
#include "server/grammar/grammar.h"
#include "server/grammar/test/schema_test_util.h"

namespace lathe::grammar {
namespace {

using schema_test::bytes;
using schema_test::check;
using schema_test::schema_source;
using schema_test::takes;
using Json = nlohmann::ordered_json;

TEST(Schemas, FormatNarrowsNoSchemaThatMustNotHold) {
  check({
      {R"({"not": {"type": "string", "format": "uuid"}})", {"1", "{}"}, {R"("A")"}},
      {R"({"type": "string", "not": {"maxLength": 3, "format": "uuid"}})",
       {R"("abcd")"},
       {R"("A")", R"("abc")"}},
      {R"({"type": "string", "not": {"not": {"format": "date"}}})",
       {R"("2024-01-31")"},
       {R"("A")"}},
      {R"({"anyOf": [{"type": "integer"}, {"properties": {"a": {"not": {"format": "date"}}},
          "type": "object"}]})",
       {"3", "{}", R"({"b":1})"},
       {R"({"a":"x"})", R"({"a":1})"}},
      {R"({"type": "string", "format": "date", "not": {"pattern": "^2024"}})",
       {R"("2023-01-31")"},
       {R"("2024-01-31")", R"("A")"}},
  });
  const auto none = Grammar::compile(schema_source(R"({"type": "string", "maxLength": 1,
                        "not": {"type": "string", "maxLength": 3, "format": "uuid"}})"),
                                     bytes());
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().offered, "one that allows none");
}

TEST(Schemas, OneOfThatMayOverlapIsNamed) {
  const struct {
    const char* schema;
    std::vector<std::string> ignored;
  } cases[] = {
      // Nothing tells these apart but formats, or what an automaton cannot remember.
      {R"({"oneOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "uuid"}]})",
       {"schema.oneOf"}},
      {R"({"properties": {"a": {"oneOf": [{"multipleOf": 3}, {"multipleOf": 5}]}}})",
       {"schema.properties.a.oneOf"}},
      {R"({"items": {"oneOf": [{"type": "array", "uniqueItems": true, "items": {"enum": [1, 2]}},
          {"type": "array"}]}})",
       {"schema.items.oneOf"}},
      {R"({"allOf": [{"oneOf": [{"multipleOf": 2}, {"multipleOf": 3}]}, {"type": "integer"}]})",
       {"schema.allOf[0].oneOf"}},
      // Disjoint, or the difference is computed.
      {R"({"oneOf": [{"type": "string"}, {"type": "integer"}]})", {}},
      {R"({"oneOf": [{"type": "integer"}, {"minimum": 2}]})", {}},
      {R"({"oneOf": [{"properties": {"k": {"const": "a"}}, "required": ["k"], "type": "object"},
          {"properties": {"k": {"const": "b"}}, "required": ["k"], "type": "object"}]})",
       {}},
      {R"({"anyOf": [{"multipleOf": 3}, {"multipleOf": 5}]})", {}},
  };
  const Vocabulary vocabulary = bytes();
  for (const auto& c : cases) {
    const Source source = schema_source(c.schema);
    const auto grammar = Grammar::compile(source, vocabulary);
    ASSERT_TRUE(grammar) << c.schema << grammar.error().message();
    EXPECT_EQ((*grammar)->ignored(source), c.ignored) << c.schema;
  }
  // Null is allowed by both of these, so by neither of oneOf.
  check({{R"({"oneOf": [
      {"type": "object", "required": ["a"], "properties": {"a": {"type": "string", "nullable": true}}},
      {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer", "nullable": true}}}]})",
          {R"({"a":"x"})", R"({"a":1})"},
          {R"({"a":null})"}}});
}

// One constraint in two fields of requests is named as each request names it.
TEST(Schemas, OneOfIsNamedByTheRequestsField) {
  Cache cache(bytes(), 4);
  Source source = schema_source(R"({"oneOf": [{"multipleOf": 3}, {"multipleOf": 5}]})");
  for (const std::string path : {"json_schema", "response_format.json_schema.schema"}) {
    source.path = path;
    const auto grammar = cache.get(source, {});
    ASSERT_TRUE(grammar) << grammar.error().message();
    EXPECT_EQ((*grammar)->ignored(source), std::vector<std::string>{path + ".oneOf"});
  }
  EXPECT_EQ(cache.compiled(), 1);
}

TEST(Schemas, EmptyNamesShowInPaths) {
  Cache cache(bytes(), 4);
  const auto grammar = cache.get(schema_source(R"({"properties": {"": {"type": "foo"}}})"), {});
  ASSERT_FALSE(grammar);
  EXPECT_THAT(grammar.error().field, testing::EndsWith(R"(.properties."".type)"));
}

TEST(Schemas, StringsFollowSeveralRules) {
  check({
      {R"({"type": "string", "pattern": "^[a-z]+$", "maxLength": 3})",
       {R"("a")", R"("abc")"},
       {R"("")", R"("abcd")", R"("aB")"}},
      {R"({"type": "string", "pattern": "b", "minLength": 3, "maxLength": 4})",
       {R"("abc")", R"("bxyz")", R"("xéb")"},
       {R"("b")", R"("abcde")", R"("xyz")"}},
      {R"({"type": "string", "allOf": [{"pattern": "a"}, {"pattern": "b"}]})",
       {R"("ab")", R"("xbya")"},
       {R"("a")", R"("b")"}},
      {R"({"type": "string", "not": {"pattern": "^x"}})", {R"("ax")", R"("")"}, {R"("xa")"}},
      {R"({"type": "string", "not": {"enum": ["a", "ab", 3]}})",
       {R"("")", R"("abc")", R"("b")"},
       {R"("a")", R"("ab")", "4"}},
      {R"({"type": "string", "pattern": "^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$"})",
       {R"("1.5")", R"("-0.2")", R"("+7")", R"(".5")"},
       {R"("")", R"("-")", R"(".")", R"("1e5")"}},
      {R"({"type": "string", "pattern": "^(?=.*[0-9])(?=.*[a-z])[a-z0-9]{2,4}$"})",
       {R"("a1")", R"("1ab2")"},
       {R"("ab")", R"("12")", R"("a1b2c")"}},
      {R"({"type": "string", "format": "something-else", "maxLength": 2})",
       {R"("ab")"},
       {R"("abc")"}},
      {R"({"type": "string", "format": "date", "pattern": "^2024"})",
       {R"("2024-02-29")"},
       {R"("2023-01-01")", R"("2024-13-01")"}},
      {R"({"type": "string", "format": "ipv6"})",
       {R"("::1")", R"("1:2:3:4:5:6:7:8")", R"("fe80::1:2")", R"("::ffff:1.2.3.4")"},
       {R"("1:2")", R"("1:2:3:4:5:6:7:8:9")", R"("::1::2")"}},
      {R"({"type": "string", "format": "duration"})",
       {R"("P3D")", R"("PT1H2M3S")", R"("P1Y2M")", R"("P2W")"},
       {R"("P")", R"("3D")", R"("PT")"}},
      {R"({"type": "string", "format": "uri"})",
       {R"("https://example.com/a?b#c")", R"("urn:x:y")"},
       {R"("//a")", R"("a b:c")", R"("x")"}},
      {R"({"type": "string", "nullable": true, "maxLength": 1})",
       {"null", R"("a")"},
       {R"("ab")", "1"}},
  });
}

// As OpenAPI 3.0.3 says: a further `type`, which no other keyword gives way to.
TEST(Schemas, NullableAddsATypeAlone) {
  check({
      {R"({"type": "object", "nullable": true, "required": ["a"]})",
       {"null", R"({"a":1})"},
       {"{}"}},
      {R"({"type": ["string", "integer"], "nullable": true})", {"null", "1"}, {"true"}},
      {R"({"type": "string", "nullable": true, "enum": ["a", null]})", {"null", R"("a")"}, {"1"}},
      {R"({"type": "string", "nullable": true, "enum": ["a"]})", {R"("a")"}, {"null"}},
      {R"({"type": "integer", "nullable": true, "const": 1})", {"1"}, {"null"}},
      {R"({"nullable": true, "enum": ["a"]})", {R"("a")"}, {"null"}},
      {R"({"nullable": true, "anyOf": [{"type": "string"}, {"const": 1}]})", {"1"}, {"null"}},
      {R"({"nullable": true, "maxLength": 1})", {"null", R"("a")"}, {R"("ab")"}},
      {R"({"nullable": false, "enum": ["a", null]})", {"null", R"("a")"}, {R"("b")"}},
      {R"({"type": "string", "nullable": true, "allOf": [{"type": "string"}]})",
       {R"("a")"},
       {"null"}},
      {R"({"type": "object", "required": ["a"], "properties": {"a": {"type": "string",
          "nullable": true, "enum": ["b"]}}, "allOf": [{"properties": {"a": {"const": "b"}}}]})",
       {R"({"a":"b"})"},
       {R"({"a":null})"}},
      {R"({"not": {"type": "string", "nullable": true}})", {"1"}, {"null", R"("a")"}},
      {R"({"not": {"nullable": true, "enum": ["a"]}})", {"null", "1"}, {R"("a")"}},
  });
}

TEST(Schemas, WrongValuesOfKeywordsAreNamed) {
  const struct {
    const char *schema, *path, *wanted, *offered;
  } cases[] = {
      {R"({"minimum": true, "maximum": 1})", "schema.minimum", "a number", "true"},
      {R"({"maximum": false})", "schema.maximum", "a number", "false"},
      {R"({"multipleOf": true})", "schema.multipleOf", "a number", "true"},
      {R"({"not": {"minimum": true}})", "schema.not.minimum", "a number", "true"},
      {R"({"exclusiveMinimum": true})", "schema.exclusiveMinimum",
       "a number, or true beside minimum", "true"},
      {R"({"minimum": 1, "exclusiveMaximum": true})", "schema.exclusiveMaximum",
       "a number, or true beside maximum", "true"},
      {R"({"nullable": "x", "const": 1})", "schema.nullable", "true or false", "\"x\""},
      {R"({"type": "string", "nullable": null})", "schema.nullable", "true or false", "null"},
      {R"({"not": {"nullable": 1}})", "schema.not.nullable", "true or false", "1"},
      {R"({"not": {"enum": "a"}})", "schema.not.enum", "a list", "\"a\""},
      {R"({"not": {"dependentSchemas": 1}})", "schema.not.dependentSchemas", "an object", "1"},
  };
  for (const auto& c : cases) {
    const auto grammar = Grammar::compile(schema_source(c.schema), bytes());
    ASSERT_FALSE(grammar) << c.schema;
    EXPECT_EQ(grammar.error().code, ErrorCode::malformed) << c.schema;
    EXPECT_EQ(grammar.error().field, c.path) << c.schema;
    EXPECT_EQ(grammar.error().wanted, c.wanted) << c.schema;
    EXPECT_EQ(grammar.error().offered, c.offered) << c.schema;
  }
}

TEST(Schemas, DependenciesAndOldKeywordsAreNegated) {
  check({
      {R"({"type": "object", "properties": {"a": {}, "b": {}},
          "not": {"dependentSchemas": {"a": {"required": ["b"]}}}})",
       {R"({"a":1})"},
       {"{}", R"({"b":1})", R"({"a":1,"b":1})"}},
      {R"({"type": "object", "properties": {"a": {}, "b": {}},
          "not": {"dependencies": {"a": ["a", "b"]}}})",
       {R"({"a":1})"},
       {"{}", R"({"b":1})", R"({"a":1,"b":1})"}},
      {R"({"type": "object", "properties": {"a": {}, "b": {"enum": [1, 2]}, "c": {}},
          "additionalProperties": false,
          "if": {"dependencies": {"a": {"properties": {"b": {"const": 1}}}}},
          "else": {"required": ["c"]}})",
       {"{}", R"({"a":1})", R"({"a":1,"b":1})", R"({"b":2})", R"({"a":1,"b":2,"c":1})"},
       {R"({"a":1,"b":2})"}},
      {R"({"not": {"items": [{"type": "string"}, {"type": "integer"}]}})",
       {"[1]", R"(["a","b"])", R"([1,1])"},
       {"[]", R"(["a"])", R"(["a",1])", R"(["a",1,null])", "1"}},
      {R"({"type": "integer", "not": {"additionalItems": false, "const": 1}})", {"2"}, {"1"}},
      {R"({"type": "integer", "not": {"minimum": 3, "exclusiveMinimum": true}})",
       {"2", "3"},
       {"4"}},
      {R"({"type": "integer", "not": {"maximum": 3, "exclusiveMaximum": false}})",
       {"4"},
       {"3", "2"}},
  });
}

TEST(Schemas, ArraysAreCountedAndContain) {
  check({
      {R"({"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": true, "minItems": 1})",
       {R"(["a"])", R"(["c","a"])", R"(["b","c","a"])"},
       {"[]", R"(["a","a"])", R"(["a","b","a"])", R"(["d"])"}},
      {R"({"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "boolean"}],
          "uniqueItems": true, "items": false})",
       {"[false,true]", "[true,false]", "[true]"},
       {"[true,true]"}},
      {R"({"uniqueItems": true, "maxItems": 1})", {"[5]", "[]", "3"}, {"[1,2]"}},
      {R"({"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 30},
          "uniqueItems": true})",
       {"[1,2,30]", "[]", "[7]"},
       {"[1,1]", "[2,2]", "[31]"}},
      {R"({"type": "array", "items": {"type": "integer"}, "contains": {"const": 5}})",
       {"[5]", "[1,5]", "[5,5,2]"},
       {"[]", "[1]", R"([5,"x"])"}},
      {R"({"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 10},
          "minContains": 2, "maxContains": 3})",
       {"[10,11]", "[1,10,2,12,13]"},
       {"[10]", "[10,11,12,13]", "[1,2]"}},
      {R"({"contains": {"type": "string"}, "minContains": 0, "maxContains": 1, "type": "array"})",
       {"[]", R"(["a"])", R"([1,"a",2])"},
       {R"(["a","b"])"}},
      {R"({"type": "array", "items": [{"const": 1}, {"const": 2}], "additionalItems": false})",
       {"[]", "[1]", "[1,2]"},
       {"[2]", "[1,2,3]"}},
      {R"({"type": "array", "not": {"items": {"type": "integer"}}})",
       {R"([1,"a"])"},
       {"[]", "[1]"}},
  });
}

TEST(Schemas, ObjectsHaveNamesByPattern) {
  check({
      {R"({"type": "object", "patternProperties": {"^s_": {"type": "string"}, "_n$": {"type":
          "null"}}, "additionalProperties": false})",
       {"{}", R"({"s_a":"x"})", R"({"a_n":null,"s_b":""})"},
       {R"({"s_a":1})", R"({"a":1})", R"({"s_n":"x"})", R"({"s_n":null})"}},
      {R"({"type": "object", "properties": {"s_k": {"maxLength": 1}}, "patternProperties": {"^s_":
          {"type": "string"}}})",
       {R"({"s_k":"x","z":3})", R"({"s_m":"long"})"},
       {R"({"s_k":"xy"})", R"({"s_k":1})", R"({"s_m":1})"}},
      {R"({"type": "object", "propertyNames": {"pattern": "^[a-z]$"}, "additionalProperties":
          {"type": "integer"}})",
       {"{}", R"({"a":1,"b":2})"},
       {R"({"ab":1})", R"({"A":1})", R"({"a":"x"})"}},
      {R"({"type": "object", "propertyNames": {"enum": ["x", "y"]}, "minProperties": 1})",
       {R"({"x":1})", R"({"x":1,"y":2})", R"({"y":[]})"},
       {"{}", R"({"z":1})"}},
      {R"({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2,
          "maxProperties": 2, "additionalProperties": false})",
       {R"({"a":1,"b":2})", R"({"a":1,"c":3})", R"({"b":2,"c":3})"},
       {"{}", R"({"a":1})", R"({"a":1,"b":2,"c":3})"}},
      {R"({"type": "object", "maxProperties": 1})", {"{}", R"({"q":1})"}, {R"({"q":1,"r":2})"}},
      {R"({"type": "object", "properties": {"a": {"not": {}}}})",
       {"{}", R"({"b":1})"},
       {R"({"a":1})"}},
      {R"({"type": "object", "dependentRequired": {"a": ["b"]}, "properties": {"a": {}, "b": {}}})",
       {"{}", R"({"b":1})", R"({"a":1,"b":2})"},
       {R"({"a":1})"}},
      {R"({"type": "object", "properties": {"a": {"type": "integer"}}, "allOf": [{"properties": {"b":
          {"type": "null"}}, "required": ["b"]}], "unevaluatedProperties": false})",
       {R"({"a":1,"b":null})", R"({"b":null})"},
       {R"({"a":1})", R"({"b":null,"c":1})"}},
  });
}

TEST(Schemas, SchemasCombine) {
  check({
      {R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
          "anyOf": [{"required": ["b"]}, {"required": ["c"]}]})",
       {R"({"a":1,"b":2})", R"({"a":1,"c":2})"},
       {R"({"a":1})", R"({"b":2})"}},
      {R"({"$ref": "#/$defs/p", "properties": {"n": {"minimum": 3}}, "$defs": {"p": {"type":
          "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": false}}})",
       {"{}", R"({"n":3})"},
       {R"({"n":2})", R"({"n":3.5})", R"({"m":1})"}},
      {R"({"oneOf": [{"type": "integer"}, {"minimum": 2}]})", {"1", "2.5", "\"x\""}, {"3", "1.5"}},
      {R"({"if": {"properties": {"k": {"const": 1}}, "required": ["k"]}, "then": {"required": ["v"]},
          "else": {"maxProperties": 1}, "type": "object"})",
       {R"({"k":1,"v":0})", R"({"k":2})", "{}"},
       {R"({"k":1})", R"({"k":2,"v":0})"}},
      {R"({"not": {"type": ["object", "array"]}})", {"1", "null", "\"x\""}, {"{}", "[]"}},
      {R"({"not": {"not": {"type": "null"}}})", {"null"}, {"1"}},
      {R"({"enum": ["abc", "b", 3, 12], "maxLength": 2, "minimum": 5})",
       {R"("b")", "12"},
       {R"("abc")", "3"}},
      {R"({"minLength": 2})", {R"("ab")", "5", "null", "{}"}, {R"("a")"}},
      {R"({"$id": "http://x.y/root", "$ref": "#here", "$defs": {"a": {"$anchor": "here", "type":
          "integer"}}})",
       {"1"},
       {"\"a\""}},
      {R"({"$id": "http://x.y/root.json", "$ref": "sub.json", "$defs": {"a": {"$id": "sub.json",
          "type": "null"}}})",
       {"null"},
       {"1"}},
  });
}

TEST(Schemas, ADynamicReferenceMeansTheFirstAnchorOnTheWay) {
  const auto list_of = [](const char* start) {
    return std::string(R"({"$id": "http://x.y/root", "$ref": ")") + start + R"(", "$defs": {
        "any": {"$id": "list", "type": "array", "items": {"$dynamicRef": "#item"}, "$defs": {
            "d": {"$dynamicAnchor": "item"}}},
        "texts": {"$id": "texts", "$ref": "list", "$defs": {"d": {"$dynamicAnchor": "item",
            "type": "string"}}},
        "numbers": {"$id": "numbers", "$ref": "list", "$defs": {"d": {"$dynamicAnchor": "item",
            "type": "number"}}},
        "both": {"$id": "both", "type": "object", "properties": {"t": {"$ref": "texts"},
            "n": {"$ref": "numbers"}, "a": {"$ref": "list"}}, "additionalProperties": false}}})";
  };
  const std::string list = list_of("list"), texts = list_of("texts"), numbers = list_of("numbers"),
                    both = list_of("both");
  check({
      {list.c_str(), {"[]", "[1,\"x\"]"}, {"1"}},
      {texts.c_str(), {"[]", "[\"x\"]"}, {"[1]"}},
      {numbers.c_str(), {"[1]"}, {"[\"x\"]"}},
      {both.c_str(), {R"({"t":["x"],"n":[1],"a":[1,"x"]})"}, {R"({"t":[1]})", R"({"n":["x"]})"}},
      {R"({"$id": "http://x.y/strict", "$dynamicAnchor": "node", "$ref": "tree",
          "unevaluatedProperties": false, "$defs": {"tree": {"$id": "tree", "$dynamicAnchor": "node",
          "type": "object", "properties": {"v": true, "c": {"type": "array", "items":
          {"$dynamicRef": "#node"}}}}}})",
       {R"({"c":[{"v":1}]})", R"({"c":[{"c":[{}]}]})"},
       {R"({"c":[{"w":1}]})", R"({"w":1})", R"({"c":[{"c":[{"w":1}]}]})"}},
  });
}

TEST(Schemas, ContainedItemsAreEvaluated) {
  check({
      {R"({"type": "array", "prefixItems": [true], "contains": {"type": "string"},
          "unevaluatedItems": false})",
       {"[1,\"a\"]", "[1,\"a\",\"b\"]", "[\"a\"]"},
       {"[1]", "[1,\"a\",2]", "[1,2]"}},
      {R"({"type": "array", "allOf": [{"contains": {"multipleOf": 2}}, {"contains":
          {"multipleOf": 3}}], "items": {"type": "integer"}, "unevaluatedItems": false})",
       {"[2,3]", "[6]", "[5,6]"},
       {"[2]", "[]"}},
      {R"({"type": "array", "allOf": [{"contains": {"multipleOf": 2}}, {"contains":
          {"multipleOf": 3}}], "unevaluatedItems": {"multipleOf": 5}})",
       {"[2,3,5]", "[2,3,4,6]", "[25,2,3]"},
       {"[2,3,7]", "[2,4]"}},
      {R"({"type": "array", "contains": {"type": "string"}, "minContains": 0,
          "unevaluatedItems": {"type": "null"}})",
       {"[]", "[null]", "[\"a\",null]"},
       {"[1]", "[\"a\",1]"}},
      {R"({"type": "array", "not": {"contains": {"type": "integer"}}, "unevaluatedItems":
          {"type": "string"}})",
       {"[]", "[\"a\"]"},
       {"[1]", "[null]"}},
  });
}

TEST(Schemas, MembersThatMustExist) {
  check({
      {R"({"type": "object", "not": {"additionalProperties": {"type": "string"}}})",
       {R"({"a":1})", R"({"a":"x","b":null})"},
       {"{}", R"({"a":"x"})"}},
      {R"({"type": "object", "properties": {"a": {}, "b": {}}, "not": {"properties": {"a": {}},
          "additionalProperties": false}})",
       {R"({"b":1})", R"({"a":1,"b":1})", R"({"c":1})"},
       {"{}", R"({"a":1})"}},
      {R"({"type": "object", "not": {"patternProperties": {"^n_": {"type": "integer"}}}})",
       {R"({"n_a":"x"})", R"({"n_a":1,"n_b":null})", R"({"n_b":null,"q":1})"},
       {"{}", R"({"n_a":1})", R"({"m":"x"})"}},
      {R"({"type": "object", "properties": {"n_a": {}}, "not": {"patternProperties": {"^n_": {"type":
          "integer"}}}})",
       {R"({"n_a":"x"})", R"({"n_a":1,"n_b":null})"},
       {"{}", R"({"n_a":1})"}},
      {R"({"type": "object", "not": {"propertyNames": {"maxLength": 2}}})",
       {R"({"abc":1})", R"({"a":1,"bcd":1})"},
       {"{}", R"({"ab":1,"b":2})"}},
      {R"({"type": "object", "maxProperties": 1, "not": {"propertyNames": {"enum": ["a", "b"]}}})",
       {R"({"c":1})"},
       {R"({"a":1})", R"({"c":1,"d":1})", R"({"c":1,"a":1})"}},
      {R"({"type": "object", "if": {"propertyNames": {"maxLength": 3}}, "then": {"required": ["a"]}})",
       {R"({"a":1})", R"({"abcd":1})", R"({"a":1,"bcde":1})"},
       {"{}", R"({"b":1})"}},
      {R"({"not": {"anyOf": [true, {"properties": {"foo": true}}], "unevaluatedProperties": false}})",
       {R"({"bar":1})", R"({"foo":1,"bar":1})"},
       {R"({"foo":1})", "{}", "3"}},
      {R"({"type": "object", "not": {"required": ["a"], "properties": {"a": {"type": "integer"}},
          "unevaluatedProperties": {"type": "string"}}})",
       {"{}", R"({"a":"x"})", R"({"a":1,"b":2})"},
       {R"({"a":1})", R"({"a":1,"b":"x"})"}},
      {R"({"oneOf": [{"type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties":
          false}, {"type": "object", "properties": {"a": {}, "c": {}}, "additionalProperties":
          false}]})",
       {R"({"b":1})", R"({"a":1,"c":1})", R"({"a":1,"b":1})"},
       {"{}", R"({"a":1})", R"({"b":1,"c":1})"}},
  });
}

TEST(Schemas, PatternsHaveGeneralCategories) {
  check({
      {R"({"type": "string", "pattern": "^\\p{Lu}\\p{Ll}*$"})",
       {R"("É")", R"("Ωμέγα")", R"("Ab")"},
       {R"("ab")", R"("AB")", R"("1")"}},
      {R"({"type": "string", "pattern": "^[\\p{L}\\p{Nd}_]+$", "maxLength": 3})",
       {R"("日本")", R"("a٣_")"},
       {R"("a b")", R"("abcd")"}},
      {R"({"type": "string", "pattern": "^\\P{Letter}+$"})", {R"("12 €")"}, {R"("12a")", R"("é")"}},
      {R"({"patternProperties": {"^\\p{gc=Sc}$": {"type": "number"}}, "type": "object"})",
       {R"({"€":1})", R"({"e":null})"},
       {R"({"€":null})"}},
  });
}

TEST(Schemas, WhatCannotBeFollowedMayBeLeftOut) {
  Automaton automaton;
  Builder b(Limits{});
  const Rule root = b.rule();
  JsonRules json(b);
  const Json schema = Json::parse(R"({"type": "object", "properties": {
      "a": {"type": "array", "items": {"type": "string"}, "uniqueItems": true},
      "b": {"type": "string", "pattern": "(?<=x)y", "maxLength": 3}, "c": {"typo": 1},
      "d": {"not": {"uniqueItems": true}},
      "e": {"$ref": "https://example.com/schema"}}, "required": ["b"]})");
  std::vector<std::string> ignored;
  const auto rule = add_schema(b, json, schema, "p", {true, true, &ignored});
  ASSERT_TRUE(rule) << rule.error().message();
  b.call(b.start(root), *rule, b.end(root));
  ASSERT_EQ(b.finish(automaton), Fault::none);
  std::sort(ignored.begin(), ignored.end());
  EXPECT_EQ(ignored, (std::vector<std::string>{"p.properties.a.uniqueItems",
                                               "p.properties.b.pattern", "p.properties.c.typo",
                                               "p.properties.d.not", "p.properties.e.$ref"}));
  Walk walk(automaton);
  const auto allowed = [&](std::string_view text) {
    Place place = walk.start();
    for (const char c : text) place = walk.step(place, static_cast<std::uint8_t>(c));
    return walk.may_end(place);
  };
  EXPECT_TRUE(allowed(R"({"a":["x","x"],"b":"abc","c":[],"d":{"a":1},"e":0})"));
  EXPECT_FALSE(allowed(R"({"b":"abcd"})"));
  EXPECT_FALSE(allowed(R"({"a":[1],"b":"a"})"));
  EXPECT_FALSE(allowed("3"));
}

}  // namespace
}  // namespace lathe::grammar
