#include "server/grammar/text/characters.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "io/text/utf8.h"

namespace lathe::grammar {
namespace {

constexpr char32_t kLast = 0x10FFFF;

struct Utf8Length {
  char32_t last;  // largest character of that length
  int bytes;
};
constexpr Utf8Length kLengths[] = {{0x7F, 1}, {0x7FF, 2}, {0xFFFF, 3}, {kLast, 4}};

// The UTF-8 byte of c that is followed by `place` more bytes.
std::uint8_t byte_of(char32_t c, int place, int bytes) {
  constexpr char32_t marks[] = {0, 0, 0xC0, 0xE0, 0xF0};
  if (place == bytes - 1) return static_cast<std::uint8_t>(marks[bytes] | (c >> (6 * place)));
  return static_cast<std::uint8_t>(0x80 | ((c >> (6 * place)) & 0x3F));
}

// States from which any n continuation bytes lead to `to`, shared by all ranges of a set.
class Tails {
 public:
  Tails(Builder& b, State to) : b_(b), tails_{to} {}
  State of(int n) {
    for (; made_ <= n; ++made_) {
      const State s = b_.state(tails_[0]);
      b_.bytes(s, 0x80, 0xBF, tails_[made_ - 1]);
      tails_[made_] = s;
    }
    return tails_[n];
  }

 private:
  Builder& b_;
  State tails_[4];
  int made_ = 1;
};

// Adds a range of characters of `bytes` bytes that share all bytes before the one followed by
// `place` more.
void add_bytes(Builder& b, State from, CharRange range, int bytes, int place, Tails& tails) {
  const auto [first, last] = range;
  const char32_t low = (char32_t{1} << (6 * place)) - 1;  // bits in the bytes that follow
  const int x = byte_of(first, place, bytes), y = byte_of(last, place, bytes);
  const bool first_whole = (first & low) == 0, last_whole = (last & low) == low;
  const auto one = [&](int byte, CharRange with) {
    const State next = b.state(from);
    b.bytes(from, static_cast<std::uint8_t>(byte), static_cast<std::uint8_t>(byte), next);
    add_bytes(b, next, with, bytes, place - 1, tails);
  };
  if (x == y && !(first_whole && last_whole)) return one(x, range);
  const int begin = first_whole ? x : x + 1;
  const int end = last_whole ? y : y - 1;
  if (!first_whole) one(x, {first, first | low});
  if (begin <= end) {
    b.bytes(from, static_cast<std::uint8_t>(begin), static_cast<std::uint8_t>(end),
            tails.of(place));
  }
  if (!last_whole) one(y, {last & ~low, last});
}

void add_utf8(Builder& b, State from, CharRange range, Tails& tails) {
  char32_t first = range.first;
  for (const Utf8Length& length : kLengths) {
    if (first > length.last) continue;
    const char32_t last = std::min(range.last, length.last);
    add_bytes(b, from, {first, last}, length.bytes, length.bytes - 1, tails);
    if (last == range.last) return;
    first = last + 1;
  }
}

constexpr char32_t kEndOfControls = 0x1F;

std::string escape_of(char32_t c) {
  switch (c) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    case '<':
      return "\\u003c";
    default:
      return c <= kEndOfControls ? fmt::format("\\u{:04x}", static_cast<unsigned>(c)) : "";
  }
}

// Characters that a JSON string has as escapes alone, ascending; '<' with Builder::escapes_less.
constexpr CharRange kEscaped[] = {{0, kEndOfControls}, {'"', '"'}, {'<', '<'}, {'\\', '\\'}};

// Adds the escapes of some characters, with one path for the bytes that several begin with.
void add_escapes(Builder& b, State from, const std::vector<CharRange>& chars, State to) {
  if (chars.empty()) return;
  const State slash = b.text(from, "\\");
  std::optional<State> tens[4];  // after \u000 to \u003
  std::optional<State> zeros;    // after \u00
  for (const CharRange& r : chars) {
    for (char32_t c = r.first; c <= r.last; ++c) {
      const std::string escape = escape_of(c);
      const auto last = static_cast<std::uint8_t>(escape.back());
      if (escape.size() == 2) {
        b.bytes(slash, last, last, to);
        continue;
      }
      if (!zeros) zeros = b.text(slash, "u00");
      std::optional<State>& ten = tens[c >> 4];
      if (!ten) ten = b.text(*zeros, escape.substr(4, 1));
      b.bytes(*ten, last, last, to);
    }
  }
}

void add_hex(Builder& b, State from, State to) {
  b.bytes(from, '0', '9', to);
  b.bytes(from, 'a', 'f', to);
  b.bytes(from, 'A', 'F', to);
}

// Adds hexadecimal digits in either case.
void add_hex_of(Builder& b, State from, std::string_view digits, State to) {
  for (const char c : digits) {
    for (const char either : {c, c >= 'a' ? static_cast<char>(c - 'a' + 'A') : c}) {
      b.bytes(from, static_cast<std::uint8_t>(either), static_cast<std::uint8_t>(either), to);
    }
  }
}

}  // namespace

