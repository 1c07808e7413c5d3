// `format` where a schema is a condition: it may be an annotation or not, by the standard. Values
// that are valid in both readings are allowed, and values that are valid in neither are not.
#include <gtest/gtest.h>

#include "server/grammar/test/schema_test_util.h"

namespace lathe::grammar {
namespace {

using schema_test::check;

TEST(Schemas, FormatOfAConditionNarrowsNothing) {
  check({
      // The condition asks for nothing, whether it holds or not.
      {R"({"if": {"type": "string", "format": "date"}, "then": true})",
       {R"("a")", R"("2024-01-31")", "3"},
       {}},
      // As an annotation it always holds; else it does not hold for "a", which `else` allows.
      {R"({"type": "string", "if": {"format": "date"}, "else": {"const": "a"}})",
       {R"("a")", R"("2024-01-31")"},
       {"3"}},
      {R"({"type": "string", "if": {"$ref": "#/$defs/d"}, "else": {"const": "a"},
          "$defs": {"d": {"format": "date"}}})",
       {R"("a")", R"("2024-01-31")"},
       {"3"}},
      {R"({"if": {"type": "string", "format": "ipv4"}, "then": {"maxLength": 8}, "else": {"type":
          "null"}})",
       {R"("1.1.1.1")", "null"},
       {"3", R"("100.100.100.100")", R"("longer text")"}},
      // "ab" is no pointer, and long enough for one.
      {R"({"type": "string", "if": {"format": "json-pointer"}, "then": {"minLength": 2}})",
       {R"("/a")", R"("ab")"},
       {R"("/")"}},
      // The condition always holds, so `then` does: narrower than either reading, where "a" is
      // valid.
      {R"({"type": "string", "if": {"format": "date"}, "then": {"format": "date-time"},
          "else": {"format": "email"}})",
       {R"("2024-01-31T01:02:03Z")"},
       {R"("2024-01-31")", R"("a")", R"("a@b.c")"}},
      // `then` is no condition.
      {R"({"type": "string", "if": {"minLength": 3}, "then": {"format": "date"}})",
       {R"("a")", R"("2024-01-31")"},
       {R"("abc")"}},
      {R"({"oneOf": [{"type": "string", "if": {"format": "date"}, "then": {"maxLength": 10}},
          {"type": "integer"}]})",
       {R"("a")", R"("2024-01-31")", "3"},
       {"null"}},
      // Not: a date ("abcdef" is none) without ^2, or another text of more than 5 characters.
      {R"({"type": "string", "not": {"if": {"format": "date"}, "then": {"pattern": "^2"},
          "else": {"maxLength": 5}}})",
       {R"("1999-01-31")", R"("abcdef")"},
       {R"("2024-01-31")", R"("2")"}},
  });
}

TEST(Schemas, FormatInOneOfOfAConditionNarrowsNothing) {
  check({
      // "a" is short and maybe a date: two hold, or one, for which `then` allows it.
      {R"({"type": "string", "if": {"oneOf": [{"format": "date"}, {"maxLength": 2}]},
          "then": {"maxLength": 9}})",
       {R"("a")", R"("abcd")"},
       {R"("2024-01-31")"}},
      // Both hold for "a", or none.
      {R"({"type": "string", "if": {"oneOf": [{"format": "date"}, {"format": "uuid"}]},
          "then": {"const": "b"}})",
       {R"("a")", R"("b")"},
       {"3"}},
      {R"({"type": "string", "not": {"oneOf": [{"format": "date"}, {"format": "uuid"}]}})",
       {R"("a")"},
       {"3"}},
  });
}

TEST(Schemas, FormatInsideAConditionNarrowsNothing) {
  check({
      {R"({"type": "object", "if": {"properties": {"a": {"format": "date"}}, "required": ["a"]},
          "then": {"required": ["b"]}})",
       {R"({"a":"x","b":1})", R"({"a":"2024-01-31","b":1})", R"({"a":3,"b":1})", "{}"},
       {R"({"a":"2024-01-31"})", R"({"a":3})"}},
      {R"({"type": "array", "if": {"items": {"type": "string", "format": "date"}},
          "then": {"maxItems": 1}})",
       {R"(["x"])", R"(["2024-01-31"])", "[1,2]", R"(["x",1])"},
       {R"(["2024-01-31","2024-01-31"])"}},
      // How many items match is counted: at most 1 in the first two, so "x" may be one or not.
      {R"({"type": "array", "contains": {"type": "string", "format": "date"}, "minContains": 0,
          "maxContains": 1})",
       {"[]", R"(["x"])", R"(["2024-01-31",3])"},
       {R"(["2024-01-31","2024-01-31"])"}},
      {R"({"type": "array", "not": {"contains": {"type": "string", "format": "date"},
          "minContains": 2}})",
       {"[]", R"(["x"])", R"(["2024-01-31",3])"},
       {R"(["2024-01-31","2024-01-31"])"}},
      // A list that has more than it must is not counted.
      {R"({"type": "array", "contains": {"type": "string", "format": "date"}})",
       {R"(["2024-01-31","x"])"},
       {"[]", "[3]", R"(["x"])"}},
      {R"({"type": "object", "not": {"properties": {"a": {"type": "string", "format": "date"}},
          "unevaluatedProperties": false}})",
       {R"({"a":"x","b":1})", R"({"b":1})"},
       {R"({"a":"2024-01-31"})", "{}"}},
  });
}

}  // namespace
}  // namespace lathe::grammar
