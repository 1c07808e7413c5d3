// propertyNames: the names that it allows, next to which the members' values have their own
// schemas.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "server/grammar/test/schema_test_util.h"

namespace lathe::grammar {
namespace {

using schema_test::check;

TEST(Schemas, NamesOfAListAndOthers) {
  // Each allows the name "a", and names that begin with b.
  for (const char* names : {R"({"anyOf": [{"const": "a"}, {"pattern": "^b"}]})",
                            R"({"oneOf": [{"const": "a"}, {"pattern": "^b"}]})",
                            R"({"anyOf": [{"pattern": "^b"}, {"enum": ["a", "bc", 3]}]})",
                            R"({"if": {"const": "a"}, "else": {"pattern": "^b"}})",
                            R"({"if": {"pattern": "^b"}, "else": {"const": "a"}})",
                            R"({"not": {"not": {"anyOf": [{"const": "a"}, {"pattern": "^b"}]}}})",
                            R"({"$ref": "#/$defs/names"})"}) {
    const auto with = [&](std::string_view more) {
      return fmt::format(R"({{"type": "object", "propertyNames": {}{}, "$defs": {{"names":
          {{"anyOf": [{{"const": "a"}}, {{"pattern": "^b"}}]}}}}}})",
                         names, more);
    };
    check({
        {with("").c_str(),
         {"{}", R"({"a":1})", R"({"b":1})", R"({"bc":1})", R"({"a":1,"bx":2})"},
         {R"({"c":1})", R"({"":1})", R"({"aa":1})", R"({"a":1,"c":1})"}},
        {with(R"(, "additionalProperties": {"type": "integer"}, "maxProperties": 1)").c_str(),
         {"{}", R"({"a":1})", R"({"bc":1})"},
         {R"({"a":"x"})", R"({"b":"x"})", R"({"c":1})", R"({"a":1,"b":1})"}},
        {with(R"(, "patternProperties": {"^a": {"type": "integer"}}, "required": ["a"])").c_str(),
         {R"({"a":1})", R"({"a":1,"b":"x"})"},
         {R"({"a":"x"})", "{}", R"({"b":1})", R"({"a":1,"aa":1})"}},
        {with(R"(, "minProperties": 1, "properties": {"b": {"type": "null"}})").c_str(),
         {R"({"a":1})", R"({"b":null})", R"({"bc":1})"},
         {"{}", R"({"b":1})", R"({"c":1})"}},
    });
  }
}

TEST(Schemas, NamesOfAListAndOthersByLength) {
  check({
      {R"({"type": "object", "propertyNames": {"anyOf": [{"const": "long"}, {"maxLength": 1}]}})",
       {"{}", R"({"long":1})", R"({"a":1})", R"({"":1})", R"({"long":1,"a":1})"},
       {R"({"lo":1})", R"({"longer":1})"}},
      {R"({"type": "object", "propertyNames": {"anyOf": [{"const": "a"}, {"minLength": 3}]}})",
       {R"({"a":1})", R"({"abc":1})"},
       {R"({"b":1})", R"({"ab":1})", R"({"":1})"}},
      {R"({"type": "object", "propertyNames": {"anyOf": [{"const": "ab"}, {"maxLength": 0}]}})",
       {"{}", R"({"ab":1})", R"({"":1})"},
       {R"({"a":1})"}},
  });
}

TEST(Schemas, SomeNameIsOfAList) {
  check({
      // Some name is a or b.
      {R"({"type": "object", "not": {"propertyNames": {"not": {"enum": ["a", "b"]}}}})",
       {R"({"a":1})", R"({"c":1,"b":2})"},
       {"{}", R"({"c":1})"}},
      // Some name is neither a nor begins with b.
      {R"({"type": "object", "not": {"propertyNames": {"anyOf": [{"const": "a"},
          {"pattern": "^b"}]}}})",
       {R"({"c":1})", R"({"a":1,"c":1})", R"({"ab":1})"},
       {"{}", R"({"a":1})", R"({"b":1})", R"({"a":1,"b":1})"}},
  });
}

TEST(Schemas, ManyNames) {
  std::string names;
  for (int i = 0; i < 1500; ++i) names += fmt::format(R"({}"n{}")", i == 0 ? "" : ",", i);
  const std::string schema =
      fmt::format(R"({{"type": "object", "propertyNames": {{"enum": [{}]}}}})", names);
  check({{schema.c_str(),
          {"{}", R"({"n0":1})", R"({"n1499":1,"n3":2})"},
          {R"({"n1500":1})", R"({"n":1})", R"({"n00":1})"}}});
}

}  // namespace
}  // namespace lathe::grammar
