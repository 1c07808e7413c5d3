// JSON whose numbers keep their digits. They are binary values, which JSON itself does not have;
// json_text() prints them as the numbers that they are.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace lathe {

/// read_json(), except that a number with a fraction or an exponent, or beyond 64 bits, and -0
/// become binary values with their digits.
nlohmann::ordered_json read_json_digits(std::string_view text);

/// read_json(), except that an integer beyond 64 bits, -0, and a number which a double would change
/// become binary values with their digits: 18446744073709551616, and 0.1234567890123456789, but not
/// 0.5.
nlohmann::ordered_json read_json_exact(std::string_view text);

/// The digits that such a value holds; nullopt: another value.
std::optional<std::string> digits_of(const nlohmann::ordered_json& value);

/// Whether it is a number, with digits or without.
bool is_json_number(const nlohmann::ordered_json& value);
/// The nearest double of a number, with digits or without; nullopt: another value.
std::optional<double> double_of(const nlohmann::ordered_json& value);

}  // namespace lathe
