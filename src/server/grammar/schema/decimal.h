// Decimal: a number of any size, as JSON writes it.
#pragma once

#include <compare>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace lathe::grammar {

struct Decimal {
  bool negative = false;  // never of zero
  std::string whole;      // digits before the point, without leading zeros; empty: 0
  std::string fraction;   // digits after it, without trailing zeros

  bool is_zero() const { return whole.empty() && fraction.empty(); }
  bool is_integer() const { return fraction.empty(); }
  Decimal magnitude() const { return {false, whole, fraction}; }
  std::strong_ordering operator<=>(const Decimal& other) const;
  bool operator==(const Decimal&) const = default;
};

/// More digits than any double needs. Longer numbers are not read.
inline constexpr std::size_t kMostDecimalDigits = 800;

/// The value of a number in JSON's spelling. nullopt: it is none, or needs more than
/// kMostDecimalDigits.
std::optional<Decimal> parse_decimal(std::string_view text);
/// The value of a JSON number: the digits that it keeps (base/json_digits.h), or of a double the
/// shortest decimal that reads as it.
std::optional<Decimal> decimal_of(const nlohmann::ordered_json& number);

}  // namespace lathe::grammar
