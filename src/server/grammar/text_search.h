// Texts up to a mark, as a part of an automaton.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/grammar/automaton.h"

namespace lathe::grammar {

struct UntilOptions {
  // The state after a text without the mark.
  std::optional<State> stop = std::nullopt;
  // Texts that do not occur.
  std::vector<std::string> avoided = {};
  // Bytes that the text does not begin with.
  std::string not_first = {};
};

/// Adds any text that ends with its first occurrence of `mark`, and returns the state at its end.
/// An empty mark never occurs.
State add_until(Builder& b, State from, std::string_view mark, const UntilOptions& options = {});

}  // namespace lathe::grammar
