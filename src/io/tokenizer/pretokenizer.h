// Splits text into pieces; byte pairs are merged within a piece.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/enum.h"
#include "io/tokenizer/regex.h"

namespace lathe {

// How to treat a match; names as in tokenizer.json.
#define LATHE_SPLIT_BEHAVIORS(X) \
  X(Removed) X(Isolated) X(MergedWithPrevious) X(MergedWithNext) X(Contiguous)
LATHE_ENUM(SplitBehavior, LATHE_SPLIT_BEHAVIORS)

/// Applies each step to every piece of the step before as if it were a whole text: lookaround does
/// not see adjacent pieces.
class PreTokenizer {
 public:
  struct Step {
    std::string space = {};      // replaces every space; empty: none
    std::string prefix = {};     // put before a piece that does not begin with it
    bool first_only = false;     // ... only before a piece at the start of the text
    std::optional<Regex> regex;  // none: no split
    SplitBehavior behavior = SplitBehavior::Isolated;
    bool invert = false;  // the text between matches counts as the match
  };
  using Emit = std::function<void(std::string_view piece)>;
  using Matches = std::vector<Regex::Match>;  // [steps]; one per thread

  PreTokenizer() = default;  // the whole text is one piece
  explicit PreTokenizer(std::vector<Step> steps) : steps_(std::move(steps)) {}

  Matches make_matches() const { return Matches(steps_.size()); }

  /// Calls `emit` for each piece in order; pieces are not empty and valid only during the call.
  /// `text` is valid UTF-8; `first`: it begins the whole text. Pieces are passed on one at a time,
  /// so memory does not grow with their number.
  void split(std::string_view text, bool first, Matches& matches, const Emit& emit) const {
    run(0, text, first, matches, emit);
  }

 private:
  void run(std::size_t step, std::string_view text, bool first, Matches& matches,
           const Emit& emit) const;

  std::vector<Step> steps_;
};

}  // namespace lathe
