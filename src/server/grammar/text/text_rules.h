// Texts that several rules hold for, as a deterministic automaton over characters: what a
// nondeterministic one cannot follow, such as two patterns at once, or a pattern and a length.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/grammar/text/regex.h"

namespace lathe::grammar {

struct TextRule {
  const Regex* regex = nullptr;             // its looks included
  RegexMatch match = RegexMatch::anywhere;  // of the regex
  std::vector<std::string> texts = {};      // without a regex: the text is one of them
  bool negated = false;                     // the text is none of these
  bool operator==(const TextRule&) const = default;
};

/// Immutable. All texts, in UTF-8 or not, are sequences of characters here.
class TextDfa {
 public:
  /// Adds the edges that it looks at to `work`. nullopt: an automaton of more than 10,000 states,
  /// or more than 20,000,000 of such edges, some 0.2 s.
  static std::optional<TextDfa> make(std::span<const TextRule> rules, std::int64_t& work);

  bool empty() const { return states_.empty(); }
  bool allows(std::u32string_view text) const;
  /// Adds the texts of `least` to `most` characters (-1: no bound) after `from`; returns the state
  /// at their end.
  State add(Builder& b, State from, std::int64_t least, std::int64_t most, Spelling spelling) const;

 private:
  struct Edge {
    CharSet chars;
    std::uint32_t to;
  };
  struct Node {
    std::vector<Edge> edges;  // no character is on two of them
    bool end = false;
  };
  class Maker;
  void drop_dead_ends();

  std::vector<Node> states_;      // the first is the start; from each some text leads to an end
  std::int64_t longest_way_ = 0;  // the most characters that any state needs to an end
  bool endless_ = false;          // from every state texts of any length lead on
};

}  // namespace lathe::grammar
