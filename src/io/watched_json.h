// A parse of JSON that looks at nesting and names; of any of nlohmann's types, so templates.
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
  bool too_deep = false;             // more than kMostLevels; the value lacks what is deeper
  std::optional<std::string> twice;  // the first name that an object has twice
};

/// Throws Json::parse_error at text that is not JSON in UTF-8, and another Json::exception at a
/// number beyond double.
template <class Json>
WatchedJson<Json> parse_watched(std::string_view text) {
  WatchedJson<Json> out;
  std::vector<std::unordered_set<std::string>> open;  // names of each object that is open
  const auto watch = [&](int depth, typename Json::parse_event_t event, Json& parsed) {
    if (depth > kMostLevels) {  // the parser skips to the end of what is discarded
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
