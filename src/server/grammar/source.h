// Source: the constraint that a request puts on its answer's text.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
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

/// How arguments are written that have marks of their own: before_key, the name, after_key, then a
/// string between before_text and after_text as it is, or a value between before_json and
/// after_json as JSON. Without after_text strings are JSON, too.
struct MarkedForm {
  std::string before_key = {};
  std::string after_key = {};
  std::string before_text = {}, after_text = {};
  std::string before_json = {}, after_json = {};
  std::string between = {};  // two arguments
  // Texts that no string has, as they would end its call.
  std::vector<std::string> avoided = {};
};

/// A call as a model writes it: begin, before_name, the name, after_name, the arguments as JSON or
/// in marks, end. `wrapped`: between the marks is {"name", arguments_name}. Newlines of
/// before_name, after_name, end and the marks of arguments may be missing.
struct CallForm {
  std::string begin;  // empty: calls only begin the answer
  bool wrapped = false;
  std::string arguments_name = "arguments";
  std::string before_name = {};
  bool numbered = false;  // before_number and a number come after the name
  std::string before_number = {};
  std::string after_name = {};
  std::optional<MarkedForm> marked = std::nullopt;
  std::string end = {};  // empty: a call ends with its arguments
  // Calls come in lists: after `begin` list_begin, with `between` between them, then list_end.
  bool listed = false;
  std::string list_begin = {}, between = {}, list_end = {};
  // Wrapped calls come in a JSON list after `begin`, or, if in_lines, also one after another; then
  // list_end. Each may have an id of nine letters and digits.
  bool in_json_list = false, in_lines = false, with_ids = false;
  // An answer may also begin with a call without `begin`. Nothing follows calls then.
  bool begins_answer = false;
  // Marks before and after a section of calls, in turn, which an answer of calls alone may have.
  std::vector<std::string> around = {};
  // JSON strings in arguments have < as \u003c alone: marks in them would end the call.
  bool escapes_less = false;
  // Texts that do not occur before a call, as they would begin one in another form; and bytes that
  // do not begin the answer's text.
  std::vector<std::string> avoided = {};
  std::string not_first = {};

  /// Equal for equal forms.
  std::string key() const;
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
  CallForm form;                     // text_and_calls: any text, and calls in this form
  bool one_call = false;
  // Constraints of tools' schemas that cannot be followed are left out.
  bool lenient = false;
  bool must_call = false;  // no white space and marks around calls, and no other text
  // Of other kinds: the answer is such a text, or calls in `form` without other text.
  bool or_calls = false;
  // Precedes each mark that is a token, so that no string has one; 0: nothing does.
  char mark_byte = 0;
  Thinking thinking = Thinking::none;
  // Marks around reasoning, and texts after them and before the constrained text.
  std::string think_begin = "<think>", think_end = "</think>", after_think = {}, opening = {};
  // Special tokens that are marks have text.
  bool with_marks() const { return kind == Kind::text_and_calls || or_calls || !opening.empty(); }
  // Bits [(vocab + 31) / 32] of the tokens that may write the text; empty: all.
  std::vector<std::uint32_t> tokens;
  std::string tokens_path;  // of the request's field that leaves these tokens, for errors

  /// Equal for equal grammars.
  std::string key() const;
};

}  // namespace lathe::grammar
