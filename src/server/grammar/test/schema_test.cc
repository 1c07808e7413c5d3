// Schemas by what draft 2020-12 says of each keyword: values that they allow, and values that they
// do not.
#include "server/grammar/schema.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/json_digits.h"
#include "base/test_scale.h"
#include "server/grammar/cache.h"
#include "server/grammar/decimal.h"
#include "server/grammar/grammar.h"
#include "server/grammar/text_rules.h"

namespace lathe::grammar {
namespace {

using Json = nlohmann::ordered_json;

Vocabulary bytes() {
  std::vector<std::string> out;
  for (int b = 0; b < 256; ++b) out.emplace_back(1, static_cast<char>(b));
  return Vocabulary(std::move(out));
}

Source schema_source(std::string_view text) {
  Source out;
  out.kind = Source::Kind::json_schema;
  out.path = "schema";
  out.schema = read_json_exact(text);
  return out;
}

bool takes(const Grammar& grammar, std::string_view text) {
  Walk walk(grammar.automaton());
  Place place = walk.start();
  for (const char c : text) place = walk.step(place, static_cast<std::uint8_t>(c));
  return walk.may_end(place);
}

struct Case {
  const char* schema;
  std::vector<const char*> good, bad;
};

void check(const std::vector<Case>& cases) {
  const Vocabulary vocabulary = bytes();
  for (const Case& c : cases) {
    const auto grammar = Grammar::compile(schema_source(c.schema), vocabulary);
    ASSERT_TRUE(grammar) << c.schema << grammar.error().message();
    for (const char* text : c.good) EXPECT_TRUE(takes(**grammar, text)) << c.schema << " " << text;
    for (const char* text : c.bad) EXPECT_FALSE(takes(**grammar, text)) << c.schema << " " << text;
  }
}

TEST(Schemas, NumbersHaveBounds) {
  check({
      {R"({"type": "number", "minimum": 1.5, "maximum": 20.25})",
       {"1.5", "1.50", "1.51", "2", "9.99", "10", "19", "20", "20.25", "20.2", "20.250"},
       {"1.4", "1", "20.26", "20.251", "21", "100", "-2", "0"}},
      {R"({"type": "number", "exclusiveMinimum": 0})",
       {"0.1", "1", "123456789.5"},
       {"0", "0.0", "-1"}},
      {R"({"type": "number", "exclusiveMaximum": -0.5})", {"-0.51", "-3"}, {"-0.5", "0", "-0.4"}},
      {R"({"type": "number", "minimum": -0.25, "maximum": 0.25})",
       {"0", "-0.25", "0.25", "-0.1", "0.0"},
       {"-0.26", "0.3", "1", "-1"}},
      {R"({"type": "integer", "minimum": 12345678901234567890, "maximum": 12345678901234567899})",
       {"12345678901234567890", "12345678901234567895"},
       {"12345678901234567889", "12345678901234567900"}},
      {R"({"type": "integer", "minimum": 1e30})",
       {"1000000000000000000000000000000", "1000000000000000000000000000001"},
       {"999999999999999999999999999999", "5"}},
      {R"({"type": "integer", "exclusiveMinimum": -1e25, "maximum": -9.5})",
       {"-9999999999999999999999999", "-10"},
       {"-10000000000000000000000000", "-9"}},
      {R"({"minimum": 3, "exclusiveMinimum": true})", {"3.1", "\"x\"", "null"}, {"3", "2"}},
  });
}

// Doubles have other digits than these numbers.
TEST(Schemas, A8NumbersKeepTheirDigits) {
  check({
      {R"({"const": 18446744073709551616})",
       {"18446744073709551616"},
       {"18446744073709552000", "1.8446744073709552e+19", "18446744073709551615"}},
      {R"({"enum": [-9223372036854775809, 12345678901234567890123, 9007199254740993]})",
       {"-9223372036854775809", "12345678901234567890123", "9007199254740993"},
       {"-9223372036854775808", "9007199254740992", "1.2345678901234568e+22"}},
      {R"({"const": 0.1234567890123456789})",
       {"0.1234567890123456789"},
       {"0.12345678901234568", "0.12345678901234567"}},
      {R"({"const": {"a": [100000000000000000001]}})",
       {R"({"a":[100000000000000000001]})"},
       {R"({"a":[100000000000000000000]})"}},
      {R"({"type": "integer", "minimum": 18446744073709551616, "maximum": 18446744073709551618})",
       {"18446744073709551616", "18446744073709551618"},
       {"18446744073709551615", "18446744073709551619"}},
      {R"({"type": "integer", "exclusiveMinimum": -9223372036854775810, "maximum": 5})",
       {"-9223372036854775809", "5", "0"},
       {"-9223372036854775810", "6"}},
      {R"({"type": "integer", "minimum": 18446744073709551616, "not": {"const": 18446744073709551617}})",
       {"18446744073709551616", "18446744073709551618"},
       {"18446744073709551617"}},
      {R"({"type": "number", "maximum": 0.1234567890123456789})",
       {"0.1234567890123456789", "0.1234567890123456788"},
       {"0.1234567890123456790", "0.12345678901234568"}},
      {R"({"enum": [9007199254740993, 1], "not": {"const": 9007199254740992.0}})",
       {"9007199254740993", "1"},
       {"9007199254740992"}},
      {R"({"allOf": [{"enum": [1e20, 100000000000000000001, 3]}, {"enum": [100000000000000000000, 3.0]}]})",
       {"1e+20", "3"},
       {"100000000000000000001"}},
      {R"({"enum": [18446744073709551615, -9223372036854775808]})",
       {"18446744073709551615", "-9223372036854775808"},
       {"18446744073709551614"}},
      {R"({"type": "number", "maximum": 1.7976931348623157e308})", {"1", "-2.5"}, {"\"\""}},
  });
}

// JSON's readers must get the integers that the schema has, of any size.
TEST(Schemas, NumbersBeyond64BitsAreExact) {
  check({
      {R"({"const": 18446744073709551617})",
       {"18446744073709551617"},
       {"1.8446744073709552e+19", "18446744073709551616"}},
      {R"({"enum": [1000000000000000000000000000001, 1000000000000000000000000000000]})",
       {"1000000000000000000000000000001", "1000000000000000000000000000000"},
       {"1e+30", "1e30", "1000000000000000000000000000002"}},
      {R"({"type": "integer", "minimum": 10000000000000000000000001,
          "maximum": 10000000000000000000000003})",
       {"10000000000000000000000001", "10000000000000000000000002", "10000000000000000000000003"},
       {"10000000000000000000000000", "10000000000000000000000004", "10000000000000000905969664"}},
      {R"({"type": "integer", "exclusiveMinimum": 10000000000000000000000001,
          "exclusiveMaximum": 10000000000000000000000003})",
       {"10000000000000000000000002"},
       {"10000000000000000000000001", "10000000000000000000000003"}},
      {R"({"type": "integer", "minimum": -10000000000000000000000003,
          "not": {"minimum": -10000000000000000000000001}})",
       {"-10000000000000000000000003", "-10000000000000000000000002"},
       {"-10000000000000000000000001", "-10000000000000000000000004"}},
  });
}

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

