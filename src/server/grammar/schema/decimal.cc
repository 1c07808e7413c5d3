#include "server/grammar/schema/decimal.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/json_digits.h"

namespace lathe::grammar {

std::strong_ordering Decimal::operator<=>(const Decimal& other) const {
  if (negative != other.negative) {
    return negative ? std::strong_ordering::less : std::strong_ordering::greater;
  }
  std::strong_ordering out = whole.size() <=> other.whole.size();
  if (out == 0) out = whole <=> other.whole;
  // Digits after the point compare as texts: a prefix is the smaller number.
  if (out == 0) out = fraction <=> other.fraction;
  return negative ? 0 <=> out : out;
}

std::optional<Decimal> parse_decimal(std::string_view text) {
  Decimal out;
  if (text.starts_with('-')) {
    out.negative = true;
    text.remove_prefix(1);
  }
  std::int64_t exponent = 0;
  if (const std::size_t e = text.find_first_of("eE"); e != std::string_view::npos) {
    std::string_view digits = text.substr(e + 1);
    if (digits.starts_with('+')) digits.remove_prefix(1);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), exponent);
    if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
    text = text.substr(0, e);
  }
  const std::size_t point = std::min(text.find('.'), text.size());
  std::string digits(text.substr(0, point));
  if (point < text.size()) digits += text.substr(point + 1);
  const bool right = !digits.empty() && digits.find_first_not_of("0123456789") == std::string::npos;
  const auto most = static_cast<std::int64_t>(kMostDecimalDigits);
  if (!right || std::ssize(digits) > most || exponent > most || exponent < -most) {
    return std::nullopt;
  }
  // Digits before the point.
  const std::int64_t before = static_cast<std::int64_t>(point) + exponent;
  if (before < 0) digits.insert(0, static_cast<std::size_t>(-before), '0');
  if (before > std::ssize(digits)) digits.resize(static_cast<std::size_t>(before), '0');
  const auto split = static_cast<std::size_t>(std::max<std::int64_t>(before, 0));
  out.whole = digits.substr(0, split);
  out.fraction = digits.substr(split);
  out.whole.erase(0, std::min(out.whole.find_first_not_of('0'), out.whole.size()));
  out.fraction.resize(out.fraction.find_last_not_of('0') + 1);  // npos + 1 is 0
  if (out.is_zero()) out.negative = false;
  if (out.whole.size() + out.fraction.size() > kMostDecimalDigits) return std::nullopt;
  return out;
}

std::optional<Decimal> decimal_of(const nlohmann::ordered_json& number) {
  if (!is_json_number(number)) return std::nullopt;
  return parse_decimal(json_text(number));
}

}  // namespace lathe::grammar
