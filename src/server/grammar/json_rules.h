// The parts of JSON as rules of an automaton.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "server/grammar/automaton.h"

namespace lathe::grammar {

/// White space between tokens is bounded: a model that likes newlines best would never end.
inline constexpr int kMostSpace = 32;
/// Digits of an integer, and of the part of a number before the point. The part behind it has at
/// most 20, an exponent 2; so each number fits a double, and none is endless.
inline constexpr int kMostDigits = 19;
inline constexpr std::uint64_t kLargestInteger = 9'999'999'999'999'999'999u;

/// An integer of JSON: its size and whether it is negative.
struct Integer {
  bool negative = false;
  std::uint64_t size = 0;
};

/// Adds rules to a builder when they are first asked for. Functions that take a state add texts
/// that begin there and return the state where they end.
class JsonRules {
 public:
  explicit JsonRules(Builder& b) : b_(b) {}

  State space(State from);  // none to kMostSpace bytes
  State comma(State from);  // with space on both sides
  State literal(State from, const nlohmann::ordered_json& value);
  Rule value();
  Rule object();
  Rule array();
  Rule string();
  /// Characters between `least` and `most`; -1: no bound.
  Rule string(std::int64_t least, std::int64_t most);
  Rule number();
  /// From `least` to `most`; absent: as far as digits go.
  Rule integer(std::optional<Integer> least, std::optional<Integer> most);
  /// Any name of an object, in its shortest spelling, but these.
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
