#include "io/json_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <unordered_set>
#include <vector>

#include "io/quote.h"

namespace lathe {

Result<nlohmann::json> parse_json(std::string_view text, const std::string& field) {
  using Json = nlohmann::json;
  std::vector<std::unordered_set<std::string>> open;  // names seen in each object that is open
  std::string twice;
  bool has_twice = false;
  bool too_deep = false;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMostLevels) {  // the parser skips to the end of what is discarded
      too_deep = true;
      return false;
    }
    if (event == Json::parse_event_t::object_start) {
      open.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      open.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open.back().insert(key).second && !has_twice) {
        twice = key;
        has_twice = true;
      }
    }
    return true;
  };
  try {
    auto json = Json::parse(text, watch);
    if (too_deep) {
      return Error{ErrorCode::malformed, field, fmt::format("at most {} levels", kMostLevels),
                   "more", ""};
    }
    if (has_twice) {
      return Error{ErrorCode::malformed, field, "unique names", quote(twice) + " twice", ""};
    }
    return json;
  } catch (const Json::parse_error& e) {
    return Error{ErrorCode::malformed, field, "valid JSON",
                 fmt::format("something else at byte {} of {}", e.byte, text.size()), ""};
  } catch (const Json::exception& e) {  // a number beyond double
    return Error{ErrorCode::malformed, field, "valid JSON", e.what(), ""};
  }
}

std::string json_excerpt(const nlohmann::json& j) {
  std::string text = j.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

}  // namespace lathe
