#include "server/openai/json_writer.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>

#include "io/text/utf8.h"

namespace lathe {
namespace {

// Bytes that a JSON string holds as they are: one table load each in a loop over every answer.
constexpr auto kPlain = [] {
  std::array<bool, 256> out{};
  for (std::size_t c = 0x20; c < 0x7f; ++c) out[c] = c != '"' && c != '\\';
  return out;
}();

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  static constexpr std::string_view kHex = "0123456789abcdef";
  out += '"';
  std::size_t plain = 0;  // start of what has not been copied
  const auto copy_until = [&](std::size_t end) { out.append(text, plain, end - plain); };
  for (std::size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (kPlain[c]) {
      ++i;
      continue;
    }
    if (c >= 0x80) {
      const Utf8Char u = utf8_front(text.substr(i));
      if (u.valid && u.code != 0x2028 && u.code != 0x2029) {
        i += static_cast<std::size_t>(u.size);
        continue;
      }
      copy_until(i);
      out += !u.valid ? "\xef\xbf\xbd" : u.code == 0x2028 ? "\\u2028" : "\\u2029";
      i += static_cast<std::size_t>(u.size);
      plain = i;
      continue;
    }
    copy_until(i);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else {
      out += "\\u00";
      out += kHex[c >> 4];
      out += kHex[c & 15];
    }
    plain = ++i;
  }
  copy_until(text.size());
  out += '"';
}

void append_json_integer(std::string& out, std::int64_t value) {
  std::array<char, 20> digits;
  const char* end = std::to_chars(digits.begin(), digits.end(), value).ptr;
  out.append(digits.data(), static_cast<std::size_t>(end - digits.data()));
}

void append_json_number(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += value > 0 ? "9999.0" : "-9999.0";
    return;
  }
  const std::size_t begin = out.size();
  std::array<char, 32> digits;  // the shortest that gives the value back: at most 24
  out.append(digits.data(), std::to_chars(digits.begin(), digits.end(), value).ptr);
  // Keep a fraction, so that typed readers see a double.
  if (out.find_first_of(".e", begin) == std::string::npos) out += ".0";
}

}  // namespace lathe
