// Regular expressions as automata: what ECMA-262 and Python's re write alike. `.` is any character
// but line ends, \d and \w are ASCII, \s is ECMA's white space.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "server/grammar/characters.h"

namespace lathe::grammar {

/// A parsed expression.
struct Regex {
  enum class Kind {
    nothing,    // the empty text
    character,  // one of chars
    join,       // parts in a row
    choice,     // one of parts
    repeat,     // parts[0], least to most times
    begin,      // ^
    end,        // $
  };
  static constexpr std::int64_t kNoMost = -1;

  Kind kind = Kind::nothing;
  CharSet chars;
  std::vector<Regex> parts;
  std::int64_t least = 0;
  std::int64_t most = kNoMost;
};

/// `field` names it in errors. Errors: malformed; unsupported: look-around, back references, word
/// boundaries, flags, properties, atomic groups; ^ and $ elsewhere than at the ends of the
/// expression or of its alternatives; a repeat beyond 10,000; more than 64 groups in one another.
Result<Regex> parse_regex(std::string_view pattern, const std::string& field);

enum class RegexMatch {
  whole,     // the text is a match
  anywhere,  // the text has a match
};

/// The texts that match, from `from`; where they end. `regex` is parse_regex()'s.
State add_regex(Builder& b, State from, const Regex& regex, RegexMatch match, Spelling spelling);

}  // namespace lathe::grammar
