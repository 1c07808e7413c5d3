// Translates Oniguruma's Ruby syntax to PCRE2's. Constructs that differ and cannot be spelled out
// are rejected: a silent difference would give wrong tokens.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <cctype>

#include "io/tokenizer/regex.h"

namespace lathe {
namespace {

// \s and \w in Oniguruma. PCRE2's \s also has U+180E, and its \w has no marks. The six superscripts
// and fractions come from Oniguruma's Latin-1 table for characters below U+0100.
constexpr std::string_view kSpace = R"(\t-\r\x{85}\p{Z})";
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\xB2\xB3\xB9\xBC-\xBE)";

bool compiles(const std::string& pattern) {
  int code = 0;
  PCRE2_SIZE at = 0;
  auto* compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                 PCRE2_UTF | PCRE2_UCP, &code, &at, nullptr);
  pcre2_code_free(compiled);
  return compiled != nullptr;
}

class Translator {
 public:
  Translator(std::string_view in, const std::string& field) : in_(in), field_(field) {}

  Result<std::string> run() {
    while (at_ < in_.size()) {
      const bool ok = in_[at_] == '\\'  ? escape(false)
                      : in_[at_] == '[' ? char_class()
                      : in_[at_] == '(' ? group()
                      : in_[at_] == '{' ? interval()
                                        : copy(1);
      if (!ok) {
        return Error{ErrorCode::unsupported, field_,
                     "a pattern that means the same in PCRE2 and Oniguruma", refused_, ""};
      }
    }
    return std::move(out_);
  }

 private:
  bool starts(std::string_view s) const { return in_.substr(at_).starts_with(s); }
  bool copy(std::size_t n) {
    out_.append(in_.substr(at_, n));
    at_ += n;
    return true;
  }
  bool put(std::string_view s, std::size_t consumed) {
    out_.append(s);
    at_ += consumed;
    return true;
  }
  bool refuse(std::string what) {
    refused_ = std::move(what);
    return false;
  }

  // Translates a backslash escape, inside a class or outside.
  bool escape(bool in_class) {
    if (at_ + 1 == in_.size()) return refuse("a backslash at the end");
    const char c = in_[at_ + 1];
    const auto as_class = [&](std::string_view members, bool negated) {
      if (in_class) out_.append(members);
      return in_class ? put("", 2) : put(fmt::format("[{}{}]", negated ? "^" : "", members), 2);
    };
    switch (c) {
      case 's':
        return as_class(kSpace, false);
      case 'S':
        return in_class ? put(R"(\S\x{180E})", 2) : as_class(kSpace, true);
      case 'w':
        return as_class(kWord, false);
      case 'W':
        return in_class ? refuse(R"(\W in a class)") : as_class(kWord, true);
      case 'd':
        return put(R"(\p{Nd})", 2);
      case 'D':
        return put(R"(\P{Nd})", 2);
      case 'v':
        return put(R"(\x0B)", 2);
      case 'p':
      case 'P':
        return property();
      case 'u':
        return hex_escape();
      case 'x':
        return braced_hex();
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'e':
      case 'a':
        return copy(2);
      case 'A':
      case 'z':
        if (!in_class) return copy(2);
        break;
      default:
        // Escaped punctuation and non-ASCII characters are literals.
        if (std::isalnum(static_cast<unsigned char>(c)) == 0) return copy(2);
    }
    return refuse(fmt::format("\\{}{}", c, in_class ? " in a class" : ""));
  }

