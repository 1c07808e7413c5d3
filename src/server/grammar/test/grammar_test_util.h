// Sources of grammars and a vocabulary for tests of them.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/grammar/grammar.h"
#include "server/grammar/walk.h"

namespace lathe::grammar {

// All bytes, and tokens that span several parts of JSON.
inline std::vector<std::string> token_texts() {
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

inline Source schema(std::string_view text) {
  Source out;
  out.kind = Source::Kind::json_schema;
  out.path = "schema";
  out.schema = nlohmann::ordered_json::parse(text);
  return out;
}

inline Source regex(std::string text) {
  Source out;
  out.kind = Source::Kind::regex;
  out.path = "regex";
  out.regex = std::move(text);
  return out;
}

inline constexpr const char* kSampleSchemas[] = {
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

inline std::vector<Source> sources() {
  std::vector<Source> out;
  out.emplace_back();
  for (const char* text : kSampleSchemas) out.push_back(schema(text));
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
  calls.tools = {{"a",
                  nlohmann::ordered_json::parse(
                      R"({"type": "object", "properties": {"x": {"type": "string"}}})"),
                  "t"},
                 {"ab", nlohmann::ordered_json::object(), "t"}};
  out.push_back(calls);
  calls.thinking = Thinking::possible;
  out.push_back(calls);
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

inline bool has(const std::vector<std::uint32_t>& bits, std::int64_t token) {
  return (bits[static_cast<std::size_t>(token / 32)] >> (token % 32) & 1u) != 0;
}

}  // namespace lathe::grammar
