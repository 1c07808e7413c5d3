#include "io/template/jinja_lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "io/template/jinja_failure.h"
#include "io/text/python_text.h"
#include "io/text/quote.h"

namespace lathe {
namespace {

// As in Jinja, first normalises all line ends to \n and drops one at the very end.
std::string normalised(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80) != 0;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalised(source)) {}

  std::vector<JinjaToken> run() {
    while (pos_ < source_.size()) root();
    push(JinjaTokenKind::end, "");
    return std::move(tokens_);
  }

 private:
  enum class Sign { none, minus, plus };

  [[noreturn]] void fail(std::string wanted, std::string offered) const {
    fail_jinja(ErrorCode::malformed, line_, std::move(wanted), std::move(offered));
  }
  std::string_view rest() const { return std::string_view(source_).substr(pos_); }
  bool at(std::string_view what) const { return rest().starts_with(what); }
  void push(JinjaTokenKind kind, std::string text) {
    tokens_.push_back({kind, line_, std::move(text), 0, 0});
  }
  // Skips n bytes; the last one decides whether a line starts here.
  void advance(std::size_t n) {
    for (std::size_t i = pos_; i < pos_ + n; ++i) line_ += source_[i] == '\n';
    pos_ += n;
    if (n > 0) line_starting_ = source_[pos_ - 1] == '\n';
  }
  void skip_space() { advance(rest().size() - trim_start(rest()).size()); }

  Sign take_sign() {
    if (at("-") || at("+")) {
      const Sign s = at("-") ? Sign::minus : Sign::plus;
      advance(1);
      return s;
    }
    return Sign::none;
  }

  // Adds data that ends before a tag. `strips` is false for {{, which lstrip_blocks ignores.
  void data(std::string_view text, Sign sign, bool strips) {
    if (sign == Sign::minus) {
      text = trim_end(text);
    } else if (sign == Sign::none && strips) {
      const std::size_t newline = text.rfind('\n');
      const std::size_t start = newline == std::string_view::npos ? 0 : newline + 1;
      if ((start > 0 || line_starting_) && trim_start(text.substr(start)).empty()) {
        text = text.substr(0, start);
      }
    }
    if (!text.empty()) push(JinjaTokenKind::data, std::string(text));
  }

  // Skips a tag's end such as "%}" and the space that it strips: with "-" all space after it,
  // otherwise one line end. Returns false if there is no such end here.
  bool take_end(std::string_view close, bool trims_newline) {
    if (at("-") && rest().substr(1).starts_with(close)) {
      advance(1 + close.size());
      skip_space();
      return true;
    }
    if (trims_newline && at("+") && rest().substr(1).starts_with(close)) {
      advance(1 + close.size());
      return true;
    }
    if (!at(close)) return false;
    advance(close.size());
    if (trims_newline && at("\n")) advance(1);
    return true;
  }

  // The length of a tag such as "{%- raw -%}" with this word at `p`, or nullopt.
  std::optional<std::size_t> raw_tag(std::size_t p, std::string_view word) const {
    const auto skip = [&](std::size_t q) {
      return source_.size() - trim_start(std::string_view(source_).substr(q)).size();
    };
    std::size_t q = p + 2;
    if (q < source_.size() && (source_[q] == '-' || source_[q] == '+')) ++q;
    q = skip(q);
    if (!std::string_view(source_).substr(q).starts_with(word)) return std::nullopt;
    q = skip(q + word.size());
    const auto tail = std::string_view(source_).substr(q);
    if (tail.starts_with("%}") || tail.starts_with("-%}")) return q - p;
    if (word == "endraw" && tail.starts_with("+%}")) return q - p;
    return std::nullopt;
  }

