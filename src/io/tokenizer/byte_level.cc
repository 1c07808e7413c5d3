#include "io/tokenizer/byte_level.h"

#include <array>

#include "io/text/utf8.h"

namespace lathe {
namespace {

struct Alphabet {
  std::array<char32_t, 256> char_of{};
  std::array<std::int16_t, 512> byte_of{};  // by character; -1: none
};

constexpr Alphabet make_alphabet() {
  Alphabet a;
  a.byte_of.fill(-1);
  char32_t next = 256;
  for (unsigned b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
    a.char_of[b] = printable ? b : next++;
    a.byte_of[a.char_of[b]] = static_cast<std::int16_t>(b);
  }
  return a;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

char32_t byte_level_char(std::uint8_t byte) { return kAlphabet.char_of[byte]; }

std::optional<std::string> byte_level_bytes(std::string_view token) {
  std::string out;
  for (std::size_t at = 0; at < token.size();) {
    const Utf8Char c = utf8_front(token.substr(at));
    if (!c.valid || c.code >= kAlphabet.byte_of.size() || kAlphabet.byte_of[c.code] < 0) return {};
    out.push_back(static_cast<char>(kAlphabet.byte_of[c.code]));
    at += static_cast<std::size_t>(c.size);
  }
  return out;
}

}  // namespace lathe
