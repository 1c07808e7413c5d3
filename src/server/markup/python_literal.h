// Python's strings, numbers and constants as JSON, read as ast.literal_eval reads them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lathe {

/// Whether `text` begins with a string: quotes, or r or u and quotes.
bool begins_python_string(std::string_view text);
/// Removes the string literals that `text` begins with; adjacent ones are one string. nullopt:
/// malformed, or with a character by its name, \N{...}.
std::optional<std::string> python_string(std::string_view& text);

/// A number, or True, False or None, also in JSON's spelling.
std::optional<std::string> python_word(std::string_view word);

}  // namespace lathe
