// Readers of JSON options.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace lathe::capi {

using Json = nlohmann::json;

/// Errors: the text is not a JSON object.
Result<Json> parse_object(std::string_view text, const std::string& argument);
/// Errors: the text is not a JSON list.
Result<Json> parse_list(std::string_view text, const std::string& argument);

// Each sets `to`. Errors: the value of `key` has another type or is out of range.
Result<void> set_string(const std::string& key, const Json& value, std::string& to);
Result<void> set_bool(const std::string& key, const Json& value, bool& to);
Result<void> set_int(const std::string& key, const Json& value, std::int32_t& to);
Result<void> set_seed(const std::string& key, const Json& value, std::uint64_t& to);
Result<void> set_float(const std::string& key, const Json& value, float& to);
/// A string or a list of strings.
Result<void> set_strings(const std::string& key, const Json& value, std::vector<std::string>& to);
Result<void> set_ints(const std::string& key, const Json& value, std::vector<std::int32_t>& to);

/// The error with the flag that its field or its hint begins with ("--kv-layout") spelled as a JSON
/// key ("kv_layout").
Error in_json(Error error);

}  // namespace lathe::capi
