// The parts of JSON as rules of an automaton.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "server/grammar/automaton.h"

namespace lathe::grammar {

/// White space between tokens is bounded, or a model that prefers newlines would never end.
inline constexpr int kMostSpace = 32;
/// Most digits of an integer, and of a number before the decimal point. The fraction has at most 20
/// and the exponent 2, so every number is finite and fits a double.
inline constexpr int kMostDigits = 19;
inline constexpr std::uint64_t kLargestInteger = 9'999'999'999'999'999'999u;

/// A JSON integer: magnitude and sign.
struct Integer {
  bool negative = false;
  std::uint64_t size = 0;
};

/// Adds rules to a builder on first use. Functions that take a state add text after it and return
/// the state at its end.
class JsonRules {
 public:
  explicit JsonRules(Builder& b) : b_(b) {}

  State space(State from);  // none to kMostSpace bytes
  State comma(State from);  // with space on both sides
  State literal(State from, const nlohmann::ordered_json& value);
  /// The shortest spelling of a value that is no list and no object.
  static std::string scalar(const nlohmann::ordered_json& value);
  Rule value();
  Rule object();
  Rule array();
  Rule string();
  /// A string of `least` to `most` characters; -1: no bound.
  Rule string(std::int64_t least, std::int64_t most);
  Rule number();
  /// From `least` to `most`; absent: bounded by kMostDigits alone.
  Rule integer(std::optional<Integer> least, std::optional<Integer> most);
  /// Any property name but these, in its shortest spelling.
  Rule name_except(const std::vector<std::string>& names);

 private:
  struct Shared {
    std::optional<Rule> space, value, object, array, string, number;
  };
  void add_digits(State from, std::uint64_t least, std::uint64_t most, State to);
  void add_digits_of(State from, std::string_view least, std::string_view most, State to);

  Builder& b_;
  Shared shared_;
};

}  // namespace lathe::grammar
