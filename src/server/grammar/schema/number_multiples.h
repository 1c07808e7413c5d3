// Multiples of a step that has too many remainders for an automaton: as a list.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/grammar/schema/number_rules.h"

namespace lathe::grammar {

/// The numbers nearest to 0, at most kMostMultiples, of at most 15 digits, so that a double keeps
/// them. nullopt: a step, their least common multiple or a bound needs more than 18 digits.
std::optional<std::vector<std::string>> multiples_of(const Numbers& numbers);

inline constexpr std::size_t kMostMultiples = 1000;

}  // namespace lathe::grammar
