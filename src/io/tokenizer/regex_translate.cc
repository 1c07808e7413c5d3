// Translates Oniguruma's Ruby syntax to PCRE2's. Constructs that differ and cannot be spelled out
// are rejected: a silent difference would give wrong tokens.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <utility>
#include <vector>

#include "io/tokenizer/regex.h"

namespace lathe {
namespace {

// \s and \w in Oniguruma. PCRE2's \s also has U+180E, and its \w has no marks. The six superscripts
// and fractions come from Oniguruma's Latin-1 table for characters below U+0100.
constexpr std::string_view kSpace = R"(\t-\r\x{85}\p{Z})";
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\xB2\xB3\xB9\xBC-\xBE)";

// General categories of Unicode, which are disjoint and cover every character.
constexpr std::array<std::string_view, 30> kCategories = {
    "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe",
    "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cn", "Co", "Cs"};

constexpr int kMaxNestedClasses = 8;

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

  // A class: operands joined by &&, each a union of members and of nested classes.
  bool char_class() {
    const bool negated = starts("[^");
    at_ += negated ? 2 : 1;
    if (starts("]")) return refuse("an empty character class, or one that begins with ]");
    if (++depth_ > kMaxNestedClasses) return refuse("[ in too many character classes");
    const std::string before = std::exchange(out_, {});
    std::vector<Operand> operands;
    while (true) {
      if (!operand(operands.emplace_back())) return false;
      if (in_[at_] == ']') break;
      at_ += 2;
    }
    --depth_;
    ++at_;
    out_ = before + text_of(operands, negated);
    return true;
  }

  struct Operand {
    std::string members;               // as between [ and ]
    std::vector<std::string> classes;  // nested, translated
    std::string text() const {
      if (classes.empty()) return "[" + members + "]";
      std::string out = members.empty() ? "" : "[" + members + "]";
      for (const std::string& c : classes) out += (out.empty() ? "" : "|") + c;
      return members.empty() && classes.size() == 1 ? out : "(?:" + out + ")";
    }
  };

  // Ends at the class's ] or at &&.
  bool operand(Operand& operand) {
    while (at_ < in_.size() && in_[at_] != ']' && !starts("&&")) {
      if (starts("[:")) return refuse("[: in a character class");
      if (starts("[")) {
        const std::string members = std::exchange(out_, {});
        if (!char_class()) return false;
        operand.classes.push_back(std::exchange(out_, members));
      } else if (in_[at_] == '\\' ? !escape(true) : !copy(1)) {
        return false;
      }
    }
    if (at_ == in_.size()) return refuse("an unfinished character class");
    operand.members = std::exchange(out_, {});
    if (operand.members.empty() && operand.classes.empty()) return refuse("&& without a class");
    return true;
  }

  std::string text_of(const std::vector<Operand>& operands, bool negated) const {
    const Operand& first = operands.front();
    if (operands.size() == 1 && first.classes.empty()) {
      return (negated ? "[^" : "[") + first.members + "]";
    }
    if (const auto plain = without(operands); plain && !negated) return *plain;
    std::string all;
    for (std::size_t i = 1; i < operands.size(); ++i) all += "(?=" + operands[i].text() + ")";
    all += first.text();
    return negated ? "(?:(?!" + all + ")(?s:.))" : "(?:" + all + ")";
  }

  // [\p{Lu}\p{Lo}&&[^x]] as [^\p{Ll}...x], with every category but Lu and Lo: a class, which needs
  // no backtracking. None unless the first operand is general categories and the others are each a
  // negated class.
  static std::optional<std::string> without(const std::vector<Operand>& operands) {
    std::vector<std::string_view> rest(kCategories.begin(), kCategories.end());
    std::string_view members = operands.front().members;
    if (!operands.front().classes.empty()) return std::nullopt;
    while (!members.empty()) {
      const std::size_t close = members.find('}');
      if (!members.starts_with("\\p{") || close == std::string_view::npos) return std::nullopt;
      const std::string_view name = members.substr(3, close - 3);
      if (std::erase_if(rest, [&](auto c) { return c.starts_with(name); }) == 0) {
        return std::nullopt;
      }
      members.remove_prefix(close + 1);
    }
    std::string out = "[^";
    for (const char major : std::string_view("LMNPSZC")) {
      const auto in_major = [&](std::string_view c) { return c.front() == major; };
      if (std::ranges::count_if(rest, in_major) == std::ranges::count_if(kCategories, in_major)) {
        out += fmt::format("\\p{{{}}}", major);
        continue;
      }
      for (const std::string_view c : rest) {
        if (in_major(c)) out += fmt::format("\\p{{{}}}", c);
      }
    }
    for (std::size_t i = 1; i < operands.size(); ++i) {
      const Operand& o = operands[i];
      const bool plain = o.members.empty() && o.classes.size() == 1 &&
                         o.classes[0].starts_with("[^") &&
                         o.classes[0].find('[', 1) == std::string::npos;
      if (!plain) return std::nullopt;
      out.append(o.classes[0], 2, o.classes[0].size() - 3);
    }
    return out + "]";
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
  int depth_ = 0;  // of nested character classes
};

}  // namespace

Result<std::string> translate_regex(std::string_view pattern, const std::string& field) {
  return Translator(pattern, field).run();
}

}  // namespace lathe
