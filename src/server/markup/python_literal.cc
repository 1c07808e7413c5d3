#include "server/markup/python_literal.h"

#include <algorithm>
#include <cstdint>

#include "io/text/utf8.h"
#include "server/markup/tool_arguments.h"

namespace lathe {
namespace {

// The number that `digits` hexadecimal digits are; nullopt: they are not there.
std::optional<std::uint32_t> hexadecimal(std::string_view text, std::size_t digits) {
  if (text.size() < digits) return std::nullopt;
  std::uint32_t code = 0;
  for (const char c : text.substr(0, digits)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return std::nullopt;
    code = code * 16 + static_cast<std::uint32_t>(digit);
  }
  return code;
}

// The character of an escape with `digits` hexadecimal digits, or of two that are a pair of
// surrogates, as in JSON; nullopt: malformed.
std::optional<std::string> escaped_character(std::string_view& text, std::size_t digits) {
  auto code = hexadecimal(text, digits);
  if (!code) return std::nullopt;
  text.remove_prefix(digits);
  if (*code >= 0xd800 && *code < 0xdc00 && text.starts_with("\\u")) {
    const auto low = hexadecimal(text.substr(2), 4);
    if (!low || *low < 0xdc00 || *low >= 0xe000) return std::nullopt;
    text.remove_prefix(6);
    code = 0x10000 + ((*code - 0xd800) << 10) + (*low - 0xdc00);
  }
  if (*code > 0x10ffff || (*code >= 0xd800 && *code < 0xe000)) return std::nullopt;
  std::string out;
  append_utf8(out, static_cast<char32_t>(*code));
  return out;
}

}  // namespace

std::optional<std::string> python_string(std::string_view& text) {
  const char quote = text[0];
  const bool triple = text.starts_with(std::string(3, quote));
  const std::string end(triple ? 3 : 1, quote);
  text.remove_prefix(end.size());
  std::string out;
  while (!text.empty()) {
    if (text.starts_with(end)) {
      text.remove_prefix(end.size());
      return json_text(out);
    }
    const char c = text[0];
    text.remove_prefix(1);
    if (c != '\\') {
      out += c;
      continue;
    }
    if (text.empty()) return std::nullopt;
    const char code = text[0];
    text.remove_prefix(1);
    constexpr std::string_view kFrom = "nrtbfav0\\'\"", kTo("\n\r\t\b\f\a\v\0\\'\"", 11);
    if (code == 'x' || code == 'u' || code == 'U') {
      auto character = escaped_character(text, code == 'x' ? 2 : code == 'u' ? 4 : 8);
      if (!character) return std::nullopt;
      out += *character;
    } else if (const std::size_t at = kFrom.find(code); at != std::string_view::npos) {
      out += kTo[at];
    } else if (code != '\n') {  // Python leaves unknown escapes as they are
      out += '\\';
      out += code;
    }
  }
  return std::nullopt;
}

std::optional<std::string> python_word(std::string_view word) {
  for (const auto& [from, to] :
       {std::pair{"True", "true"}, std::pair{"False", "false"}, std::pair{"None", "null"},
        std::pair{"true", "true"}, std::pair{"false", "false"}, std::pair{"null", "null"}}) {
    if (word == from) return to;
  }
  std::string digits(word);
  std::erase(digits, '_');
  if (digits.starts_with('+')) digits.erase(0, 1);
  if (digits.ends_with('.')) digits += '0';
  if (digits.starts_with('.')) digits.insert(0, "0");
  const bool number =
      !digits.empty() && (digits[0] == '-' || (digits[0] >= '0' && digits[0] <= '9'));
  return number ? compact_json(digits) : std::nullopt;
}

}  // namespace lathe
