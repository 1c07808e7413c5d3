// GrammarText: a context-free grammar as its author wrote it, in EBNF or in Lark's language, and
// the automaton of it.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "server/grammar/schema/json_rules.h"
#include "server/grammar/text/regex.h"

namespace lathe::grammar {

/// Where something is in a text, from 1. Columns count characters.
struct TextPosition {
  std::size_t line = 1;
  std::size_t column = 1;
};

/// A part of a rule.
struct Expression {
  enum class Kind {
    join,    // parts in sequence; without parts, the empty text
    choice,  // one of parts
    repeat,  // parts[0], `least` to `most` times; -1: no bound
    regex,   // a text that matches
    rule,    // of this name
    json,    // a JSON text that a schema allows
  };

  Kind kind = Kind::join;
  std::vector<Expression> parts = {};
  std::int64_t least = 0;
  std::int64_t most = -1;
  Regex regex = {};
  std::string name = {};
  nlohmann::ordered_json schema = {};
  TextPosition at = {};
};

struct GrammarRule {
  std::string name;
  Expression body;
  TextPosition at;
};

struct GrammarText {
  std::string path;  // in errors
  std::string start;
  std::vector<GrammarRule> rules;
};

/// Parses EBNF as llama.cpp and xgrammar write it (`root ::= ...`), or, where no `::=` occurs, Lark
/// (`start: ...`). Errors name line and column: malformed; unsupported.
Result<GrammarText> parse_grammar(std::string_view text, const std::string& path);
Result<GrammarText> parse_ebnf(std::string_view text, const std::string& path);
Result<GrammarText> parse_lark(std::string_view text, const std::string& path);

/// Adds the texts of the start rule after `from`; returns the state at their end. Rules may begin
/// with themselves. `ignored` gets SchemaOptions' paths. Errors: malformed, for names without a
/// rule; exhausted; add_schema()'s.
Result<State> add_grammar(Builder& b, JsonRules& json, State from, const GrammarText& grammar,
                          std::vector<std::string>& ignored);

}  // namespace lathe::grammar
