// Readers of field values: each makes a Field's `takes` (the accepted values in words) and `read`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "server/openai/fields.h"

namespace lathe {

/// A value as shown in messages, at most some 60 bytes.
std::string excerpt(const nlohmann::ordered_json& value);
ApiError wrong_value(const FieldContext& at, std::string wanted,
                     const nlohmann::ordered_json& value, std::string hint = "");

/// An integer, as such or as 1.0. nullopt: not an integer, or out of range.
std::optional<std::int64_t> integer_of(const nlohmann::ordered_json& value, std::int64_t least,
                                       std::int64_t most);

/// What an error names as wanted of an integer: with both ends, where the value is beyond an end
/// that `integer()`'s `takes` leaves out.
std::string wanted_integer(const nlohmann::ordered_json& value, std::int64_t least,
                           std::int64_t most);

struct Reader {
  std::string takes;
  FieldRead read;
};

struct NumberRange {
  double least;
  double most;
  bool open = false;  // excludes least
};
Reader number(NumberRange range, std::function<void(ApiRequest&, float)> set);
Reader integer(std::int64_t least, std::int64_t most,
               std::function<void(ApiRequest&, std::int64_t)> set);
Reader boolean(std::function<void(ApiRequest&, bool)> set);
/// `empty`: "" is allowed, too.
Reader string(std::size_t most_bytes, std::function<void(ApiRequest&, std::string)> set,
              bool empty = true);
Reader token_ids(std::function<void(ApiRequest&, std::vector<std::int32_t>)> set);
/// A string or a list of them.
Reader strings(std::size_t most, std::size_t most_bytes, bool empty_ones,
               std::function<void(ApiRequest&, std::vector<std::string>)> set);
/// Any value; it is not read.
Reader unread();
/// Accepts only empty values: false, 0, "", [], {}. Others are 400 unsupported_field.
Reader unsupported(std::string why);

}  // namespace lathe
