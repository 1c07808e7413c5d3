// Values of a call's arguments that are written without JSON's quotes: the tool's schema says what
// they are.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"

namespace lathe {

/// JSON's white space, around calls and answers.
inline constexpr std::string_view kJsonSpace = " \t\r\n";

std::string_view trim(std::string_view text);
/// Removes the front of `text` up to and including `mark`; returns the text before the mark.
std::optional<std::string_view> take_until(std::string_view& text, std::string_view mark);

/// Whether the request's tools have a function of that name.
bool is_tool(const nlohmann::ordered_json& tools, std::string_view name);
/// The properties of a tool's parameters, or null.
const nlohmann::ordered_json* properties_of(const nlohmann::ordered_json& tools,
                                            std::string_view tool);

/// Types that a schema allows; none: it does not say.
struct Types {
  bool string = false, integer = false, number = false, boolean = false, null = false,
       array = false, object = false;

  void add(std::string_view name);
  void add_value(const nlohmann::ordered_json& value);
};
Types types_of(const nlohmann::ordered_json& tools, std::string_view tool,
               std::string_view argument);

/// JSON of one of the types that are not strings, for text that is written as one; else nullopt.
std::optional<std::string> typed_value(const Types& types, std::string_view text);
/// A value without quotes, as JSON: by the argument's schema; without one, a string if it is not
/// JSON.
std::string loose_value(const nlohmann::ordered_json& tools, std::string_view tool,
                        std::string_view argument, std::string_view text);

/// Sets an argument; the last of equal names wins.
void set_member(JsonMembers& members, std::string_view name, std::string value);
const std::string* find_member(const JsonMembers& members, std::string_view name);
/// The text of a JSON string.
std::optional<std::string> string_of(const std::string& json);

}  // namespace lathe
