// Source: what a request says about the text of its answer.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace lathe::grammar {

/// Text before the grammar's, where marks of reasoning are no tokens of their own.
enum class Thinking : std::uint8_t {
  none,
  inside,    // text up to </think>
  possible,  // the same after <think>, or nothing
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
  std::vector<std::string> choices;  // of which one is the text
  std::vector<Tool> tools;           // calls: [{"name", "parameters"}, ...]
  bool one_call = false;
  Thinking thinking = Thinking::none;

  /// Equal for equal grammars.
  std::string key() const;
};

}  // namespace lathe::grammar