  void root() {
    std::size_t tag = pos_;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        data_to_end();
        return;
      }
      const char c = source_[tag + 1];
      if (c == '{' || c == '%' || c == '#') break;
      ++tag;
    }
    const char kind = source_[tag + 1];
    const auto text = std::string_view(source_).substr(pos_, tag - pos_);
    const char after = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    const Sign sign = after == '-' ? Sign::minus : after == '+' ? Sign::plus : Sign::none;
    data(text, sign, kind != '{');
    advance(tag - pos_);
    if (kind == '%') {
      if (const auto raw = raw_tag(pos_, "raw")) {
        raw_block(*raw);
        return;
      }
    }
    advance(2);
    take_sign();
    if (kind == '#') {
      comment();
    } else if (kind == '{') {
      push(JinjaTokenKind::variable_begin, "{{");
      inside("}}", JinjaTokenKind::variable_end);
    } else {
      push(JinjaTokenKind::block_begin, "{%");
      inside("%}", JinjaTokenKind::block_end);
    }
  }

  void data_to_end() {
    push(JinjaTokenKind::data, std::string(rest()));
    advance(rest().size());
  }

  void comment() {
    const int begin = line_;
    const std::size_t close = source_.find("#}", pos_);
    if (close == std::string::npos) {
      fail_jinja(ErrorCode::malformed, begin, "#} after {#", "the end of the template");
    }
    const bool sign = close > pos_ && (source_[close - 1] == '-' || source_[close - 1] == '+');
    advance(close - pos_ - (sign ? 1 : 0));
    take_end("#}", true);
  }

  void raw_block(std::size_t open) {
    const int begin = line_;
    advance(open);
    take_end("%}", false);
    std::size_t close = pos_;
    std::optional<std::size_t> length;
    while ((close = source_.find("{%", close)) != std::string::npos) {
      length = raw_tag(close, "endraw");
      if (length) break;
      ++close;
    }
    if (!length) {
      fail_jinja(ErrorCode::malformed, begin, "{% endraw %} after {% raw %}",
                 "the end of the template");
    }
    const char after = source_[close + 2];
    data(std::string_view(source_).substr(pos_, close - pos_),
         after == '-'   ? Sign::minus
         : after == '+' ? Sign::plus
                        : Sign::none,
         true);
    advance(close - pos_ + *length);
    take_end("%}", true);
  }

  void inside(std::string_view close, JinjaTokenKind end_kind) {
    std::string open;  // brackets that are not closed yet
    while (true) {
      if (open.empty()) {
        const int line = line_;
        if (take_end(close, end_kind == JinjaTokenKind::block_end)) {
          tokens_.push_back({end_kind, line, std::string(close), 0, 0});
          return;
        }
      }
      if (pos_ >= source_.size()) fail(std::string(close), "the end of the template");
      if (trim_start(rest()).size() != rest().size()) {
        skip_space();
      } else if (is_digit(source_[pos_])) {
        number();
      } else if (is_word_start(source_[pos_])) {
        std::size_t n = 1;
        while (n < rest().size() && (is_word_start(rest()[n]) || is_digit(rest()[n]))) ++n;
        push(JinjaTokenKind::word, std::string(rest().substr(0, n)));
        advance(n);
      } else if (at("'") || at("\"")) {
        text();
      } else {
        op(open);
      }
    }
  }

  void op(std::string& open) {
    constexpr std::array<std::string_view, 26> kOps = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    const auto found = std::ranges::find_if(kOps, [&](std::string_view o) { return at(o); });
    if (found == kOps.end()) fail("an expression", quote(rest().substr(0, 1)));
    const char c = found->front();
    if (c == '(' || c == '[' || c == '{') {
      open += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) {
        fail(open.empty() ? "no closing bracket" : quote(open.substr(open.size() - 1)),
             quote(*found));
      }
      open.pop_back();
    }
    push(JinjaTokenKind::op, std::string(*found));
    advance(found->size());
  }

  // Appends digits to `out`, skipping single underscores between them; returns the bytes read.
  template <class IsDigit>
  std::size_t digits(std::size_t from, std::string& out, IsDigit is) const {
    std::size_t n = from;
    while (n < rest().size() && (is(rest()[n]) || (rest()[n] == '_' && n + 1 < rest().size() &&
                                                   is(rest()[n + 1]) && n > from))) {
      if (rest()[n] != '_') out += rest()[n];
      ++n;
    }
    return n - from;
  }

  void number() {
    JinjaToken t{JinjaTokenKind::integer, line_, "", 0, 0};
    std::string clean;
    std::size_t n = 0;
    int base = 10;
    const char letter =
        rest().size() > 2 && rest()[0] == '0' ? static_cast<char>(rest()[1] | 0x20) : ' ';
    if (letter == 'x' || letter == 'o' || letter == 'b') {
      base = letter == 'x' ? 16 : letter == 'o' ? 8 : 2;
      n = 2 + digits(2, clean, [&](char c) {
            const int v = is_digit(c)            ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : 99;
            return v < base;
          });
    } else {
      n = digits(0, clean, is_digit);
      const auto peek = [&](std::size_t i) { return i < rest().size() ? rest()[i] : ' '; };
      if (peek(n) == '.' && is_digit(peek(n + 1))) {
        t.kind = JinjaTokenKind::real;
        clean += '.';
        n += 1 + digits(n + 1, clean, is_digit);
      }
      if ((peek(n) | 0x20) == 'e') {
        const std::size_t sign = peek(n + 1) == '+' || peek(n + 1) == '-' ? 1 : 0;
        if (is_digit(peek(n + 1 + sign))) {
          t.kind = JinjaTokenKind::real;
          clean += 'e';
          if (sign == 1 && peek(n + 1) == '-') clean += '-';
          n += 1 + sign;
          n += digits(n, clean, is_digit);
        }
      }
    }
    t.text = std::string(rest().substr(0, n));
    const char* const end = clean.data() + clean.size();
    const auto r = t.kind == JinjaTokenKind::real
                       ? std::from_chars(clean.data(), end, t.real)
                       : std::from_chars(clean.data(), end, t.integer, base);
    if (r.ec != std::errc() || r.ptr != end) fail("a number in 64 bits", quote(t.text));
    tokens_.push_back(std::move(t));
    advance(n);
  }

  void text() {
    const char mark = source_[pos_];
    std::size_t end = pos_ + 1;
    while (end < source_.size() && source_[end] != mark) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail("the end of the string", quote(rest().substr(0, 20)));
    const auto body = std::string_view(source_).substr(pos_ + 1, end - pos_ - 1);
    auto value = unescape(body);
    if (!value) fail("a string with valid escapes", quote(body));
    push(JinjaTokenKind::text, *std::move(value));
    advance(end + 1 - pos_);
  }

  std::string source_;
  std::size_t pos_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<JinjaToken> tokens_;
};

}  // namespace

std::vector<JinjaToken> lex_jinja(std::string_view source) { return Lexer(source).run(); }

}  // namespace lathe
