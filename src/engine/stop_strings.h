// StopStrings: finds the strings that end an answer in text that comes in pieces. It belongs where
// tokens become text; the engine itself handles tokens only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace lathe {

/// The match is the stop string whose last byte comes first; of several that end there, the
/// longest. So the text that is let through does not depend on how it was cut into pieces.
class StopStrings {
 public:
  /// Bytes are compared; strings in UTF-8 match at whole characters. No strings: nothing matches.
  /// Errors: an empty string.
  static Result<StopStrings> create(std::vector<std::string> strings);

  /// Takes the next piece; returns the text that can no longer be part of a stop string. After a
  /// match: what came before it, and for all further pieces nothing. O(piece x strings).
  std::string push(std::string_view piece);
  /// The answer has ended: returns what was held back. Nothing after a match.
  std::string flush();

  bool matched() const { return matched_ >= 0; }
  /// Index of the string that matched, -1 if none has.
  int match() const { return matched_; }

 private:
  // A string with its failure table (Knuth, Morris, Pratt 1977): border[i] is the length of the
  // longest proper prefix of the first i + 1 bytes that is also their suffix.
  struct Pattern {
    std::string text;
    std::vector<std::size_t> border;
    std::size_t reached = 0;  // bytes of text that the input ends with
  };
  explicit StopStrings(std::vector<Pattern> patterns) : patterns_(std::move(patterns)) {}

  std::vector<Pattern> patterns_;
  std::string held_;  // the longest possible beginning of a stop string
  int matched_ = -1;
};

}  // namespace lathe