CharSet::CharSet(std::vector<CharRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const CharRange& a, const CharRange& b) { return a.first < b.first; });
  const auto add = [&](CharRange r) {
    if (r.first > r.last) return;
    if (!ranges_.empty() && r.first <= ranges_.back().last + 1) {
      ranges_.back().last = std::max(ranges_.back().last, r.last);
    } else {
      ranges_.push_back(r);
    }
  };
  for (const CharRange& r : ranges) {
    add({r.first, std::min<char32_t>(r.last, 0xD7FF)});
    add({std::max<char32_t>(r.first, 0xE000), std::min(r.last, kLast)});
  }
}

CharSet CharSet::operator~() const {
  std::vector<CharRange> out;
  char32_t next = 0;
  for (const CharRange& r : ranges_) {
    if (r.first > next) out.push_back({next, r.first - 1});
    next = r.last + 1;
  }
  out.push_back({next, kLast});
  return CharSet(std::move(out));
}

CharSet CharSet::operator|(const CharSet& other) const {
  std::vector<CharRange> all = ranges_;
  all.insert(all.end(), other.ranges_.begin(), other.ranges_.end());
  return CharSet(std::move(all));
}

void add_char(Builder& b, State from, const CharSet& chars, Spelling spelling, State to) {
  Tails tails(b, to);
  std::vector<CharRange> escaped;
  for (CharRange r : chars.ranges()) {
    // Without CharSet's operators: schemas add characters a million times.
    for (const CharRange& e : kEscaped) {
      if (spelling == Spelling::plain || r.first > e.last || r.last < e.first) continue;
      if (e.first == '<' && !b.escapes_less) continue;
      if (r.first < e.first) add_utf8(b, from, {r.first, e.first - 1}, tails);
      escaped.push_back({std::max(r.first, e.first), std::min(r.last, e.last)});
      r.first = e.last + 1;
    }
    if (r.first <= r.last) add_utf8(b, from, r, tails);
  }
  add_escapes(b, from, escaped, to);
}

void add_any_quoted_char(Builder& b, State from, State to) {
  Tails tails(b, to);
  char32_t first = kEndOfControls + 1;
  for (const CharRange& e : kEscaped) {
    if (e.first < first || (e.first == '<' && !b.escapes_less)) continue;
    add_utf8(b, from, {first, e.first - 1}, tails);
    first = e.last + 1;
  }
  add_utf8(b, from, {first, 0xD7FF}, tails);
  add_utf8(b, from, {0xE000, kLast}, tails);
  const State escape = b.text(from, "\\");
  for (const char c : std::string_view("\"\\/bfnrt")) {
    b.bytes(escape, static_cast<std::uint8_t>(c), static_cast<std::uint8_t>(c), to);
  }
  // \uXXXX outside D800-DFFF, or a surrogate pair: \uD8XX to \uDBXX, then \uDCXX to \uDFXX.
  const auto hex_tail = [&](int digits) {
    State next = to;
    for (int i = 0; i < digits; ++i) {
      const State s = b.state(to);
      add_hex(b, s, next);
      next = s;
    }
    return next;
  };
  const State two = hex_tail(2);
  const State three = b.state(to);
  add_hex(b, three, two);
  const State u = b.text(escape, "u");
  b.bytes(u, '0', '9', three);
  add_hex_of(b, u, "abcef", three);
  const State d = b.state(to);
  add_hex_of(b, u, "d", d);
  b.bytes(d, '0', '7', two);
  const State high = b.state(to);
  add_hex_of(b, d, "89ab", high);
  const State high_last = b.state(to);
  add_hex(b, high, high_last);
  const State pair = b.state(to);
  add_hex(b, high_last, pair);
  const State second = b.text(pair, "\\u");
  const State second_d = b.state(to);
  add_hex_of(b, second, "d", second_d);
  add_hex_of(b, second_d, "cdef", two);
}

std::u32string decode_utf8(std::string_view text) {
  std::u32string out;
  while (!text.empty()) {
    const Utf8Char c = utf8_front(text);
    out += c.valid ? c.code : U'\uFFFD';
    text.remove_prefix(static_cast<std::size_t>(c.size));
  }
  return out;
}

std::string quoted_text(std::string_view text, bool escapes_less) {
  std::string out;
  for (const char c : text) {
    const bool plain = c == '<' && !escapes_less;
    const std::string escape = plain ? "" : escape_of(static_cast<unsigned char>(c));
    if (escape.empty()) {
      out += c;
    } else {
      out += escape;
    }
  }
  return out;
}

}  // namespace lathe::grammar
