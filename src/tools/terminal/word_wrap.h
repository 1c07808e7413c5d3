// Breaks streamed text at spaces, to the width of a terminal.
#pragma once

#include <string>
#include <string_view>

namespace lathe {

/// A word is held back until it ends, because only then is it known whether it fits its line.
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
  int spaces_ = 0;  // before the word that is held back
  bool fenced_ = false;
  bool verbatim_ = false;  // the line stays as it is
  std::string word_;
  std::string line_;  // its first characters
};

/// Columns of stdout's terminal; 0 if stdout is not one.
int stdout_columns();

}  // namespace lathe
