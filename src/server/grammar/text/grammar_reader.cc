#include "server/grammar/text/grammar_reader.h"

#include <fmt/format.h>

#include "io/text/quote.h"
#include "io/text/utf8.h"

namespace lathe::grammar {

Expression GrammarReader::choice(int depth) {
  Expression out{Expression::Kind::choice};
  out.at = here();
  if (depth > kMostDepth) {
    fail(ErrorCode::unsupported, fmt::format("at most {} nested groups", kMostDepth), "more",
         here());
  }
  do {
    out.parts.push_back(join(depth));
  } while (more() && take(U"|"));
  return out;
}

std::string utf8_of(std::u32string_view text) {
  std::string out;
  for (const char32_t c : text) append_utf8(out, c);
  return out;
}

void GrammarReader::fail(ErrorCode code, std::string wanted, const std::string& got,
                         TextPosition at) {
  if (error_) return;
  error_ = Error{code, path_, std::move(wanted),
                 fmt::format("{} at line {}, column {}", got, at.line, at.column), ""};
}

void GrammarReader::malformed(std::string wanted) {
  fail(ErrorCode::malformed, std::move(wanted), coming(), here_);
}

std::string GrammarReader::coming() const {
  if (at_ >= text_.size()) return "the end";
  constexpr std::size_t kShown = 12;
  std::size_t end = at_;
  while (end < text_.size() && end < at_ + kShown && text_[end] != U'\n') ++end;
  return end == at_ ? "the end of the line" : quote(utf8_of(slice(at_, end)));
}

char32_t GrammarReader::escape() {
  const TextPosition at = here_;
  const auto hex = [&](int digits) {
    char32_t out = 0;
    for (int i = 0; i < digits; ++i) {
      const char32_t c = next();
      const bool upper = c >= U'A' && c <= U'F', lower = c >= U'a' && c <= U'f';
      if (!upper && !lower && (c < U'0' || c > U'9')) {
        fail(ErrorCode::malformed, fmt::format("{} hexadecimal digits", digits), "others", at);
        return char32_t{0};
      }
      out = out * 16 + (upper ? c - U'A' + 10 : lower ? c - U'a' + 10 : c - U'0');
    }
    return out;
  };
  if (!more()) malformed("a character after \\");
  char32_t c = next();
  switch (c) {
    case U'n':
      return U'\n';
    case U't':
      return U'\t';
    case U'r':
      return U'\r';
    case U'f':
      return U'\f';
    case U'v':
      return U'\v';
    case U'b':
      return U'\b';
    case U'0':
      return U'\0';
    case U'x':
      c = hex(2);
      break;
    case U'u':
      c = hex(4);
      break;
    case U'U':
      c = hex(8);
      break;
    default:
      return c;
  }
  if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) {
    fail(ErrorCode::malformed, "a character's number", "another", at);
    return 0;
  }
  return c;
}

std::u32string GrammarReader::quoted() {
  std::u32string out;
  const TextPosition at = here_;
  next();
  while (more() && peek() != U'"' && peek() != U'\n') {
    const char32_t c = next();
    out += c == U'\\' ? escape() : c;
  }
  if (!error_ && !take(U"\"")) fail(ErrorCode::malformed, "a \" for each \"", "one without", at);
  return out;
}

std::optional<std::int64_t> GrammarReader::number() {
  if (peek() < U'0' || peek() > U'9') return std::nullopt;
  std::int64_t n = 0;
  while (peek() >= U'0' && peek() <= U'9') {
    n = std::min<std::int64_t>(n * 10 + static_cast<std::int64_t>(next() - U'0'), kMostRepeats + 1);
  }
  return n;
}

Expression GrammarReader::repeat(Expression what, std::int64_t least, std::int64_t most,
                                 TextPosition at) {
  if (least > kMostRepeats || most > kMostRepeats) {
    fail(ErrorCode::unsupported, fmt::format("at most {} repeats", kMostRepeats), "more", at);
  } else if (most >= 0 && most < least) {
    fail(ErrorCode::malformed, "the smaller number first", "the larger one", at);
  }
  Expression out{Expression::Kind::repeat};
  out.parts.push_back(std::move(what));
  out.least = least;
  out.most = most;
  out.at = at;
  return out;
}

Expression GrammarReader::chars_of(CharSet chars, TextPosition at) {
  Expression out{Expression::Kind::regex};
  out.regex.kind = Regex::Kind::character;
  out.regex.chars = std::move(chars);
  out.at = at;
  return out;
}

Expression GrammarReader::text_of(const std::u32string& text, TextPosition at) {
  Expression out{Expression::Kind::regex};
  out.regex.kind = Regex::Kind::join;
  out.at = at;
  for (const char32_t c : text) {
    out.regex.parts.push_back(chars_of({{c, c}}, at).regex);
  }
  return out;
}

Expression GrammarReader::regex_of(const std::string& pattern, TextPosition at) {
  auto regex = parse_regex(pattern, path_);
  Expression out{Expression::Kind::regex};
  out.at = at;
  if (!regex) {
    fail(regex.error().code, regex.error().wanted, regex.error().offered + " of the expression",
         at);
  } else if (!regex->looks.empty()) {
    unsupported("look-around", at);
  } else {
    out.regex = std::move(*regex);
  }
  return out;
}

Expression GrammarReader::rule_of(std::string name, TextPosition at) {
  Expression out{Expression::Kind::rule};
  out.name = std::move(name);
  out.at = at;
  return out;
}

Result<GrammarText> parse_grammar(std::string_view text, const std::string& path) {
  return text.find("::=") != std::string_view::npos ? parse_ebnf(text, path)
                                                    : parse_lark(text, path);
}

}  // namespace lathe::grammar
