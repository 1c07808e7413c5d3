#include "model/config/config_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json.h"

#include "io/text/quote.h"

namespace lathe {

std::string ConfigRange::text() const {
  return fmt::format("a finite number from {} to {}{}", min, max, or_zero ? ", or 0" : "");
}

ConfigReader::ConfigReader(const nlohmann::json& object, std::string place, Keys* read,
                           const Flags* flags)
    : object_(&object), place_(std::move(place)), read_(read), flags_(flags) {}

const nlohmann::json* ConfigReader::find(std::string_view key) const {
  if (read_ != nullptr) read_->insert(fmt::format("{}{}", prefix_, key));
  const auto it = object_->find(key);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

bool ConfigReader::has(std::string_view key) const { return find(key) != nullptr; }

bool ConfigReader::null(std::string_view key) const {
  const auto it = object_->find(key);
  return it != object_->end() && it->is_null();
}

bool ConfigReader::is_list(std::string_view key) const {
  const nlohmann::json* value = find(key);
  return value != nullptr && value->is_array();
}

bool ConfigReader::is_text(std::string_view key) const {
  const nlohmann::json* value = find(key);
  return value != nullptr && value->is_string();
}

std::vector<std::string> ConfigReader::keys() const {
  std::vector<std::string> out;
  for (const auto& [key, value] : object_->items()) out.push_back(key);
  return out;
}

std::string_view ConfigReader::first_of(std::initializer_list<std::string_view> keys) const {
  for (const std::string_view key : keys) {
    if (has(key)) return key;
  }
  return *keys.begin();
}

void ConfigReader::refuse(std::string_view key, std::string wanted, std::string offered,
                          ErrorCode code, std::string hint) {
  if (error_) return;
  if (std::string field = flag_field(key); !field.empty()) {
    if (code == ErrorCode::malformed) code = ErrorCode::invalid_argument;
    error_ = Error{code, std::move(field), std::move(wanted), std::move(offered),
                   "give another value, or leave the flag out"};
    return;
  }
  error_ = Error{code, fmt::format("{}: {}", place_, key), std::move(wanted), std::move(offered),
                 std::move(hint)};
}

void ConfigReader::mistyped(std::string_view key, std::string_view wanted, std::string hint) {
  const nlohmann::json* value = find(key);
  refuse(key, std::string(wanted), value == nullptr ? "nothing" : json_excerpt(*value),
         ErrorCode::malformed, std::move(hint));
}

// "--rope-scaling: factor" of a key that a flag gave; empty: the file did.
std::string ConfigReader::flag_field(std::string_view key) const {
  if (flags_ == nullptr) return {};
  const std::string path = fmt::format("{}{}", prefix_, key);
  std::size_t given = path.size();
  auto flag = flags_->find(path);
  while (flag == flags_->end()) {
    given = path.substr(0, given).rfind('.');
    if (given == std::string::npos) return {};
    flag = flags_->find(path.substr(0, given));
  }
  std::string out = flag->second;
  for (std::size_t at = given; at < path.size();) {
    const std::size_t end = std::min(path.find('.', at + 1), path.size());
    out += ": " + path.substr(at + 1, end - at - 1);
    at = end;
  }
  return out;
}

// How to give a number without the file.
std::string ConfigReader::way_out(std::string_view key) const {
  if (!place_.starts_with("config.json")) return "mend the file, or delete the key";
  if (prefix_.starts_with("rope_")) return "--rope-scaling JSON, if the file is wrong";
  if (!prefix_.empty()) return "mend the file";
  return fmt::format("--override {}=VALUE, if the file is wrong", key);
}

std::int32_t ConfigReader::integer(std::string_view key, std::optional<std::int32_t> fallback,
                                   std::int32_t min, std::int32_t max) {
  const nlohmann::json* value = find(key);
  if (value == nullptr && fallback) {
    if (*fallback >= min && *fallback <= max) return *fallback;
    refuse(key, fmt::format("an integer from {} to {}", min, max),
           fmt::format("{}, the default of an absent key", *fallback), ErrorCode::malformed,
           way_out(key));
    return min;
  }
  if (value != nullptr && value->is_number_integer()) {
    // Unsigned values beyond int64 need an unsigned comparison.
    const bool huge = value->is_number_unsigned() &&
                      value->get<std::uint64_t>() > static_cast<std::uint64_t>(kMaxCount);
    const std::int64_t got = huge ? std::int64_t{kMaxCount} + 1 : value->get<std::int64_t>();
    if (got >= min && got <= max) return static_cast<std::int32_t>(got);
  }
  mistyped(key, fmt::format("an integer from {} to {}", min, max), way_out(key));
  return min;
}

double ConfigReader::number(std::string_view key, const ConfigRange& range,
                            std::optional<double> fallback) {
  const nlohmann::json* value = find(key);
  if (value == nullptr && fallback) return *fallback;
  if (value != nullptr && value->is_number()) {
    const double got = value->get<double>();
    if (range.contains(got)) return got;
  }
  const bool finite = value != nullptr && value->is_number() && std::isfinite(value->get<double>());
  mistyped(key, finite ? range.text() : "a finite number", way_out(key));
  return range.contains(1) ? 1 : range.min;
}

bool ConfigReader::flag(std::string_view key, bool fallback) {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  mistyped(key, "true or false");
  return fallback;
}

std::string ConfigReader::text(std::string_view key, std::string_view fallback) {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::string(fallback);
  if (value->is_string()) return value->get<std::string>();
  mistyped(key, "a text");
  return std::string(fallback);
}

std::vector<std::string> ConfigReader::texts(std::string_view key) {
  std::vector<std::string> out;
  const nlohmann::json* value = find(key);
  if (value == nullptr) return out;
  if (!value->is_array()) {
    mistyped(key, "a list of texts");
    return out;
  }
  for (const nlohmann::json& item : *value) {
    if (!item.is_string()) {
      mistyped(key, "a list of texts");
      return {};
    }
    out.push_back(item.get<std::string>());
  }
  return out;
}

std::vector<std::int32_t> ConfigReader::integers(std::string_view key) {
  std::vector<std::int32_t> out;
  const nlohmann::json* value = find(key);
  if (value == nullptr) return out;
  const auto add = [&](const nlohmann::json& item) {
    const bool good =
        item.is_number_integer() && item.get<double>() >= 0 && item.get<double>() <= kMaxCount;
    if (good) out.push_back(item.get<std::int32_t>());
    return good;
  };
  bool good = value->is_array() || add(*value);
  if (value->is_array()) {
    for (const nlohmann::json& item : *value) good = good && add(item);
  }
  if (good) return out;
  mistyped(key, fmt::format("integers from 0 to {}", kMaxCount), way_out(key));
  return {};
}

std::vector<std::int32_t> ConfigReader::token_ids(std::string_view key, std::int32_t end) {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return {};
  const auto refused = [&](const nlohmann::json& offered) {
    refuse(key, fmt::format("ids below vocab_size, {}", end), json_excerpt(offered),
           ErrorCode::malformed, fmt::format("--override {}=ID", key));
    return std::vector<std::int32_t>();
  };
  const nlohmann::json list = value->is_array() ? *value : nlohmann::json::array({*value});
  if (list.empty()) return refused(list);
  std::vector<std::int32_t> out;
  for (const nlohmann::json& id : list) {
    if (!id.is_number_integer() || id.get<double>() < 0 || id.get<double>() >= end) {
      return refused(id);
    }
    out.push_back(id.get<std::int32_t>());
  }
  return out;
}

std::vector<double> ConfigReader::numbers(std::string_view key, const ConfigRange& range) {
  std::vector<double> out;
  const nlohmann::json* value = find(key);
  if (value == nullptr) return out;
  for (const nlohmann::json& item : *value) {
    if (!value->is_array() || !item.is_number() || !range.contains(item.get<double>())) {
      mistyped(key, fmt::format("a list of numbers, each {}", range.text()), way_out(key));
      return {};
    }
    out.push_back(item.get<double>());
  }
  return out;
}

std::optional<ConfigReader> ConfigReader::object(std::string_view key) {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) {
    mistyped(key, "an object");
    return std::nullopt;
  }
  ConfigReader nested(*value, fmt::format("{}: {}", place_, key), read_, flags_);
  nested.prefix_ = fmt::format("{}{}.", prefix_, key);
  return nested;
}

void ConfigReader::adopt(const ConfigReader& nested) {
  if (!error_) error_ = nested.error_;
}

void ConfigReader::only(std::string_view key, std::string_view only_value) {
  const std::string got = text(key, only_value);
  if (got != only_value) {
    refuse(key, std::string(only_value), quote(got), ErrorCode::unsupported,
           "docs/models.md lists what is read");
  }
}

void ConfigReader::only_false(std::string_view key) {
  if (flag(key, false)) refuse(key, "false", "true");
}

void ConfigReader::absent(std::string_view key, std::string wanted) {
  if (const nlohmann::json* value = find(key); value != nullptr) {
    refuse(key, std::move(wanted), json_excerpt(*value));
  }
}

}  // namespace lathe
