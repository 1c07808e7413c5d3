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

/// Adds rules to a builder on first use. Functions that take a state add text after it and return
/// the state at its end.
class JsonRules {
 public:
  explicit JsonRules(Builder& b) : b_(b) {}

  State space(State from);  // none to kMostSpace bytes
  State comma(State from);  // with space on both sides
  State literal(State from, const nlohmann::ordered_json& value);
  /// The shortest spelling of a value that is no list and no object.
  std::string scalar(const nlohmann::ordered_json& value) const;
  Rule value();
  Rule object();
  Rule array();
  Rule string();
  /// A string of `least` to `most` characters; -1: no bound.
  Rule string(std::int64_t least, std::int64_t most);
  Rule number();
  Rule integer();
  /// Any property name but these, in its shortest spelling.
  Rule name_except(const std::vector<std::string>& names);

 private:
  struct Shared {
    std::optional<Rule> space, value, object, array, string, number, integer;
  };

  Builder& b_;
  Shared shared_;
};

}  // namespace lathe::grammar
