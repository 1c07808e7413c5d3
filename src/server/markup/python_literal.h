// Python's literals of one token, as JSON.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lathe {

/// Removes the string literal that `text` begins with. nullopt: malformed.
std::optional<std::string> python_string(std::string_view& text);

/// A number, or True, False or None, also in JSON's spelling.
std::optional<std::string> python_word(std::string_view word);

}  // namespace lathe
