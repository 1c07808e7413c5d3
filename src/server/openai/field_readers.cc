#include "server/openai/field_readers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/json.h"
#include "base/json_digits.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kLargest = std::numeric_limits<float>::max();

std::string range_text(const NumberRange& r) {
  if (r.most >= kLargest) return fmt::format("a number from {} to 3.4e38", r.least);
  return r.open ? fmt::format("a number above {}, to {}", r.least, r.most)
                : fmt::format("a number from {} to {}", r.least, r.most);
}

std::string range_text(std::int64_t least, std::int64_t most) {
  if (most == std::numeric_limits<std::int64_t>::max() ||
      most == std::numeric_limits<std::int32_t>::max()) {
    if (least == std::numeric_limits<std::int64_t>::min()) return "an integer";
    return fmt::format("an integer, {} or more", least);
  }
  return fmt::format("an integer from {} to {}", least, most);
}

}  // namespace

std::string excerpt(const Json& value) {
  if (value.is_array() && value.size() > 8) return fmt::format("a list of {}", value.size());
  if (value.is_object() && value.size() > 8) return fmt::format("an object of {}", value.size());
  return json_excerpt(value);
}

ApiError wrong_value(const FieldContext& at, std::string wanted, const Json& value,
                     std::string hint) {
  return bad_field(at.path, std::move(wanted), excerpt(value), std::move(hint));
}

std::optional<std::int64_t> integer_of(const Json& value, std::int64_t least, std::int64_t most) {
  std::int64_t out = 0;
  if (value.is_number_unsigned()) {
    const auto u = value.get<std::uint64_t>();
    if (u > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return std::nullopt;
    }
    out = static_cast<std::int64_t>(u);
  } else if (value.is_number_integer()) {
    out = value.get<std::int64_t>();
  } else if (const auto number = double_of(value)) {
    const double d = *number;
    if (std::trunc(d) != d || std::fabs(d) >= 0x1p63) return std::nullopt;
    out = static_cast<std::int64_t>(d);
  } else {
    return std::nullopt;
  }
  if (out < least || out > most) return std::nullopt;
  return out;
}

std::string wanted_integer(const Json& value, std::int64_t least, std::int64_t most) {
  const auto d = double_of(value);
  const bool beyond = d && (*d >= static_cast<double>(most) || *d <= static_cast<double>(least));
  return beyond ? fmt::format("an integer from {} to {}", least, most) : range_text(least, most);
}

Reader number(NumberRange range, std::function<void(ApiRequest&, float)> set) {
  std::string takes = range_text(range);
  return {
      takes,
      [=](const Json& value, const FieldContext& at, ApiRequest& out) -> std::optional<ApiError> {
        const double d = double_of(value).value_or(std::nan(""));
        // Of a number above the least one a float may hold no more than that one.
        const bool above = range.open ? static_cast<float>(std::min(d, range.most)) > range.least
                                      : d >= range.least;
        if (range.open && !above && d > range.least) {
          const float smallest = std::nextafter(static_cast<float>(range.least), 1.f);
          return wrong_value(at, fmt::format("a number from {} to {}", smallest, range.most),
                             value);
        }
        if (!above || !(d <= range.most)) return wrong_value(at, takes, value);
        set(out, static_cast<float>(d));
        return std::nullopt;
      }};
}

Reader integer(std::int64_t least, std::int64_t most,
               std::function<void(ApiRequest&, std::int64_t)> set) {
  std::string takes = range_text(least, most);
  return {
      takes,
      [=](const Json& value, const FieldContext& at, ApiRequest& out) -> std::optional<ApiError> {
        const auto i = integer_of(value, least, most);
        if (!i) return wrong_value(at, wanted_integer(value, least, most), value);
        set(out, *i);
        return std::nullopt;
      }};
}