  // \p{Name}: a script means a character's own script, without the script extensions of PCRE2.
  bool property() {
    const std::size_t close = in_.find('}', at_);
    if (at_ + 2 >= in_.size() || in_[at_ + 2] != '{' || close == std::string_view::npos) {
      return refuse("\\p without {name}");
    }
    const std::string_view inside = in_.substr(at_ + 3, close - at_ - 3);
    const bool caret = inside.starts_with('^');
    const std::string name(inside.substr(caret ? 1 : 0));
    const bool plain = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
      return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_';
    });
    const std::string script = fmt::format("{{{}sc:{}}}", caret ? "^" : "", name);
    const std::string as_is = fmt::format("{{{}{}}}", caret ? "^" : "", name);
    // PCRE2 has names (L&, Xan, Xps) that Oniguruma lacks.
    if (!plain || name.starts_with('X')) return refuse(fmt::format("\\p{{{}}}", inside));
    const std::string kind(in_.substr(at_, 2));
    const bool category = name.size() <= 2;
    if (!category && compiles("\\p" + script)) return put(kind + script, close + 1 - at_);
    if (compiles("\\p" + as_is)) return put(kind + as_is, close + 1 - at_);
    return refuse(fmt::format("\\p{{{}}}", inside));
  }

  bool hex_digits(std::string_view digits) const {
    return !digits.empty() && std::all_of(digits.begin(), digits.end(), [](char c) {
      return std::isxdigit(static_cast<unsigned char>(c)) != 0;
    });
  }
  bool hex_escape() {
    const std::string_view digits = in_.substr(at_ + 2, 4);
    if (digits.size() != 4 || !hex_digits(digits)) return refuse("\\u without four hex digits");
    return put(fmt::format("\\x{{{}}}", digits), 6);
  }
  bool braced_hex() {
    if (!starts("\\x{")) {
      const std::string_view digits = in_.substr(at_ + 2, 2);
      // From 80 on, \xHH is a byte in Oniguruma, not a character.
      if (digits.size() != 2 || !hex_digits(digits) || digits[0] > '7') {
        return refuse("\\x other than \\x00 to \\x7F and \\x{...}");
      }
      return copy(4);
    }
    const std::size_t close = in_.find('}', at_);
    const std::string_view digits =
        close == std::string_view::npos ? "" : in_.substr(at_ + 3, close - at_ - 3);
    if (!hex_digits(digits)) return refuse("\\x{...} with other than one code point");
    return copy(close + 1 - at_);
  }

  bool char_class() {
    copy(starts("[^") ? 2 : 1);
    if (starts("]")) return refuse("an empty character class, or one that begins with ]");
    while (at_ < in_.size() && in_[at_] != ']') {
      if (starts("&&")) return refuse("&& in a character class");
      if (starts("[")) return refuse("[ in a character class");
      const bool ok = in_[at_] == '\\' ? escape(true) : copy(1);
      if (!ok) return false;
    }
    if (at_ == in_.size()) return refuse("an unfinished character class");
    return copy(1);
  }

  bool group() {
    for (std::string_view known : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"}) {
      if (starts(known)) return copy(known.size());
    }
    // Elsewhere the scope of an option over alternatives differs.
    if (at_ == 0 && starts("(?i)")) return copy(4);
    if (starts("(?") || starts("(*")) {
      const std::size_t end = std::min(in_.find_first_of(":)", at_), at_ + 12);
      return refuse(std::string(in_.substr(at_, end - at_ + 1)));
    }
    return copy(1);
  }

  bool interval() {
    const std::size_t close = in_.find('}', at_);
    const std::string_view inside =
        close == std::string_view::npos ? "" : in_.substr(at_ + 1, close - at_ - 1);
    const std::size_t comma = inside.find(',');
    const auto number = [](std::string_view s) {
      return !s.empty() && std::all_of(s.begin(), s.end(), [](char c) {
        return std::isdigit(static_cast<unsigned char>(c)) != 0;
      });
    };
    const std::string_view low = inside.substr(0, comma);
    const std::string_view high = comma == std::string_view::npos ? "" : inside.substr(comma + 1);
    if (!number(low) || (!high.empty() && !number(high))) return refuse("{ not in {n,m}");
    copy(close + 1 - at_);
    // {n}? is an optional and {n,m}+ a repetition in Ruby syntax, lazy and possessive in PCRE2.
    if (starts("+") || (starts("?") && comma == std::string_view::npos)) {
      return refuse(fmt::format("{{{}}}{}", inside, in_[at_]));
    }
    return true;
  }

  std::string_view in_;
  const std::string& field_;
  std::size_t at_ = 0;
  std::string out_;
  std::string refused_;
};

}  // namespace

Result<std::string> translate_regex(std::string_view pattern, const std::string& field) {
  return Translator(pattern, field).run();
}

}  // namespace lathe
