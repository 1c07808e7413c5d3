// Patterns with look-aheads wherever a schema can ask for their match, or for none. What matches is
// what ECMA-262 says, by std::regex.
#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "server/grammar/grammar.h"
#include "server/grammar/test/schema_test_util.h"

namespace lathe::grammar {
namespace {

using schema_test::bytes;
using schema_test::schema_source;
using schema_test::takes;

constexpr const char* kPatterns[] = {
    "^(?!a)",      "^(?=a)",       "^(?!.*a)",      "^(?!a).*",      "^(?=a)a",
    "^(?!a)b",     "^(?!a)[^b]",   "^(?=.*b)a",     "^(?!ab)a",      "^(?=a)(?!.*b)",
    "^(?!a)(?!b)", "^(?=.b)(?!a)", "^(?!(a|bc)$)",  "^(?=.{2})c$",   "^(?!)",
    "^(?=)",       "^(?!b*$)a*$",  "^(?=a|b)(c|a)", "^(?!aa$)[ab]+$"};

// All texts of up to 3 of the letters a, b and c.
std::vector<std::string> short_texts() {
  std::vector<std::string> out = {""};
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (out[i].size() == 3) break;
    for (const char c : {'a', 'b', 'c'}) out.push_back(out[i] + c);
  }
  return out;
}

// Compares the schema, in which % is the pattern, with what it allows of the texts as values, or as
// names of a member.
template <class Allowed>
void expect_allows(std::string_view schema, std::string_view value, const Allowed& allowed) {
  const Vocabulary vocabulary = bytes();
  for (const std::string pattern : kPatterns) {
    const std::regex regex(pattern);
    std::string own(schema);
    for (std::size_t at; (at = own.find('%')) != std::string::npos;) own.replace(at, 1, pattern);
    const auto grammar = Grammar::compile(schema_source(own), vocabulary);
    for (const std::string& text : short_texts()) {
      std::string written(value);
      written.replace(written.find('%'), 1, text);
      const bool good = allowed(std::regex_search(text, regex), text);
      EXPECT_EQ(grammar && takes(**grammar, written), good) << own << " " << written;
    }
  }
}

TEST(Schemas, LookAheadsHoldOrDoNot) {
  const auto matches = [](bool match, const std::string&) { return match; };
  const auto differs = [](bool match, const std::string&) { return !match; };
  expect_allows(R"({"type": "string", "pattern": "%"})", R"("%")", matches);
  expect_allows(R"({"type": "string", "not": {"pattern": "%"}})", R"("%")", differs);
  expect_allows(R"({"type": "string", "not": {"not": {"pattern": "%"}}})", R"("%")", matches);
  expect_allows(R"({"type": "string", "if": {"pattern": "%"}, "else": false})", R"("%")", matches);
  expect_allows(R"({"type": "string", "if": {"pattern": "%"}, "then": false})", R"("%")", differs);
  expect_allows(R"({"oneOf": [{"type": "string", "pattern": "%"}, {"type": "string"}]})", R"("%")",
                differs);
  expect_allows(
      R"({"type": "string", "not": {"anyOf": [{"pattern": "%"}, {"pattern": "^c"}]}})", R"("%")",
      [](bool match, const std::string& text) { return !match && !text.starts_with('c'); });
  expect_allows(R"({"type": "string", "minLength": 1, "maxLength": 2, "pattern": "b",
                    "not": {"pattern": "%"}})",
                R"("%")", [](bool match, const std::string& text) {
                  return !match && !text.empty() && text.size() <= 2 &&
                         text.find('b') != std::string::npos;
                });
}

TEST(Schemas, NamesMatchLookAheadsOrDoNot) {
  const auto matches = [](bool match, const std::string&) { return match; };
  const auto differs = [](bool match, const std::string&) { return !match; };
  // A text is a good value only of names that do not match.
  expect_allows(R"({"type": "object", "patternProperties": {"%": {"type": "integer"}},
                    "required": ["d"], "properties": {"d": true}})",
                R"({"d":1,"%":"x"})", differs);
  expect_allows(R"({"type": "object", "minProperties": 1, "patternProperties": {"%": true},
                    "additionalProperties": false})",
                R"({"%":"x"})", matches);
  expect_allows(R"({"type": "object", "minProperties": 1, "propertyNames": {"pattern": "%"}})",
                R"({"%":1})", matches);
  expect_allows(R"({"type": "object", "minProperties": 1,
                    "propertyNames": {"not": {"pattern": "%"}}})",
                R"({"%":1})", differs);
  expect_allows(R"({"type": "object", "not": {"patternProperties": {"%": {"type": "integer"}}}})",
                R"({"%":"x"})", matches);
}

}  // namespace
}  // namespace lathe::grammar