Reader boolean(std::function<void(ApiRequest&, bool)> set) {
  return {
      "true or false",
      [=](const Json& value, const FieldContext& at, ApiRequest& out) -> std::optional<ApiError> {
        if (!value.is_boolean()) return wrong_value(at, "true or false", value);
        set(out, value.get<bool>());
        return std::nullopt;
      }};
}

Reader string(std::size_t most_bytes, std::function<void(ApiRequest&, std::string)> set,
              bool empty) {
  std::string takes =
      fmt::format("a string of at most {} bytes{}", most_bytes, empty ? "" : " that is not empty");
  return {
      takes,
      [=](const Json& value, const FieldContext& at, ApiRequest& out) -> std::optional<ApiError> {
        if (!value.is_string() || value.get_ref<const std::string&>().size() > most_bytes ||
            (!empty && value.get_ref<const std::string&>().empty())) {
          return wrong_value(at, takes, value);
        }
        set(out, value.get<std::string>());
        return std::nullopt;
      }};
}

Reader token_ids(std::function<void(ApiRequest&, std::vector<std::int32_t>)> set) {
  return {
      "a list of token ids",
      [=](const Json& value, const FieldContext& at, ApiRequest& out) -> std::optional<ApiError> {
        if (!value.is_array()) return wrong_value(at, "a list of token ids", value);
        std::vector<std::int32_t> ids;
        for (std::size_t i = 0; i < value.size(); ++i) {
          const auto id = integer_of(value[i], 0, std::numeric_limits<std::int32_t>::max());
          if (!id) {
            return wrong_value({fmt::format("{}[{}]", at.path, i), at.limits}, "a token id",
                               value[i]);
          }
          ids.push_back(static_cast<std::int32_t>(*id));
        }
        set(out, std::move(ids));
        return std::nullopt;
      }};
}

Reader strings(std::size_t most, std::size_t most_bytes, bool empty_ones,
               std::function<void(ApiRequest&, std::vector<std::string>)> set) {
  const std::string each = fmt::format("{} to {} bytes", empty_ones ? 0 : 1, most_bytes);
  std::string takes = fmt::format("a string, or at most {}, of {}", most, each);
  return {
      takes,
      [=](const Json& value, const FieldContext& at, ApiRequest& out) -> std::optional<ApiError> {
        const bool list = value.is_array();
        if (!list && !value.is_string()) return wrong_value(at, takes, value);
        if (list && value.size() > most) {
          return bad_field(at.path, takes, fmt::format("{} strings", value.size()));
        }
        std::vector<std::string> texts;
        for (std::size_t i = 0; i < (list ? value.size() : 1); ++i) {
          const Json& one = list ? value[i] : value;
          const std::string path = list ? fmt::format("{}[{}]", at.path, i) : at.path;
          const bool fits = one.is_string() &&
                            one.get_ref<const std::string&>().size() <= most_bytes &&
                            (empty_ones || !one.get_ref<const std::string&>().empty());
          if (!fits) return wrong_value({path, at.limits}, "a string of " + each, one);
          texts.push_back(one.get<std::string>());
        }
        set(out, std::move(texts));
        return std::nullopt;
      }};
}

Reader unread() {
  return {"anything", [](const Json&, const FieldContext&, ApiRequest&) -> std::optional<ApiError> {
            return std::nullopt;
          }};
}

Reader unsupported(std::string why) {
  return {"nothing",
          [why = std::move(why)](const Json& value, const FieldContext& at,
                                 ApiRequest&) -> std::optional<ApiError> {
            const bool asks_nothing =
                (value.is_boolean() && !value.get<bool>()) || double_of(value) == 0.0 ||
                ((value.is_string() || value.is_structured()) &&
                 (value.is_string() ? value.get_ref<const std::string&>().empty() : value.empty()));
            if (asks_nothing) return std::nullopt;
            return ApiError{
                400, "unsupported_field",
                fmt::format("{}: wanted none, got {}; {}", at.path, excerpt(value), why), at.path};
          }};
}

}  // namespace lathe
