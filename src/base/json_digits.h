// JSON whose numbers keep their digits, for values that are only passed on.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace lathe {

/// read_json(), except that a number with a fraction or an exponent, or beyond 64 bits, becomes a
/// binary value with its digits, which a double might not hold.
nlohmann::ordered_json read_json_digits(std::string_view text);

/// The digits that such a value holds; nullopt: another value.
std::optional<std::string> digits_of(const nlohmann::ordered_json& value);

}  // namespace lathe
