// JSON Schema's string formats as regular expressions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lathe::grammar {

/// The pattern that the whole string matches; nullopt for unknown formats.
std::optional<std::string> format_pattern(std::string_view format);
std::string known_formats();

}  // namespace lathe::grammar
