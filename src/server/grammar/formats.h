// The formats of strings in a schema, as regular expressions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lathe::grammar {

/// What a whole string of the format matches; nothing: the format is not known.
std::optional<std::string> format_pattern(std::string_view format);
std::string known_formats();

}  // namespace lathe::grammar
