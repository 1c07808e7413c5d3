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

struct Source {
  enum class Kind : std::uint8_t { json_object, json_schema, regex, choice, calls };

  Kind kind = Kind::json_object;
  std::string path;                  // of the request's field, for errors
  nlohmann::ordered_json schema;     // json_schema
  std::string regex;                 // matches the whole text
  std::vector<std::string> choices;  // the text is one of them
  std::vector<Tool> tools;           // calls: [{"name", "parameters"}, ...]
  bool one_call = false;
  Thinking thinking = Thinking::none;

  /// Equal for equal grammars.
  std::string key() const;
};

}  // namespace lathe::grammar
