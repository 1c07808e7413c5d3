// StopStrings: finds stop strings in text that arrives in pieces. Used where tokens become text;
// the engine itself handles tokens only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

namespace lathe {

/// The match is the stop string that ends first, and the longest one if several end there. So the
/// returned text does not depend on how the input was split. Copies share the strings: a request
/// may have thousands of answers.
class StopStrings {
 public:
  /// Compares bytes; UTF-8 strings match at whole characters. Without strings nothing matches.
  /// Errors: an empty string.
  static Result<StopStrings> create(std::vector<std::string> strings);

  /// Adds the next piece; returns the text that can no longer be part of a stop string. At a
  /// match: the text before it; after a match: nothing. `may_match` false: strings that end in the
  /// piece are text, as a longer answer was asked for. O(piece x strings).
  std::string push(std::string piece, bool may_match = true);
  /// Returns the text held back, at the end of the answer. Nothing after a match.
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
  };
  explicit StopStrings(std::vector<Pattern> patterns)
      : patterns_(std::make_shared<const std::vector<Pattern>>(std::move(patterns))),
        reached_(patterns_->size()) {}

  std::shared_ptr<const std::vector<Pattern>> patterns_;
  std::vector<std::size_t> reached_;  // [patterns] length of the prefix at the end of the input
  std::string held_;                  // the longest possible beginning of a stop string
  int matched_ = -1;
};

}  // namespace lathe
