#include "server/openai/api_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "io/json_text.h"
#include "io/quote.h"
#include "server/openai/fields.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

ApiError invalid_json(std::string message) {
  return {400, "invalid_json", "body: " + std::move(message), ""};
}

std::string place_of(std::string_view text, std::size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte == 0 ? 0 : byte - 1, text.size()));
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const std::size_t newline = before.rfind('\n');
  const std::size_t column =
      newline == std::string_view::npos ? before.size() + 1 : before.size() - newline;
  return fmt::format("line {}, column {}", line, column);
}

ApiError missing(std::string_view name, std::string_view wanted) {
  return {400, "missing_field", fmt::format("{}: wanted {}, got nothing", name, wanted),
          std::string(name)};
}

FieldPlace place_of(ApiRoute route) {
  return route == ApiRoute::chat          ? kInChat
         : route == ApiRoute::completions ? kInCompletions
                                          : kInGenerate;
}

// What concerns several fields.
std::optional<ApiError> check_together(const Json& body, const ApiRequest& r) {
  if (r.has_stream_options && !r.stream) {
    return bad_field("stream_options", "\"stream\": true with it", "a whole answer asked for");
  }
  if (r.route == ApiRoute::chat) {
    if (r.messages.is_null()) return missing("messages", "a list of messages");
    if (r.top_logprobs && !r.logprobs) {
      return bad_field("top_logprobs", "\"logprobs\": true with it", "none");
    }
    if (r.continue_final_message && body.contains("add_generation_prompt") &&
        r.add_generation_prompt) {
      return bad_field("continue_final_message", "add_generation_prompt false with it", "true");
    }
  } else if (r.prompts.empty()) {
    return r.route == ApiRoute::completions ? missing("prompt", "text or tokens")
                                            : missing("text", "text, or input_ids");
  }
  if (r.best_of && *r.best_of > r.n) {
    return bad_field("best_of", fmt::format("at most n, {}", r.n), fmt::format("{}", *r.best_of));
  }
  if (r.max_tokens == 0 && !r.echo) {
    return bad_field("max_tokens", "1 or more, or 0 with echo", "0");
  }
  if (r.max_tokens && r.sampling.min_tokens > *r.max_tokens) {
    return bad_field(
        r.route == ApiRoute::generate ? "sampling_params.min_new_tokens" : "min_tokens",
        fmt::format("at most the {} tokens of the answer", *r.max_tokens),
        fmt::format("{}", r.sampling.min_tokens));
  }
  if (!r.rids.empty() && r.rids.size() != 1 && r.rids.size() != r.prompts.size()) {
    return bad_field("rid", "one, or one for each prompt", fmt::format("{}", r.rids.size()));
  }
  return std::nullopt;
}

}  // namespace

Result<Json, ApiError> parse_body(std::string_view body) {
  std::vector<std::unordered_set<std::string>> open;  // names of each object that is open
  std::string twice;
  bool has_twice = false;
  bool too_deep = false;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMostLevels) {
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
    Json json = Json::parse(body, watch);
    if (too_deep)
      return invalid_json(fmt::format("wanted at most {} levels, got more", kMostLevels));
    if (has_twice) return invalid_json("wanted distinct names, got " + quote(twice) + " twice");
    if (!json.is_object()) return invalid_json("wanted an object, got something else");
    return json;
  } catch (const Json::parse_error& e) {
    return invalid_json("wanted JSON in UTF-8, got something else at " + place_of(body, e.byte));
  } catch (const Json::exception&) {
    return invalid_json("wanted numbers that a double can hold, got a larger one");
  }
}

Result<ApiRequest, ApiError> parse_request(ApiRoute route, std::string_view body,
                                           const FieldLimits& limits) {
  const auto json = parse_body(body);
  if (!json) return json.error();
  ApiRequest out;
  out.route = route;
  if (auto wrong = read_fields(*json, place_of(route), "", limits, out)) return *wrong;
  if (route == ApiRoute::chat) {
    // The later name goes first, wherever it stands.
    const auto later = json->find("max_completion_tokens");
    const auto first = json->find("max_tokens");
    if (later != json->end() && !later->is_null() && first != json->end()) {
      out.max_tokens = later->get<std::int32_t>();
    }
  }
  if (limits.strict && !out.ignored.empty()) {
    return bad_field(out.ignored[0], "a known name", "an unknown one",
                     nearest_field(place_of(route), out.ignored[0]));
  }
  if (auto wrong = check_together(*json, out)) return *wrong;
  return out;
}

}  // namespace lathe
