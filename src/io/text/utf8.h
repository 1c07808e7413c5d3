// UTF-8 scanning for the tokenizer: runs of valid text between stray bytes, and replacement of
// invalid bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace lathe {

/// U+FFFD.
inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Utf8Char {
  char32_t code = 0;
  int size = 0;  // bytes; at the end of the text 0
  bool valid = false;
  // The text ends inside an incomplete sequence.
  bool truncated = false;
};

/// The character at the front of `text`. For invalid UTF-8, `size` is the length of the maximal
/// subpart (Unicode 15.0, section 3.9, table 3-7), at least 1, which one U+FFFD replaces.
Utf8Char utf8_front(std::string_view text);

/// The character at the end of `text`; size 0 if the text is empty or ends in invalid UTF-8.
Utf8Char utf8_back(std::string_view text);

/// Length of the longest valid prefix in bytes.
std::size_t utf8_valid_prefix(std::string_view text);

/// Errors: malformed, with the first byte that is not UTF-8 and its place, 1 for the first.
Result<void> check_utf8(std::string_view text, const std::string& field);

void append_utf8(std::string& out, char32_t code);

/// Appends `text` with one U+FFFD for each maximal invalid subpart. With `keep_tail`, leaves out an
/// incomplete sequence at the end. Returns the number of bytes of `text` consumed.
std::size_t append_lossy_utf8(std::string& out, std::string_view text, bool keep_tail = false);

/// Unicode's White_Space property.
bool is_white_space(char32_t c);

}  // namespace lathe
