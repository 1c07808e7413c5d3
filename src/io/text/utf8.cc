#include "io/text/utf8.h"

#include <fmt/format.h>

#include <cstring>

namespace lathe {
namespace {

// Length of the ASCII prefix of `text`, scanned eight bytes at a time.
std::size_t ascii_prefix(std::string_view text) {
  std::size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    std::uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    if ((word & 0x8080808080808080u) != 0) break;
  }
  while (i < text.size() && static_cast<unsigned char>(text[i]) < 0x80) ++i;
  return i;
}

}  // namespace

Utf8Char utf8_front(std::string_view text) {
  if (text.empty()) return {};
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {lead, 1, true, false};
  if (lead < 0xC2 || lead > 0xF4) return {0, 1, false, false};
  const int size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and values above U+10FFFF.
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  char32_t code = lead & (0x7Fu >> size);
  for (int i = 1; i < size; ++i) {
    if (static_cast<std::size_t>(i) == text.size()) return {0, i, false, true};
    const unsigned b = byte(static_cast<std::size_t>(i));
    if (b < (i == 1 ? low : 0x80) || b > (i == 1 ? high : 0xBF)) return {0, i, false, false};
    code = code << 6 | (b & 0x3F);
  }
  return {code, size, true, false};
}

Utf8Char utf8_back(std::string_view text) {
  for (std::size_t n = 1; n <= 4 && n <= text.size(); ++n) {
    const std::string_view tail = text.substr(text.size() - n);
    if ((static_cast<unsigned char>(tail[0]) & 0xC0) == 0x80) continue;
    const Utf8Char c = utf8_front(tail);
    if (c.valid && static_cast<std::size_t>(c.size) == n) return c;
    break;
  }
  return {};
}

std::size_t utf8_valid_prefix(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    at += ascii_prefix(text.substr(at));
    if (at == text.size()) break;
    const Utf8Char c = utf8_front(text.substr(at));
    if (!c.valid) break;
    at += static_cast<std::size_t>(c.size);
  }
  return at;
}

Result<void> check_utf8(std::string_view text, const std::string& field) {
  const std::size_t valid = utf8_valid_prefix(text);
  if (valid == text.size()) return {};
  return Error{ErrorCode::malformed, field, "text in UTF-8",
               fmt::format("0x{:02x} at byte {} of {}", static_cast<unsigned char>(text[valid]),
                           valid + 1, text.size()),
               ""};
}

void append_utf8(std::string& out, char32_t code) {
  const auto put = [&](char32_t b) { out.push_back(static_cast<char>(b)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

std::size_t append_lossy_utf8(std::string& out, std::string_view text, bool keep_tail) {
  std::size_t at = 0;
  while (true) {
    const std::size_t n = utf8_valid_prefix(text.substr(at));
    out.append(text.substr(at, n));
    at += n;
    if (at == text.size()) return at;
    const Utf8Char broken = utf8_front(text.substr(at));
    if (broken.truncated && keep_tail) return at;
    out.append(kReplacement);
    at += static_cast<std::size_t>(broken.size);
  }
}

bool is_white_space(char32_t c) {
  if (c <= 0x20) return c == 0x20 || (c >= 0x09 && c <= 0x0D);
  if (c < 0x1680) return c == 0x85 || c == 0xA0;
  return c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

}  // namespace lathe
