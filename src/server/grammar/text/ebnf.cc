// EBNF as llama.cpp and xgrammar read it:
//
//   root ::= "(" item ("," item)* ")"   # a comment
//   item ::= [a-z]+ | root | "x"{2,3}
#include <fmt/format.h>

#include <utility>

#include "server/grammar/text/grammar_reader.h"

namespace lathe::grammar {

class EbnfReader : GrammarReader {
 public:
  using GrammarReader::GrammarReader;

  Result<GrammarText> read(const std::string& path) {
    out_.path = path;
    out_.start = "root";
    space();
    while (more()) {
      const TextPosition at = here();
      const std::string own = name();
      space();
      if (own.empty()) malformed("a rule's name");
      if (!error_ && !take(U"::=")) malformed("::=");
      Expression body = choice(0);
      if (more() && !starts_rule()) malformed("a rule, or a part of one");
      out_.rules.push_back({own, std::move(body), at});
    }
    if (error_) return *error_;
    return std::move(out_);
  }

 private:
  static bool is_name(char32_t c) {
    return (c >= U'a' && c <= U'z') || (c >= U'A' && c <= U'Z') || (c >= U'0' && c <= U'9') ||
           c == U'_' || c == U'-' || c == U'.';
  }
  void space() {
    while (more()) {
      if (peek() == U'#') {
        while (more() && peek() != U'\n') next();
      } else if (peek() == U' ' || peek() == U'\t' || peek() == U'\n' || peek() == U'\r') {
        next();
      } else {
        return;
      }
    }
  }
  std::string name() {
    std::u32string out;
    // A lone . is any character.
    while (is_name(peek()) && (peek() != U'.' || !out.empty())) out += next();
    return utf8_of(out);
  }
  bool starts_rule() {
    const std::size_t begin = offset();
    const TextPosition at = here();
    const bool named = !name().empty();
    space();
    const bool out = named && sees(U"::=");
    go_back(begin, at);
    return out;
  }

  Expression join(int depth) override {
    Expression out;
    out.at = here();
    for (space(); more() && peek() != U'|' && peek() != U')' && !starts_rule(); space()) {
      out.parts.push_back(repeated(atom(depth)));
    }
    return out;
  }

  Expression repeated(Expression what) {
    for (;;) {
      const TextPosition at = here();
      if (take(U"*")) {
        what = repeat(std::move(what), 0, -1, at);
      } else if (take(U"+")) {
        what = repeat(std::move(what), 1, -1, at);
      } else if (take(U"?")) {
        what = repeat(std::move(what), 0, 1, at);
      } else if (take(U"{")) {
        space();
        const auto least = number();
        space();
        auto most = least;
        if (take(U",")) {
          space();
          most = number();
          space();
        }
        if (!least || !take(U"}")) malformed("{least,most}");
        what = repeat(std::move(what), least.value_or(0), most.value_or(-1), at);
      } else {
        return what;
      }
    }
  }

  Expression atom(int depth) {
    const TextPosition at = here();
    if (peek() == U'"') return text_of(quoted(), at);
    if (peek() == U'[') return char_class();
    if (peek() == U'/') {
      next();
      unsupported("/", at);
      return {};
    }
    if (take(U"(")) {
      if (peek() == U'=' || peek() == U'!') unsupported("a look-ahead", at);
      Expression out = choice(depth + 1);
      if (!error_ && !take(U")")) malformed("a ) for each (");
      return out;
    }
    std::string own = name();
    if (own.empty() && take(U".")) return chars_of(CharSet::all(), at);
    if (own.empty()) malformed("a name, a text, a class or a group");
    space();
    if (peek() == U'(' && own == "TagDispatch") unsupported("TagDispatch", at);
    return rule_of(std::move(own), at);
  }

  Expression char_class() {
    const TextPosition at = here();
    next();
    const bool negated = take(U"^");
    CharSet out;
    const auto member = [&] {
      const char32_t c = next();
      return c == U'\\' ? escape() : c;
    };
    while (more() && peek() != U']' && peek() != U'\n') {
      const char32_t first = member();
      char32_t last = first;
      if (peek() == U'-' && peek(1) != U']' && peek(1) != U'\n' && peek(1) != 0) {
        next();
        last = member();
      }
      if (last < first) fail(ErrorCode::malformed, "an ascending range", "a descending one", at);
      out = out | CharSet{{first, last}};
    }
    if (!error_ && !take(U"]")) fail(ErrorCode::malformed, "a ] for each [", "one without", at);
    return chars_of(negated ? ~out : out, at);
  }
};

Result<GrammarText> parse_ebnf(std::string_view text, const std::string& path) {
  return EbnfReader(text, path).read(path);
}

}  // namespace lathe::grammar
