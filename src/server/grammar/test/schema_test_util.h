// Checks which values a schema's grammar takes.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/json_digits.h"
#include "server/grammar/grammar.h"
#include "server/grammar/walk.h"

namespace lathe::grammar::schema_test {

inline Vocabulary bytes() {
  std::vector<std::string> out;
  for (int b = 0; b < 256; ++b) out.emplace_back(1, static_cast<char>(b));
  return Vocabulary(std::move(out));
}

inline Source schema_source(std::string_view text) {
  Source out;
  out.kind = Source::Kind::json_schema;
  out.path = "schema";
  out.schema = read_json_exact(text);
  return out;
}

inline bool takes(const Grammar& grammar, std::string_view text) {
  Walk walk(grammar.automaton());
  Place place = walk.start();
  for (const char c : text) place = walk.step(place, static_cast<std::uint8_t>(c));
  return walk.may_end(place);
}

struct Case {
  const char* schema;
  std::vector<const char*> good, bad;
};

inline void check(const std::vector<Case>& cases) {
  const Vocabulary vocabulary = bytes();
  for (const Case& c : cases) {
    const auto grammar = Grammar::compile(schema_source(c.schema), vocabulary);
    ASSERT_TRUE(grammar) << c.schema << grammar.error().message();
    for (const char* text : c.good) EXPECT_TRUE(takes(**grammar, text)) << c.schema << " " << text;
    for (const char* text : c.bad) EXPECT_FALSE(takes(**grammar, text)) << c.schema << " " << text;
  }
}

}  // namespace lathe::grammar::schema_test
