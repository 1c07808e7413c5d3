#include "base/json.h"

#include <nlohmann/json.hpp>
#include <unordered_set>
#include <vector>

namespace lathe {
namespace {

template <class Json>
std::string excerpt(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

}  // namespace

std::string json_text(const nlohmann::ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string json_excerpt(const nlohmann::json& value) { return excerpt(value); }
std::string json_excerpt(const nlohmann::ordered_json& value) { return excerpt(value); }

template <class Json>
Json read_json(std::string_view text) {
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

template <class Json>
WatchedJson<Json> read_watched_json(std::string_view text) {
  WatchedJson<Json> out;
  std::vector<std::unordered_set<std::string>> open;  // names seen in each open object
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

template nlohmann::json read_json(std::string_view);
template nlohmann::ordered_json read_json(std::string_view);
template WatchedJson<nlohmann::json> read_watched_json(std::string_view);
template WatchedJson<nlohmann::ordered_json> read_watched_json(std::string_view);

}  // namespace lathe
