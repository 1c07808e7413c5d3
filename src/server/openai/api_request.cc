#include "server/openai/api_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "base/json.h"
#include "io/text/quote.h"
#include "server/openai/field_readers.h"
#include "server/openai/fields.h"
#include "server/openai/request_readers.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

// A body of 16 MiB may need 64 MB of memory for values (token ids) and 40 MB for the rest.
constexpr JsonLimits kBodyLimits{.values = 4'000'000, .nodes = 400'000};

// `path`: of the value. A body that is a list has no fields.
ApiError invalid_json(const std::string& message, std::string path = "") {
  if (path.starts_with('[')) path.clear();
  return {400, "invalid_json", (path.empty() ? "body" : path) + ": " + message, path};
}

// What the parser stopped at, the byte of this number (1 for the first), and some bytes before.
std::string stopped_at(std::string_view text, std::size_t byte) {
  if (text.empty()) return "an empty text";
  constexpr std::size_t kMostBytes = 40;
  const std::string_view before = text.substr(0, byte);
  const std::size_t from = before.size() - std::min(before.size(), kMostBytes);
  return fmt::format("{}{}{}", byte > text.size() ? "the end after " : "", from > 0 ? "..." : "",
                     shown_text(before.substr(from)));
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

// Checks that involve several fields.
std::optional<ApiError> check_together(const Json& body, const ApiRequest& r) {
  if (r.has_stream_options && !r.stream) {
    return bad_field("stream_options", "\"stream\": true with it", "a whole answer asked for");
  }
  if (r.route == ApiRoute::chat) {
    if (r.messages.is_null()) return missing("messages", "a list of messages");
    if (r.top_logprobs && !r.logprobs) {
      return bad_field("top_logprobs", "\"logprobs\": true with it", "none");
    }
    if (auto wrong = check_tools(r)) return wrong;
    if (auto wrong = check_effort(r, "reasoning_effort")) return wrong;
    if (r.continue_final_message && body.contains("add_generation_prompt") &&
        r.add_generation_prompt) {
      return bad_field("continue_final_message", "add_generation_prompt false with it", "true");
    }
  } else if (r.prompts.empty()) {
    return r.route == ApiRoute::completions ? missing("prompt", "text or tokens")
                                            : missing("text", "text, or input_ids");
  }
  if (r.prompt_logprobs && r.stream) {
    return bad_field("prompt_logprobs", "a whole answer asked for", "\"stream\": true with it");
  }
  // More than n would be generated and ranked; fewer OpenAI and vLLM refuse too.
  if (r.best_of && *r.best_of != r.n) {
    return bad_field("best_of", fmt::format("n, {}", r.n), fmt::format("{}", *r.best_of));
  }
  if (r.route == ApiRoute::completions && r.max_tokens == 0 && !r.echo) {
    return bad_field("max_tokens", "1 or more, or 0 with echo", "0");
  }
  if (!r.each.empty() && r.each.size() != r.prompts.size()) {
    return bad_field(
        "sampling_params",
        fmt::format("an object, or a list of {}, one for each prompt", r.prompts.size()),
        fmt::format("a list of {}", r.each.size()));
  }
  if (auto wrong = check_lengths(r)) return wrong;
  for (std::size_t i = 0; i < r.each.size(); ++i) {
    const AnswerParams& p = r.params(i);
    if (p.n != r.params(0).n) {
      return bad_field(params_name(r, i) + "n",
                       fmt::format("{}, as for the first prompt", r.params(0).n),
                       fmt::format("{}", p.n));
    }
  }
  return check_rids(r);
}

// Names the fields that say something and act only with another one, which is not there. Clients of
// SGLang and vLLM send them always, and those servers ignore them.
std::optional<ApiError> note_unused(const FieldLimits& limits, ApiRequest& r) {
  struct Lone {
    std::string_view name, with;
    bool unused;
  };
  const bool bare = r.route == ApiRoute::generate && !r.logprobs;
  const Lone fields[] = {
      {"top_logprobs_num", "return_logprob", bare && r.top_logprobs.value_or(0) > 0},
      {"logprob_start_len", "return_logprob", bare && r.logprob_start_len != -1},
      {"token_ids_logprob", "return_logprob", bare && !r.logprob_ids.empty()},
      {"return_text_in_logprobs", "return_logprob", bare && r.text_in_logprobs},
      {"return_tokens_as_token_ids", "logprobs", r.tokens_as_ids && !r.logprobs},
      {"incremental", "stream", r.incremental && !r.stream}};
  for (const auto& [name, with, unused] : fields) {
    if (!unused) continue;
    if (limits.strict) return bad_field(std::string(name), fmt::format("{} with it", with), "none");
    r.ignored.emplace_back(name);
  }
  return std::nullopt;
}

// OpenAI's and Anthropic's letters, and the point of MCP's names. A name with others would end the
// marks around it in some models' calls.
bool is_function_name(std::string_view name, std::size_t most) {
  return !name.empty() && name.size() <= most && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

// The longest name of a function: OpenAI's for chat, and for newer routes, as Anthropic's. One with
// its namespace before it may be longer.
std::size_t most_name(const ApiRequest& r, const std::string& name) {
  constexpr std::size_t kChat = 64, kLater = 128;
  if (r.route == ApiRoute::chat) return kChat;
  const auto other = r.other_tools.find(name);
  const bool spaced = other != r.other_tools.end() && !other->second.space.empty();
  return spaced ? 2 * kLater + 2 : kLater;
}

// Names and parameters of the functions, whether or not an answer may call them.
std::optional<ApiError> check_functions(const ApiRequest& r) {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < r.tools.size(); ++i) {
    const Json& function = r.tools[i]["function"];
    const auto& name = function["name"].get_ref<const std::string&>();
    const std::string path = fmt::format("tools[{}].function.", i);
    if (const std::size_t most = most_name(r, name); !is_function_name(name, most)) {
      return bad_field(path + "name",
                       fmt::format("1 to {} of the characters A-Z a-z 0-9 _ - .", most),
                       json_excerpt(Json(name)));
    }
    if (!names.insert(name).second) {
      return bad_field(path + "name", "another name than earlier tools'", json_excerpt(Json(name)));
    }
    const Json about = function.value("description", Json());
    if (!about.is_null() && !about.is_string()) {
      return bad_field(path + "description", "text", excerpt(about));
    }
    const auto given = function.find("parameters");
    if (given == function.end() || given->is_null()) continue;
    const std::string schema = path + "parameters";
    if (!given->is_object()) return bad_field(schema, "a JSON schema", json_excerpt(*given));
    const Json type = given->value("type", Json());
    const bool object = type.is_null() || type == "object" ||
                        (type.is_array() && std::ranges::find(type, "object") != type.end());
    const bool followed =
        function.value("strict", Json()) == true || (r.forces_call() && r.may_call(name));
    if (!object && followed) return bad_field(schema + ".type", "\"object\"", json_excerpt(type));
    const Json required = given->value("required", Json());
    const bool strings = required.is_array() &&
                         std::ranges::all_of(required, [](const Json& s) { return s.is_string(); });
    if (!required.is_null() && !strings) {
      return bad_field(schema + ".required", "a list of names", json_excerpt(required));
    }
    const Json properties = given->value("properties", Json());
    if (!properties.is_null() && !properties.is_object()) {
      return bad_field(schema + ".properties", "an object", json_excerpt(properties));
    }
  }
  return std::nullopt;
}

}  // namespace

bool ApiRequest::may_call(const std::string& function) const {
  if (tool_choice.is_object()) return tool_choice["function"]["name"] == function;
  return allowed_tools.empty() || std::ranges::any_of(allowed_tools, [&](const auto& tool) {
           return tool.first == function;
         });
}

bool ApiRequest::constrains_calls() const {
  if (!tools.is_array() || forces_call() || tool_choice == "none") return false;
  if (!allowed_tools.empty()) return true;
  return std::ranges::any_of(
      tools, [](const Json& tool) { return tool["function"].value("strict", Json()) == true; });
}

std::optional<ApiError> check_lengths(const ApiRequest& r) {
  for (std::size_t i = 0; i < std::max<std::size_t>(1, r.each.size()); ++i) {
    const AnswerParams& p = r.params(i);
    if (!p.max_tokens || p.sampling.min_tokens <= *p.max_tokens) continue;
    return bad_field(
        params_name(r, i) + (r.route == ApiRoute::generate ? "min_new_tokens" : "min_tokens"),
        fmt::format("at most the {} tokens of the answer", *p.max_tokens),
        fmt::format("{}", p.sampling.min_tokens));
  }
  return std::nullopt;
}

std::optional<ApiError> check_effort(const ApiRequest& r, const std::string& path) {
  if (!r.reasoning_effort || !r.template_kwargs.is_object()) return std::nullopt;
  const Json variable = r.template_kwargs.value("reasoning_effort", Json());
  if (variable.is_null() || variable == *r.reasoning_effort) return std::nullopt;
  return bad_field(path,
                   "the value of chat_template_kwargs.reasoning_effort, " + json_excerpt(variable),
                   quote(*r.reasoning_effort));
}

std::optional<ApiError> check_tools(const ApiRequest& r) {
  const bool any = r.tools.is_array();
  if (r.forces_call() && !any) return bad_field("tool_choice", "tools with it", "none");
  if (any) {
    if (auto wrong = check_functions(r)) return r.sources.rename(std::move(*wrong));
  }
  const auto is_tool = [&](const std::string& name) {
    return any && std::ranges::any_of(
                      r.tools, [&](const Json& tool) { return tool["function"]["name"] == name; });
  };
  const auto unknown = [&](const std::string& path, const std::string& name) {
    return r.sources.rename(bad_field(path + ".name", "the name of one of the tools", quote(name)));
  };
  if (r.tool_choice.is_object()) {
    const auto& name = r.tool_choice["function"]["name"].get_ref<const std::string&>();
    if (!is_tool(name)) return unknown("tool_choice.function", name);
  }
  for (const auto& [name, path] : r.allowed_tools) {
    if (!is_tool(name)) return unknown(path, name);
  }
  return std::nullopt;
}

std::optional<ApiError> check_rids(const ApiRequest& r) {
  const std::size_t prompts = r.is_chat() ? 1 : r.prompts.size();
  if (!r.rid_list || r.rids.size() == prompts) return std::nullopt;
  return bad_field("rid", fmt::format("a string, or a list of {}, one for each prompt", prompts),
                   fmt::format("a list of {}", r.rids.size()));
}

std::string params_name(const ApiRequest& request, std::size_t prompt) {
  if (request.route != ApiRoute::generate) return "";
  return request.each.empty() ? "sampling_params." : fmt::format("sampling_params[{}].", prompt);
}

Result<Json, ApiError> parse_body(std::string_view body) {
  try {
    auto parsed = read_watched_json<Json>(body, kBodyLimits, /*exact=*/true);
    if (parsed.too_many) {
      return ApiError{
          413, "body_too_large",
          fmt::format("{}: wanted at most {} values, and {} names, lists and objects, in "
                      "a body, got more",
                      parsed.too_many->empty() ? "body" : *parsed.too_many, kBodyLimits.values,
                      kBodyLimits.nodes),
          *parsed.too_many};
    }
    if (parsed.too_deep) {
      return invalid_json(fmt::format("wanted at most {} levels, got more", kMostLevels),
                          *parsed.too_deep);
    }
    if (parsed.too_large) {
      return invalid_json("wanted a number that a double can hold, got " + parsed.too_large->digits,
                          parsed.too_large->path);
    }
    if (parsed.twice) {
      return invalid_json("wanted unique names, got " + quote(*parsed.twice) + " twice");
    }
    if (!parsed.value.is_object()) {
      return invalid_json("wanted an object, got " + excerpt(parsed.value));
    }
    return std::move(parsed.value);
  } catch (const Json::parse_error& e) {
    return invalid_json(fmt::format("wanted JSON in UTF-8, got {} at {}", stopped_at(body, e.byte),
                                    place_of(body, e.byte)));
  }
}

Result<ApiRequest, ApiError> parse_request(ApiRoute route, std::string_view body,
                                           const FieldLimits& limits) {
  const auto json = parse_body(body);
  if (!json) return json.error();
  const FieldTable& fields = fields_of(place_of(route));
  ApiRequest out;
  out.route = route;
  if (auto wrong = read_fields(*json, fields, "", limits, out)) return *wrong;
  if (auto wrong = refuse_ignored(out, fields, limits)) return *wrong;
  if (auto wrong = note_unused(limits, out)) return *wrong;
  // max_completion_tokens is read later and goes first, as in vLLM.
  out.completion_tokens =
      route == ApiRoute::chat && !json->value("max_completion_tokens", Json()).is_null();
  const auto first = integer_of(json->value("max_tokens", Json()), 0, kMostInt);
  if (route == ApiRoute::chat && first && *first != *out.max_tokens) {
    if (limits.strict) {
      return bad_field("max_tokens", fmt::format("max_completion_tokens, {}", *out.max_tokens),
                       fmt::format("{}", *first));
    }
    out.ignored.emplace_back("max_tokens");
  }
  const Json keeps = json->value("include_stop_str_in_output", Json());
  const Json untrimmed = json->value("no_stop_trim", Json());
  if (keeps.is_boolean() && untrimmed.is_boolean() && keeps != untrimmed) {
    return bad_field("no_stop_trim", "the value of include_stop_str_in_output, " + keeps.dump(),
                     untrimmed.dump());
  }
  if (auto wrong = check_together(*json, out)) return *wrong;
  return out;
}

}  // namespace lathe
