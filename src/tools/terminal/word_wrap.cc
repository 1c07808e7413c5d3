#include "tools/terminal/word_wrap.h"

#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#include <algorithm>

#include "io/text/utf8.h"

namespace lathe {
namespace {

int columns_of(std::string_view text) {
  int sum = 0;
  while (!text.empty()) {
    const Utf8Char c = utf8_front(text);
    text.remove_prefix(static_cast<std::size_t>(std::max(c.size, 1)));
    sum += std::max(0, c.valid ? wcwidth(static_cast<wchar_t>(c.code)) : 1);
  }
  return sum;
}

}  // namespace

void WordWrap::end_word(std::string& out) {
  const int columns = columns_of(word_);
  if (columns > 0 && column_ > 0 && column_ + spaces_ + columns > width_) {
    out += '\n';
    column_ = 0;
  } else {
    out.append(static_cast<std::size_t>(spaces_), ' ');
    column_ += spaces_;
  }
  out += word_;
  column_ += columns;
  spaces_ = 0;
  word_.clear();
}

std::string WordWrap::push(std::string_view piece) {
  if (width_ <= 0) return std::string(piece);
  constexpr std::size_t kIndent = 4;
  std::string out;
  for (const char c : piece) {
    if (c == '\n') {
      if (!verbatim_) end_word(out);
      if (line_.starts_with("```")) fenced_ = !fenced_;
      out += c;
      column_ = 0;
      line_.clear();
      verbatim_ = fenced_;
      continue;
    }
    if (line_.size() < kIndent) {
      line_ += c;
      const bool as_it_is =
          line_ == "    " || line_[0] == '\t' || line_[0] == '|' || line_ == "```";
      if (as_it_is && !verbatim_) {
        end_word(out);
        verbatim_ = true;
        out += c;
        continue;
      }
    }
    if (verbatim_) {
      out += c;
    } else if (c == ' ') {
      if (!word_.empty()) end_word(out);
      ++spaces_;
    } else {
      word_ += c;
      // Han, kana and Hangul break anywhere; emoji, which are as wide, join into sequences.
      constexpr char32_t kPictures = 0x1f000;
      const Utf8Char last = utf8_back(word_);
      const bool wide = last.size > 1 && wcwidth(static_cast<wchar_t>(last.code)) == 2;
      if (wide && last.code < kPictures) end_word(out);
    }
  }
  return out;
}

std::string WordWrap::finish() {
  std::string out;
  if (!verbatim_) end_word(out);
  *this = WordWrap(width_);
  return out;
}

int stdout_columns() {
  struct winsize size = {};
  if (isatty(STDOUT_FILENO) == 0 || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col;
}

}  // namespace lathe
