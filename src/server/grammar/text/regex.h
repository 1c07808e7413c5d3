// Regular expressions as automata: the syntax that ECMA-262 and Python's re share. `.` is any
// character but line ends, \d and \w are ASCII, \s is ECMA's white space.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "server/grammar/text/characters.h"

namespace lathe::grammar {

/// Of a part in an expression, or of an item in a schema.
inline constexpr std::int64_t kMostRepeats = 10'000;

/// A parsed expression.
struct Regex {
  enum class Kind {
    nothing,    // the empty text
    character,  // one of chars
    join,       // parts in sequence
    choice,     // one of parts
    repeat,     // parts[0], `least` to `most` times
    begin,      // ^
    end,        // $
  };
  static constexpr std::int64_t kNoMost = -1;

  Kind kind = Kind::nothing;
  CharSet chars;
  std::vector<Regex> parts;
  std::int64_t least = 0;
  std::int64_t most = kNoMost;

  /// Of the whole expression: look-aheads at its beginning. The text also begins with a match of
  /// each, or, if negated, does not.
  struct Look;
  std::vector<Look> looks;
  bool floats = false;  // it has looks, and no ^ before them
};

struct Regex::Look {
  Regex regex;
  bool negated = false;
};

/// `field` names it in errors. Errors: malformed; unsupported: look-around but look-aheads at the
/// beginning, back references, word boundaries, flags, properties, atomic groups; ^ and $ anywhere
/// but at the ends of the expression or of its alternatives; more than 10,000 repeats; more than 64
/// nested groups.
Result<Regex> parse_regex(std::string_view pattern, const std::string& field);

enum class RegexMatch {
  whole,     // the text is a match
  anywhere,  // the text contains a match
};

/// Adds the texts that match the expression, without its looks, after `from`; returns the state at
/// their end. `regex` comes from parse_regex().
State add_regex(Builder& b, State from, const Regex& regex, RegexMatch match, Spelling spelling);

}  // namespace lathe::grammar
