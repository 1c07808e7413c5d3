// Requests for constrained answers of one schema, and a model that has to be constrained.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "server/scripted/scripted_server.h"

namespace lathe::constrained_test {

/// A model that prefers newlines and rates all other tokens equally.
inline ScriptedOptions lover_of_newlines(const std::string& prefix = "") {
  ScriptedOptions options;
  options.template_prefix = prefix;
  options.next = [](std::int32_t, std::int32_t) { return std::int32_t{'\n'}; };
  return options;
}

inline std::string chat(const nlohmann::json& more, const std::string& text = "q") {
  nlohmann::json body{{"messages", {{{"role", "user"}, {"content", text}}}}, {"max_tokens", 12000}};
  body.update(more);
  return body.dump();
}

inline nlohmann::json format_of(const nlohmann::json& schema) {
  return {{"type", "json_schema"},
          {"json_schema", {{"name", "s"}, {"schema", schema}, {"strict", true}}}};
}

inline const nlohmann::json kSchema = nlohmann::json::parse(
    R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items":
    {"type": "string", "maxLength": 5}, "maxItems": 3}, "c": {"enum": ["x", null]}},
    "required": ["a", "b"], "additionalProperties": false})");

inline void expect_valid(const nlohmann::json& value) {
  EXPECT_TRUE(value.is_object() && value["a"].is_number_integer() && value["b"].is_array());
  for (const auto& [name, member] : value.items()) {
    EXPECT_TRUE(name == "a" || name == "b" || name == "c") << name;
    if (name == "c") {
      EXPECT_TRUE(member == "x" || member.is_null());
    }
  }
}

}  // namespace lathe::constrained_test
