// Text that comes in pieces, broken at spaces to the width of a terminal.
#pragma once

#include <string>
#include <string_view>

namespace lathe {

/// Words are held back until they end, because only then is it known whether they fit their line.
/// Lines of code (between lines that begin with ```) and lines that begin with four spaces or a
/// tab, or with |, stay as they are.
class WordWrap {
 public:
  /// width 0: nothing is broken.
  explicit WordWrap(int width) : width_(width) {}

  /// The part of the text so far that can be printed.
  std::string push(std::string_view piece);
  /// The rest.
  std::string finish();

 private:
  void end_word(std::string& out);

  int width_;
  int column_ = 0;
  int spaces_ = 0;  // between the last word and the one that is held
  bool fenced_ = false;
  bool verbatim_ = false;  // the line stays as it is
  std::string word_;
  std::string line_;  // its first characters
};

/// Columns of stdout's terminal; 0 where it is none.
int stdout_columns();

}  // namespace lathe
