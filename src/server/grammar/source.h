// Source: the constraint that a request puts on its answer's text.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace lathe::grammar {

/// Reasoning before the constrained text, where its marks are not single tokens.
enum class Thinking : std::uint8_t {
  none,
  inside,    // the answer begins in reasoning
  possible,  // the answer may begin with <think>
};

struct Tool {
  std::string name;
  nlohmann::ordered_json schema;  // of its arguments
  std::string path;               // of the schema, for errors
};

/// A call with its arguments as JSON, as a model writes it: begin, before_name, the name,
/// after_name, the arguments, end. `wrapped`: between the marks is {"name", "arguments"}.
struct JsonCallForm {
  std::string begin;
  bool wrapped = false;
  std::string before_name = {};
  std::string after_name = {};
  std::string end = {};  // empty: a call ends with its arguments
  // Texts that do not occur before a call, as they would begin one in another form; nor does a
  // space begin the answer.
  std::vector<std::string> avoided = {};
  bool no_space = false;
};

struct Source {
  enum class Kind : std::uint8_t {
    json_object,
    json_schema,
    regex,
    choice,
    grammar,
    calls,
    text_and_calls
  };

  Kind kind = Kind::json_object;
  std::string path;                  // of the request's field, for errors
  nlohmann::ordered_json schema;     // json_schema
  std::string regex;                 // matches the whole text
  std::vector<std::string> choices;  // the text is one of them
  std::string grammar;               // EBNF or Lark, as grammar_text.h says
  std::vector<Tool> tools;           // calls: [{"name", "parameters"}, ...]
  JsonCallForm form;                 // text_and_calls: any text, and calls in this form
  bool one_call = false;
  // Constraints of tools' schemas that cannot be followed are left out.
  bool lenient = false;
  bool must_call = false;  // text_and_calls: calls alone, without other text
  Thinking thinking = Thinking::none;
  // Marks around reasoning, and texts after them and before the constrained text.
  std::string think_begin = "<think>", think_end = "</think>", after_think = {}, opening = {};
  // Special tokens that are marks have text.
  bool with_marks() const { return kind == Kind::text_and_calls || !opening.empty(); }
  // Bits [(vocab + 31) / 32] of the tokens that may write the text; empty: all.
  std::vector<std::uint32_t> tokens;
  std::string tokens_path;  // of the request's field that leaves these tokens, for errors

  /// Equal for equal grammars.
  std::string key() const;
};

}  // namespace lathe::grammar
