// JSON parsing that checks nesting and repeated names, for any of nlohmann's types.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "io/json_text.h"

namespace lathe {

template <class Json>
struct WatchedJson {
  Json value;
  bool too_deep = false;             // more than kMostLevels; deeper values are dropped
  std::optional<std::string> twice;  // the first name repeated in an object
};

/// Throws Json::parse_error for text that is not JSON in UTF-8, and another Json::exception for
/// numbers beyond double.
template <class Json>
WatchedJson<Json> parse_watched(std::string_view text) {
  WatchedJson<Json> out;
  std::vector<std::unordered_set<std::string>> open;  // names in each open object
  const auto watch = [&](int depth, typename Json::parse_event_t event, Json& parsed) {
    if (depth > kMostLevels) {  // the parser skips discarded values
      out.too_deep = true;
      return false;
    }
    if (event == Json::parse_event_t::object_start) {
      open.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      open.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const auto& key = parsed.template get_ref<const std::string&>();
      if (!open.back().insert(key).second && !out.twice) out.twice = key;
    }
    return true;
  };
  out.value = Json::parse(text, watch);
  return out;
}

}  // namespace lathe
