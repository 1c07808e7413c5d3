#include "server/grammar/schema/number_multiples.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace lathe::grammar {
namespace {

constexpr std::size_t kMostUnitDigits = 18;
constexpr std::int64_t kMostUnits = 999'999'999'999'999;  // 15 digits

// A number in units of 10^-places, rounded towards 0. nullopt: too many digits.
std::optional<std::int64_t> units_of(const Decimal& value, std::size_t places) {
  std::string digits = value.whole + value.fraction.substr(0, places);
  digits.append(places - std::min(places, value.fraction.size()), '0');
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  if (digits.size() > kMostUnitDigits) return std::nullopt;
  const std::int64_t size = digits.empty() ? 0 : std::stoll(digits);
  return value.negative ? -size : size;
}

std::string text_of(std::int64_t units, std::size_t places) {
  std::string digits = std::to_string(units < 0 ? -units : units);
  if (digits.size() <= places) digits.insert(0, places + 1 - digits.size(), '0');
  std::string fraction = digits.substr(digits.size() - places);
  digits.resize(digits.size() - places);
  while (!fraction.empty() && fraction.back() == '0') fraction.pop_back();
  return (units < 0 ? "-" : "") + digits + (fraction.empty() ? "" : "." + fraction);
}

}  // namespace

std::optional<std::vector<std::string>> multiples_of(const Numbers& numbers) {
  std::size_t places = 0;
  for (const Decimal& s : numbers.steps) places = std::max(places, s.fraction.size());
  std::int64_t step = 1;
  for (const Decimal& s : numbers.steps) {
    const auto units = units_of(s, places);
    if (!units || *units <= 0) return std::nullopt;
    const std::int64_t more = *units / std::gcd(step, *units);
    if (step > kMostUnits / more) return std::nullopt;
    step *= more;
  }
  if (numbers.kind == Numbers::Kind::integer) {  // a step of integers with the same multiples
    std::int64_t one = 1;
    for (; places > 0 && one <= kMostUnits; --places) one *= 10;
    if (places > 0) return std::nullopt;
    step /= std::gcd(one, step);
  }
  // The multiples of the step with the smallest magnitudes, of each sign.
  std::vector<std::int64_t> found;
  for (const std::int64_t sign : {1, -1}) {
    const std::optional<Decimal>& near = sign > 0 ? numbers.least : numbers.most;
    std::int64_t k = sign > 0 ? 0 : 1;
    if (near && near->negative == (sign < 0) && !near->is_zero()) {
      const auto units = units_of(near->magnitude(), places);
      if (!units) return std::nullopt;
      k = std::max(k, *units / step);
    }
    // Bounds leave out the first one or two at most.
    for (std::size_t i = 0; i < kMostMultiples && k <= kMostUnits / step; ++i, ++k) {
      const auto value = parse_decimal(text_of(sign * k * step, places));
      if (value && numbers.allow(*value)) found.push_back(sign * k * step);
    }
  }
  std::sort(found.begin(), found.end(), [](std::int64_t a, std::int64_t b) {
    return std::pair(std::abs(a), a) < std::pair(std::abs(b), b);
  });
  if (found.size() > kMostMultiples) found.resize(kMostMultiples);
  std::vector<std::string> out;
  for (const std::int64_t units : found) out.push_back(text_of(units, places));
  return out;
}

}  // namespace lathe::grammar
