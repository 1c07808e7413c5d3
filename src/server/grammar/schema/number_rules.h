// Numbers within bounds as rules of an automaton.
#pragma once

#include <optional>
#include <vector>

#include "server/grammar/automaton.h"
#include "server/grammar/schema/decimal.h"

namespace lathe::grammar {

/// Most digits of an integer, and of a number before the decimal point, where no bound needs more.
/// The fraction has at most kMostFraction and the exponent 2, so every number is finite and fits a
/// double.
inline constexpr std::size_t kMostDigits = 19;
inline constexpr std::size_t kMostFraction = 20;

/// Which numbers a schema allows.
struct Numbers {
  enum class Kind { any, integer, fraction };  // fraction: no integer

  Kind kind = Kind::any;
  std::optional<Decimal> least, most;
  bool above = false, below = false;  // the bounds themselves are not allowed
  std::vector<Decimal> steps;         // the number is a multiple of each; above 0
  std::vector<Decimal> except;

  /// No number can be allowed, as the bounds show.
  bool none() const;
  /// Every number is allowed.
  bool all() const;
  bool allow(const Decimal& value) const;
  bool operator==(const Numbers&) const = default;
};

/// Multiples are followed by a state for each remainder.
inline constexpr std::uint64_t kMostRemainders = 4096;

/// Whether add_numbers() can follow the steps: their least common multiple, in units of their last
/// decimal place, is at most kMostRemainders.
bool can_follow_steps(const Numbers& numbers);

/// Adds the numbers, without exponents. The steps can be followed.
void add_numbers(Builder& b, State from, const Numbers& numbers, State to);

}  // namespace lathe::grammar
