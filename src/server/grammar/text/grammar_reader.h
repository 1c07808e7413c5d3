// GrammarReader: what the readers of EBNF and of Lark's language share.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "server/grammar/text/grammar_text.h"

namespace lathe::grammar {

class GrammarReader {
 public:
  GrammarReader(std::string_view text, const std::string& path)
      : text_(decode_utf8(text)), path_(path) {}
  virtual ~GrammarReader() = default;

 protected:
  static constexpr int kMostDepth = 64;

  bool more() const { return !error_ && at_ < text_.size(); }
  char32_t peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : U'\0';
  }
  bool sees(std::u32string_view what) const {
    return std::u32string_view(text_).substr(at_, what.size()) == what;
  }
  bool take(std::u32string_view what) {
    if (!sees(what)) return false;
    for (std::size_t i = 0; i < what.size(); ++i) next();
    return true;
  }
  char32_t next() {
    const char32_t c = peek();
    if (at_ >= text_.size()) return c;
    ++at_;
    ++here_.column;
    if (c == U'\n') here_ = {here_.line + 1, 1};
    return c;
  }
  std::size_t offset() const { return at_; }
  void go_back(std::size_t offset, TextPosition here) {
    at_ = offset;
    here_ = here;
  }
  TextPosition here() const { return here_; }

  void fail(ErrorCode code, std::string wanted, const std::string& got, TextPosition at);
  void malformed(std::string wanted);  // got: what comes next
  void unsupported(std::string what, TextPosition at) {
    fail(ErrorCode::unsupported, "what docs/server.md lists of grammars", what, at);
  }
  std::string coming() const;

  std::u32string slice(std::size_t begin, std::size_t end) const {
    return text_.substr(begin, end - begin);
  }
  // A text in quotes, with escapes decoded.
  std::u32string quoted();
  // The character of an escape, after its backslash.
  char32_t escape();
  std::optional<std::int64_t> number();
  // The bounds of a repeat, and the expression repeated. Checks their size.
  Expression repeat(Expression what, std::int64_t least, std::int64_t most, TextPosition at);
  // A part of one kind.
  static Expression text_of(const std::u32string& text, TextPosition at);
  static Expression chars_of(CharSet chars, TextPosition at);
  Expression regex_of(const std::string& pattern, TextPosition at);
  static Expression rule_of(std::string name, TextPosition at);
  // Alternatives with | between them, in `depth` groups.
  Expression choice(int depth);
  // Parts one after another, and the space after them.
  virtual Expression join(int depth) = 0;

  std::optional<Error> error_;
  GrammarText out_;

 private:
  std::u32string text_;
  std::string path_;
  std::size_t at_ = 0;
  TextPosition here_;
};

std::string utf8_of(std::u32string_view text);

}  // namespace lathe::grammar
