#include "server/grammar/text/regex.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "io/text/utf8.h"
#include "server/grammar/text/unicode_classes.h"

namespace lathe::grammar {
namespace {

constexpr int kMostGroups = 64;

const CharSet kDigit = {{'0', '9'}};
const CharSet kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CharSet kSpace = {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680},
                        {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                        {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const CharSet kLineEnd = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

CharSet one(char32_t c) { return {{c, c}}; }

class Parser {
 public:
  Parser(std::string_view pattern, const std::string& field)
      : text_(decode_utf8(pattern)), field_(field) {}

  Result<Regex> parse() {
    std::vector<Regex::Look> looks;
    const std::u32string_view text = text_;
    const bool begins = text.starts_with(U"^(?=") || text.starts_with(U"^(?!");
    if (begins) ++at_;
    while (take(U"(?=") || take(U"(?!")) looks.push_back(look());
    Regex out = choice(0);
    if (!error_ && at_ < text_.size()) fail(ErrorCode::malformed, "a ( for each )", "one without");
    if (!looks.empty() && alternatives_) refuse("look-around and |");
    if (!error_) check_ends(out, true, true);
    if (error_) return *error_;
    if (looks.empty()) return out;
    if (begins) out = after_begin(std::move(out));
    out.looks = std::move(looks);
    out.floats = !begins;
    return out;
  }

 private:
  bool more() const { return !error_ && at_ < text_.size(); }
  char32_t peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : U'\0';
  }
  bool take(std::u32string_view what) {
    if (std::u32string_view(text_).substr(at_, what.size()) != what) return false;
    at_ += what.size();
    return true;
  }
  void fail(ErrorCode code, std::string wanted, std::string got) {
    if (error_) return;
    error_ = Error{code, field_, std::move(wanted),
                   fmt::format("{} at character {}", got, std::min(at_, text_.size())), ""};
  }
  void refuse(std::string_view what) {
    fail(ErrorCode::unsupported, "a regular expression that an automaton can follow",
         std::string(what));
  }

  // Reads a look-ahead after its mark.
  Regex::Look look() {
    Regex::Look out;
    out.negated = text_[at_ - 1] == U'!';
    out.regex = choice(1);
    if (!error_ && !take(U")")) fail(ErrorCode::malformed, "a ) for each (", "one without");
    if (!error_) check_ends(out.regex, true, true);
    out.regex = after_begin(std::move(out.regex));
    return out;
  }

  static Regex after_begin(Regex regex) {
    Regex out, begin;
    out.kind = Regex::Kind::join;
    begin.kind = Regex::Kind::begin;
    out.parts = {std::move(begin), std::move(regex)};
    return out;
  }

  Regex choice(int depth) {
    Regex out = join(depth);
    if (peek() != U'|' || !more()) return out;
    alternatives_ = alternatives_ || depth == 0;
    Regex all;
    all.kind = Regex::Kind::choice;
    all.parts.push_back(std::move(out));
    while (more() && take(U"|")) all.parts.push_back(join(depth));
    const bool characters = std::all_of(all.parts.begin(), all.parts.end(), [](const Regex& r) {
      return r.kind == Regex::Kind::character;
    });
    if (!characters) return all;
    CharSet chars;
    for (const Regex& r : all.parts) chars = chars | r.chars;
    return of(std::move(chars));
  }

  Regex join(int depth) {
    Regex out;
    out.kind = Regex::Kind::join;
    while (more() && peek() != U'|' && peek() != U')') {
      Regex part = atom(depth);
      bool may_repeat = part.kind != Regex::Kind::begin && part.kind != Regex::Kind::end;
      while (more()) {
        const auto times = repeat();
        if (!times || error_) break;
        if (!std::exchange(may_repeat, false)) {
          fail(ErrorCode::malformed, "something to repeat", "a quantifier alone");
          break;
        }
        Regex r;
        r.kind = Regex::Kind::repeat;
        r.least = times->first;
        r.most = times->second;
        r.parts.push_back(std::move(part));
        part = std::move(r);
        if (take(U"?")) continue;  // lazy: matches the same texts
        if (peek() == U'+') refuse("a possessive repeat");
      }
      out.parts.push_back(std::move(part));
    }
    if (out.parts.size() != 1) return out;
    Regex only = std::move(out.parts[0]);
    return only;
  }

  std::optional<std::int64_t> number() {
    if (peek() < U'0' || peek() > U'9') return std::nullopt;
    std::int64_t n = 0;
    while (peek() >= U'0' && peek() <= U'9') {
      n = std::min<std::int64_t>(n * 10 + (peek() - U'0'), kMostRepeats + 1);
      ++at_;
    }
    return n;
  }

  // The bounds of a quantifier. A { that begins none is a literal.
  std::optional<std::pair<std::int64_t, std::int64_t>> repeat() {
    if (take(U"*")) return std::pair(std::int64_t{0}, Regex::kNoMost);
    if (take(U"+")) return std::pair(std::int64_t{1}, Regex::kNoMost);
    if (take(U"?")) return std::pair(std::int64_t{0}, std::int64_t{1});
    const std::size_t begin = at_;
    if (!take(U"{")) return std::nullopt;
    const auto least = number();
    std::optional<std::int64_t> most = least;
    if (least && take(U",")) {
      most = number();
      if (!most) most = Regex::kNoMost;
    }
    if (!least || !take(U"}")) {
      at_ = begin;
      if (peek(1) == U',') refuse("{,");  // a quantifier in only one of the two dialects
      return std::nullopt;
    }
    if (*least > kMostRepeats || *most > kMostRepeats) {
      fail(ErrorCode::unsupported, fmt::format("at most {} repeats", kMostRepeats), "more");
    } else if (*most != Regex::kNoMost && *most < *least) {
      fail(ErrorCode::malformed, "{least,most}", "a smaller most");
    }
    return std::pair(*least, *most);
  }

  static Regex of(CharSet chars) {
    Regex out;
    out.kind = Regex::Kind::character;
    out.chars = std::move(chars);
    return out;
  }

  Regex atom(int depth) {
    Regex out;
    const char32_t c = text_[at_];
    if (c == U'(') return group(depth);
    if (c == U'[') return of(char_class());
    if (c == U'*' || c == U'+' || c == U'?') {
      fail(ErrorCode::malformed, "something to repeat", "a quantifier alone");
      return out;
    }
    ++at_;
    if (c == U'^' || c == U'$') {
      out.kind = c == U'^' ? Regex::Kind::begin : Regex::Kind::end;
      return out;
    }
    if (c == U'.') return of(~kLineEnd);
    if (c == U'\\') return of(escape(false));
    if (c == U'{' && peek() == U',') refuse("{,");
    return of(one(c));
  }

  Regex group(int depth) {
    ++at_;
    if (depth == kMostGroups) {
      fail(ErrorCode::unsupported, fmt::format("at most {} nested groups", kMostGroups), "more");
      return {};
    }
    if (take(U"?")) {
      const bool named =
          take(U"P<") || (peek() == U'<' && peek(1) != U'=' && peek(1) != U'!' && take(U"<"));
      if (named) {
        while (more() && peek() != U'>') ++at_;
        take(U">");
      } else if (!take(U":")) {
        const bool looks = peek() == U'=' || peek() == U'!' || peek() == U'<';
        refuse(looks ? "look-around" : "a group with (?");
        return {};
      }
    }
    Regex out = choice(depth + 1);
    if (!error_ && !take(U")")) fail(ErrorCode::malformed, "a ) for each (", "one without");
    return out;
  }

  std::optional<char32_t> hex(int digits) {
    char32_t out = 0;
    for (int i = 0; i < digits; ++i) {
      const char32_t c = peek(static_cast<std::size_t>(i));
      const int d = c >= U'0' && c <= U'9'   ? static_cast<int>(c - U'0')
                    : c >= U'a' && c <= U'f' ? static_cast<int>(c - U'a') + 10
                    : c >= U'A' && c <= U'F' ? static_cast<int>(c - U'A') + 10
                                             : -1;
      if (d < 0) {
        fail(ErrorCode::malformed, fmt::format("{} hexadecimal digits", digits), "others");
        return std::nullopt;
      }
      out = out * 16 + static_cast<char32_t>(d);
    }
    at_ += static_cast<std::size_t>(digits);
    return out;
  }

  CharSet unicode_escape() {
    char32_t c = 0;
    if (take(U"{")) {
      std::size_t digits = 0;
      while (digits <= 6 && peek(digits) != U'}' && peek(digits) != 0) ++digits;
      c = hex(static_cast<int>(digits)).value_or(0);
      if (digits == 0 || !take(U"}")) fail(ErrorCode::malformed, "\\u{digits}", "something else");
    } else {
      c = hex(4).value_or(0);
      const bool high = c >= 0xD800 && c <= 0xDBFF;
      if (high && take(U"\\u")) {
        const char32_t low = hex(4).value_or(0);
        c = low >= 0xDC00 && low <= 0xDFFF ? 0x10000 + ((c & 0x3FF) << 10) + (low & 0x3FF) : c;
      }
    }
    if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) {
      fail(ErrorCode::malformed, "a character's number", "another");
      return {};
    }
    return one(c);
  }

  // Reads {name} after \p or \P.
  CharSet property(bool negated) {
    const std::size_t end = text_.find(U'}', at_);
    std::string name;
    if (take(U"{") && end != std::u32string::npos) {
      while (at_ < end) append_utf8(name, text_[at_++]);
      ++at_;
    }
    const auto chars = unicode_class(name);
    if (!chars) refuse(fmt::format("\\p{{{}}}, which is no general category", name));
    if (!chars) return {};
    return negated ? ~*chars : *chars;
  }

  // Reads what follows a backslash.
  CharSet escape(bool in_class) {
    const char32_t c = peek();
    if (at_ == text_.size()) {
      fail(ErrorCode::malformed, "a character after \\", "none");
      return {};
    }
    ++at_;
    switch (c) {
      case U'd':
        return kDigit;
      case U'D':
        return ~kDigit;
      case U'w':
        return kWord;
      case U'W':
        return ~kWord;
      case U's':
        return kSpace;
      case U'S':
        return ~kSpace;
      case U't':
        return one(U'\t');
      case U'n':
        return one(U'\n');
      case U'r':
        return one(U'\r');
      case U'f':
        return one(U'\f');
      case U'v':
        return one(U'\v');
      case U'x':
        return one(hex(2).value_or(0));
      case U'u':
        return unicode_escape();
      case U'p':
      case U'P':
        return property(c == U'P');
      default:
        break;
    }
    if (c == U'b' && in_class) return one(U'\b');
    const bool digit = c >= U'0' && c <= U'9';
    const bool letter = (c >= U'a' && c <= U'z') || (c >= U'A' && c <= U'Z');
    if (c == U'0' && (peek() < U'0' || peek() > U'9')) return one(0);
    if (c == U'b' || c == U'B') {
      refuse("a word boundary");
    } else if (digit || c == U'k') {
      refuse("a back reference");
    } else if (letter) {
      refuse(fmt::format("\\{}", static_cast<char>(c)));
    }
    return one(c);
  }

  CharSet char_class() {
    ++at_;
    const bool negated = take(U"^");
    CharSet out;
    if (peek() == U']') refuse("an empty class");
    while (more() && peek() != U']') {
      bool whole = false;  // a class such as \d, which cannot end a range
      const auto member = [&]() -> CharSet {
        const char32_t c = text_[at_++];
        if (c != U'\\') return one(c);
        CharSet set = escape(true);
        const auto& ranges = set.ranges();
        whole = ranges.size() != 1 || ranges[0].first != ranges[0].last;
        return set;
      };
      CharSet set = member();
      const bool range = !whole && peek() == U'-' && peek(1) != U']' && peek(1) != 0;
      if (range && !error_) {
        ++at_;
        const char32_t first = set.ranges()[0].first;
        const CharSet to = member();
        if (error_) break;
        if (whole || to.ranges()[0].first < first) {
          fail(ErrorCode::malformed, whole ? "a character at a range's end" : "an ascending range",
               whole ? "a class" : "a descending one");
          break;
        }
        set = {{first, to.ranges()[0].first}};
      }
      out = out | set;
    }
    if (!error_ && !take(U"]")) fail(ErrorCode::malformed, "a ] for each [", "one without");
    return negated ? ~out : out;
  }

  // Rejects ^ and $ anywhere but at the ends of the match.
  void check_ends(const Regex& r, bool at_begin, bool at_end) {
    if (r.kind == Regex::Kind::begin && !at_begin) refuse("^ inside");
    if (r.kind == Regex::Kind::end && !at_end) refuse("$ inside");
    for (std::size_t i = 0; i < r.parts.size(); ++i) {
      const bool join = r.kind == Regex::Kind::join;
      const bool none = r.kind == Regex::Kind::repeat;
      check_ends(r.parts[i], at_begin && !none && (!join || i == 0),
                 at_end && !none && (!join || i + 1 == r.parts.size()));
    }
  }

  std::u32string text_;
  const std::string& field_;
  std::size_t at_ = 0;
  bool alternatives_ = false;  // of the whole expression
  std::optional<Error> error_;
};

}  // namespace

Result<Regex> parse_regex(std::string_view pattern, const std::string& field) {
  return Parser(pattern, field).parse();
}

}  // namespace lathe::grammar
