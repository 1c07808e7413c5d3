// Sets of Unicode characters and their encodings.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "server/grammar/automaton.h"

namespace lathe::grammar {

/// Characters first to last, inclusive.
struct CharRange {
  char32_t first = 0;
  char32_t last = 0;
};

/// Ascending ranges with gaps between them. Never holds surrogates.
class CharSet {
 public:
  CharSet() = default;
  CharSet(std::initializer_list<CharRange> ranges) : CharSet(std::vector<CharRange>(ranges)) {}
  explicit CharSet(std::vector<CharRange> ranges);
  static CharSet all() { return {{0, 0x10FFFF}}; }

  const std::vector<CharRange>& ranges() const& { return ranges_; }
  void ranges() && = delete;
  bool empty() const { return ranges_.empty(); }
  bool contains(char32_t c) const {
    const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), c,
                                        [](char32_t x, const CharRange& r) { return x < r.first; });
    return after != ranges_.begin() && c <= std::prev(after)->last;
  }
  CharSet operator~() const;
  CharSet operator|(const CharSet& other) const;
  CharSet operator&(const CharSet& other) const { return ~(~*this | ~other); }

 private:
  std::vector<CharRange> ranges_;
};

enum class Spelling {
  plain,   // as UTF-8
  quoted,  // as inside a JSON string, with the shortest escapes
};

/// Adds one character of the set.
void add_char(Builder& b, State from, const CharSet& chars, Spelling spelling, State to);
/// Adds one character of a JSON string in any spelling; a surrogate pair is one character.
void add_any_quoted_char(Builder& b, State from, State to);
/// The code points of UTF-8 text.
std::u32string decode_utf8(std::string_view text);
/// UTF-8 text escaped as in a JSON string, without the quotes. `escapes_less`: as Builder's.
std::string quoted_text(std::string_view text, bool escapes_less);

}  // namespace lathe::grammar