TEST(Schemas, NumbersAreMultiples) {
  check({
      {R"({"type": "integer", "multipleOf": 7})",
       {"0", "7", "-21", "7000007"},
       {"1", "-8", "7000008"}},
      {R"({"type": "integer", "multipleOf": 5, "minimum": 12, "maximum": 31})",
       {"15", "20", "30"},
       {"10", "35", "12", "31"}},
      {R"({"type": "number", "multipleOf": 0.01})",
       {"0.01", "4.5", "3", "-2.25", "4.50"},
       {"0.001", "4.505"}},
      {R"({"type": "number", "multipleOf": 2.5})",
       {"0", "2.5", "5", "7.5", "5.0"},
       {"2", "0.5", "7.25"}},
      {R"({"type": "integer", "multipleOf": 0.5})", {"1", "2"}, {"0.5"}},
      {R"({"type": "integer", "multipleOf": 86400})",
       {"0", "86400", "-172800", "43113600"},
       {"1", "86401", "-0"}},
      {R"({"type": "integer", "multipleOf": 3600000, "minimum": 1e12, "exclusiveMaximum": 1000010800000})",
       {"1000000800000", "1000004400000", "1000008000000"},
       {"0", "3600000", "999997200000", "1000011600000", "1000010800000"}},
      {R"({"multipleOf": 0.123456789, "maximum": -1, "type": "number"})",
       {"-1.111111101", "-123.456789", "-10.864197432"},
       {"0.123456789", "-0.123456789", "-0.987654312", "-1.1111111", "0"}},
      {R"({"type": "integer", "multipleOf": 0.123456789})",
       {"0", "123456789", "-246913578"},
       {"1", "0.123456789", "1e308"}},
      {R"({"multipleOf": 0.00012, "type": "integer"})", {"3", "0", "-6"}, {"1", "2", "0.00012"}},
      {R"({"allOf": [{"multipleOf": 4}, {"multipleOf": 6}], "type": "integer"})",
       {"12", "24"},
       {"4", "6"}},
      {R"({"type": "integer", "minimum": 0, "maximum": 9, "not": {"enum": [3, 5.0, "x"]}})",
       {"0", "2", "4", "9"},
       {"3", "5", "10"}},
  });
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

TEST(Decimals, CompareAndRead) {
  const std::pair<const char*, const char*> equal[] = {
      {"1e3", "1000"}, {"0.001", "1e-3"}, {"-0", "0"}, {"12.50", "12.5"}, {"1.5e1", "15"}};
  for (const auto& [x, y] : equal) EXPECT_EQ(parse_decimal(x), parse_decimal(y)) << x;
  const char* ascending[] = {"-1e30", "-12", "-11.5", "-1.25", "-1.2", "0",
                             "1e-9",  "0.5", "0.51",  "9",     "10",   "1e400"};
  for (std::size_t i = 1; i < std::size(ascending); ++i) {
    EXPECT_LT(*parse_decimal(ascending[i - 1]), *parse_decimal(ascending[i])) << ascending[i];
  }
  for (const char* wrong : {"", "-", "x", "1e", "1e99999", "1x"})
    EXPECT_FALSE(parse_decimal(wrong)) << wrong;
}

// Bounds and steps against integer arithmetic on random numbers.
TEST(Schemas, RandomNumbersAreWithinTheirBounds) {
  const std::uint32_t seed = test_seed(31);
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const auto text_of = [](int hundredths) {  // the shortest
    std::string out = std::to_string(std::abs(hundredths) / 100);
    const int rest = std::abs(hundredths) % 100;
    if (rest != 0)
      out += "." + std::to_string(rest / 10) + (rest % 10 != 0 ? std::to_string(rest % 10) : "");
    return (hundredths < 0 ? "-" : "") + out;
  };
  const Vocabulary vocabulary = bytes();
  for (int round = 0; round < 60 * test_scale(); ++round) {
    const int low = below(4000) - 2000, high = low + below(3000), step = 1 + below(300);
    const bool integer = below(2) == 0, above = below(2) == 0, stepped = below(2) == 0;
    Json s = {{"type", integer ? "integer" : "number"}};
    s[above ? "exclusiveMinimum" : "minimum"] = low / 100.0;
    s["maximum"] = high / 100.0;
    if (stepped) s["multipleOf"] = step / 100.0;
    Source source = schema_source("{}");
    source.schema = s;
    const auto grammar = Grammar::compile(source, vocabulary);
    for (int i = 0; i < 200; ++i) {
      const int x = low - 50 + below(high - low + 100);
      const bool want = (above ? x > low : x >= low) && x <= high && (!integer || x % 100 == 0) &&
                        (!stepped || x % step == 0);
      EXPECT_EQ(grammar && takes(**grammar, text_of(x)), want) << s << " " << text_of(x);
    }
  }
}

}  // namespace
}  // namespace lathe::grammar
