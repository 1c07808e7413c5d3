#include "server/markup/python_literal.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "io/text/utf8.h"
#include "server/markup/tool_arguments.h"

namespace lathe {
namespace {

bool is_decimal(char c) { return c >= '0' && c <= '9'; }

// The value of a digit in bases up to 16, or -1.
int digit_value(char c) {
  if (is_decimal(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// The number that `digits` hexadecimal digits are; nullopt: they are not there.
std::optional<std::uint32_t> hexadecimal(std::string_view text, std::size_t digits) {
  if (text.size() < digits) return std::nullopt;
  std::uint32_t code = 0;
  for (const char c : text.substr(0, digits)) {
    const int digit = digit_value(c);
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

// The character of an octal escape, which has up to three digits.
std::string octal_character(std::string_view& text) {
  std::uint32_t code = 0;
  for (int i = 0; i < 3 && !text.empty() && text[0] >= '0' && text[0] < '8'; ++i) {
    code = code * 8 + static_cast<std::uint32_t>(text[0] - '0');
    text.remove_prefix(1);
  }
  std::string out;
  append_utf8(out, static_cast<char32_t>(code));
  return out;
}

// What an escape stands for; `text` begins after the backslash. nullopt: malformed, or \N{...},
// which needs a table of Unicode's names.
std::optional<std::string> escaped_text(std::string_view& text) {
  if (text.empty() || text[0] == 'N') return std::nullopt;
  if (text[0] >= '0' && text[0] < '8') return octal_character(text);
  const char code = text[0];
  text.remove_prefix(1);
  if (code == 'x' || code == 'u' || code == 'U') {
    return escaped_character(text, code == 'x' ? 2 : code == 'u' ? 4 : 8);
  }
  constexpr std::string_view kFrom = "nrtbfav\\'\"\n";
  constexpr const char* kTo[] = {"\n", "\r", "\t", "\b", "\f", "\a", "\v", "\\", "'", "\"", ""};
  if (const std::size_t at = kFrom.find(code); at != std::string_view::npos) return kTo[at];
  return std::string("\\") + code;  // Python leaves unknown escapes as they are
}

// Bytes of a string's prefix and its first quote; 0: no string of text.
std::size_t string_front(std::string_view text) {
  const bool prefix = !text.empty() && std::string_view("rRuU").find(text[0]) < 4;
  const std::size_t quote = prefix ? 1 : 0;
  return quote < text.size() && (text[quote] == '"' || text[quote] == '\'') ? quote + 1 : 0;
}

// Removes one string literal and appends its text. False: malformed.
bool add_python_string(std::string_view& text, std::string& out) {
  const bool raw = text[0] == 'r' || text[0] == 'R';
  text.remove_prefix(string_front(text) - 1);
  const std::string quotes(3, text[0]);
  const std::string_view end = std::string_view(quotes).substr(0, text.starts_with(quotes) ? 3 : 1);
  text.remove_prefix(end.size());
  while (!text.starts_with(end)) {
    if (text.empty()) return false;
    const char c = text[0];
    text.remove_prefix(1);
    if (c != '\\') {
      out += c;
    } else if (raw) {  // a quote after it does not end the string
      if (text.empty()) return false;
      out.append(1, c).append(1, text[0]);
      text.remove_prefix(1);
    } else {
      const auto character = escaped_text(text);
      if (!character) return false;
      out += *character;
    }
  }
  text.remove_prefix(end.size());
  return true;
}

// Removes underscores, which must be between two digits.
std::optional<std::string> without_underscores(std::string_view text, int base) {
  const auto digit = [&](std::size_t i) {
    return i < text.size() && digit_value(text[i]) >= 0 && digit_value(text[i]) < base;
  };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
    } else if (i == 0 || !digit(i - 1) || !digit(i + 1)) {
      return std::nullopt;
    }
  }
  return out;
}

// The decimal digits of a whole number in another base. nullopt: malformed, or too long.
std::optional<std::string> decimal_text(std::string_view digits, int base) {
  constexpr std::size_t kMostDigits = 1024;  // the work is quadratic
  constexpr std::uint64_t kLimb = 1'000'000'000;
  if (digits.empty() || digits.size() > kMostDigits) return std::nullopt;
  std::vector<std::uint64_t> limbs = {0};  // the lowest first
  for (const char c : digits) {
    const int value = digit_value(c);
    if (value < 0 || value >= base) return std::nullopt;
    auto carry = static_cast<std::uint64_t>(value);
    for (std::uint64_t& limb : limbs) {
      carry += limb * static_cast<std::uint64_t>(base);
      limb = carry % kLimb;
      carry /= kLimb;
    }
    if (carry > 0) limbs.push_back(carry);
  }
  std::string out = fmt::format("{}", limbs.back());
  for (std::size_t i = limbs.size() - 1; i-- > 0;) out += fmt::format("{:09}", limbs[i]);
  return out;
}

// A whole number without its sign. nullopt: malformed, or not a whole number.
std::optional<std::string> whole_number(std::string_view word) {
  const char mark = word.size() > 1 && word[0] == '0' ? word[1] : '\0';
  const int base = mark == 'x' || mark == 'X'   ? 16
                   : mark == 'o' || mark == 'O' ? 8
                   : mark == 'b' || mark == 'B' ? 2
                                                : 10;
  if (base != 10) {
    word.remove_prefix(2);
    if (word.starts_with('_')) word.remove_prefix(1);
  }
  auto digits = without_underscores(word, base);
  if (!digits || base != 10) return digits ? decimal_text(*digits, base) : std::nullopt;
  if (digits->empty() || !std::ranges::all_of(*digits, is_decimal)) return std::nullopt;
  if (digits->find_first_not_of('0') == std::string::npos) return "0";
  return digits->front() != '0' ? digits : std::nullopt;
}

// A number with a point or an exponent, without its sign, as JSON.
std::optional<std::string> real_number(std::string_view word) {
  auto digits = without_underscores(word, 10);
  const std::size_t mark = digits ? digits->find_first_of(".eE") : std::string::npos;
  if (mark == std::string::npos || digits->size() == 1) return std::nullopt;
  const bool fraction = mark + 1 < digits->size() && is_decimal((*digits)[mark + 1]);
  if (mark == 0 && !fraction) return std::nullopt;
  if ((*digits)[mark] == '.' && !fraction) digits->insert(mark + 1, "0");
  const std::size_t zeros = std::min(digits->find_first_not_of('0'), mark);
  digits->erase(0, zeros);
  if (!is_decimal(digits->front())) digits->insert(0, "0");
  return compact_json(*digits);
}

}  // namespace

bool begins_python_string(std::string_view text) { return string_front(text) > 0; }

std::optional<std::string> python_string(std::string_view& text) {
  std::string out;
  while (begins_python_string(text)) {
    if (!add_python_string(text, out)) return std::nullopt;
    const std::string_view rest =
        text.substr(std::min(text.find_first_not_of(kJsonSpace), text.size()));
    if (begins_python_string(rest)) text = rest;
  }
  return json_text(out);
}

std::optional<std::string> python_word(std::string_view word) {
  for (const auto& [from, to] :
       {std::pair{"True", "true"}, std::pair{"False", "false"}, std::pair{"None", "null"},
        std::pair{"true", "true"}, std::pair{"false", "false"}, std::pair{"null", "null"}}) {
    if (word == from) return to;
  }
  const bool negative = word.starts_with('-');
  if (negative || word.starts_with('+')) word.remove_prefix(1);
  const auto whole = whole_number(word);
  if (whole == "0") return whole;
  const auto number = whole ? whole : real_number(word);
  return number ? std::optional((negative ? "-" : "") + *number) : std::nullopt;
}

}  // namespace lathe
