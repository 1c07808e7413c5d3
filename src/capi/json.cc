#include "capi/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/json.h"
#include "io/text/json_text.h"

namespace lathe::capi {
namespace {

Error wrong(const std::string& key, std::string wanted, const Json& value) {
  return {ErrorCode::invalid_argument, key, std::move(wanted), json_excerpt(value), ""};
}

}  // namespace

Result<Json> parse_object(std::string_view text, const std::string& argument) {
  auto parsed = parse_json(text, argument);
  if (!parsed) return parsed.error();
  if (!parsed->is_object()) return wrong(argument, "a JSON object", *parsed);
  return parsed;
}

Result<Json> parse_list(std::string_view text, const std::string& argument) {
  auto parsed = parse_json(text, argument);
  if (!parsed) return parsed.error();
  if (!parsed->is_array()) return wrong(argument, "a JSON list", *parsed);
  return parsed;
}

Result<void> set_string(const std::string& key, const Json& value, std::string& to) {
  if (!value.is_string()) return wrong(key, "a string", value);
  to = value.get<std::string>();
  return {};
}

Result<void> set_bool(const std::string& key, const Json& value, bool& to) {
  if (!value.is_boolean()) return wrong(key, "true or false", value);
  to = value.get<bool>();
  return {};
}

Result<void> set_int(const std::string& key, const Json& value, std::int32_t& to) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  // An unsigned number beyond int64 would become negative.
  const bool fits = value.is_number_unsigned()
                        ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(kMost)
                        : value.is_number_integer() && value.get<std::int64_t>() >= -kMost;
  if (!fits) return wrong(key, fmt::format("an integer from {} to {}", -kMost, kMost), value);
  to = value.get<std::int32_t>();
  return {};
}

Result<void> set_seed(const std::string& key, const Json& value, std::uint64_t& to) {
  if (!value.is_number_unsigned()) return wrong(key, "an integer from 0 to 2^64 - 1", value);
  to = value.get<std::uint64_t>();
  return {};
}

Result<void> set_float(const std::string& key, const Json& value, float& to) {
  if (!value.is_number()) return wrong(key, "a number", value);
  to = value.get<float>();
  return {};
}

Result<void> set_strings(const std::string& key, const Json& value, std::vector<std::string>& to) {
  const Json list = value.is_string() ? Json::array({value}) : value;
  if (!list.is_array() || !std::ranges::all_of(list, [](const Json& s) { return s.is_string(); })) {
    return wrong(key, "a string or a list of strings", value);
  }
  to = list.get<std::vector<std::string>>();
  return {};
}

Result<void> set_ints(const std::string& key, const Json& value, std::vector<std::int32_t>& to) {
  if (!value.is_array()) return wrong(key, "a list of integers", value);
  std::vector<std::int32_t> out;
  for (const Json& number : value) {
    std::int32_t next = 0;
    if (auto ok = set_int(fmt::format("{}[{}]", key, out.size()), number, next); !ok) return ok;
    out.push_back(next);
  }
  to = std::move(out);
  return {};
}

Error in_json(Error error) {
  for (std::string* text : {&error.field, &error.hint}) {
    if (!text->starts_with("--")) continue;
    text->erase(0, 2);
    const auto end = std::ranges::find(*text, ' ');
    std::replace(text->begin(), end, '-', '_');
  }
  return error;
}

}  // namespace lathe::capi
