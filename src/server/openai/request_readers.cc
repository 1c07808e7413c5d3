#include "server/openai/request_readers.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/json_digits.h"
#include "io/template/chat_prompt.h"
#include "server/openai/allowed_tools.h"
#include "server/openai/object_reader.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kLeastInt = std::numeric_limits<std::int32_t>::min();

std::optional<ApiError> read_prompt(const Json& value, const FieldContext& at, bool text,
                                    bool tokens, ApiRequest& out) {
  const std::string wanted = text && tokens ? "text, tokens, or a list of either"
                             : text         ? "text, or a list of texts"
                                            : "tokens, or a list of tokens' lists";
  const auto read_one = [&](const Json& one, const std::string& path) -> std::optional<ApiError> {
    const FieldContext here{path, at.limits};
    PromptInput input;
    if (text && one.is_string()) {
      input.text = one.get<std::string>();
      if (input.text.empty()) return bad_field(path, "at least one token", "\"\"");
    } else if (tokens && one.is_array()) {
      input.is_text = false;
      if (one.empty()) return bad_field(path, "at least one token", "[]");
      for (std::size_t i = 0; i < one.size(); ++i) {
        const auto id = integer_of(one[i], 0, kMostInt);
        if (!id)
          return wrong_value({fmt::format("{}[{}]", path, i), at.limits}, "a token id", one[i]);
        input.tokens.push_back(static_cast<std::int32_t>(*id));
      }
    } else {
      return wrong_value(here, wanted, one);
    }
    out.prompts.push_back(std::move(input));
    return std::nullopt;
  };
  if (!out.prompts.empty()) return bad_field(at.path, "text or input_ids", "both");
  const bool list = value.is_array() && (value.empty() || !is_json_number(value[0]));
  if (!list) return read_one(value, at.path);
  if (value.empty()) return bad_field(at.path, "at least one prompt", "[]");
  if (std::ssize(value) > at.limits.max_prompts) {
    return bad_field(at.path, fmt::format("at most {} prompts", at.limits.max_prompts),
                     fmt::format("{}", value.size()), "--max-prompts");
  }
  out.batch = true;
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (auto wrong = read_one(value[i], fmt::format("{}[{}]", at.path, i))) return wrong;
  }
  return std::nullopt;
}

}  // namespace

Reader prompt_reader(bool text, bool tokens) {
  return {text && tokens ? "text, token ids, or a list of either"
          : text         ? "text or a list of texts"
                         : "token ids or a list of such lists",
          [=](const Json& value, const FieldContext& at, ApiRequest& out) {
            return read_prompt(value, at, text, tokens, out);
          }};
}

Reader messages_reader() {
  return {
      "a list of messages, at least one",
      [](const Json& value, const FieldContext& at, ApiRequest& out) -> std::optional<ApiError> {
        if (!value.is_array() || value.empty()) {
          return wrong_value(at, "a list of messages, at least one", value);
        }
        out.messages = value;
        return std::nullopt;
      }};
}

Reader logit_bias_reader() {
  const std::string takes = R"({"token id": number from -100 to 100})";
  return {
      takes,
      [=](const Json& value, const FieldContext& at, ApiRequest& out) -> std::optional<ApiError> {
        if (!value.is_object()) return wrong_value(at, takes, value);
        for (const auto& [key, bias] : value.items()) {
          const bool digits =
              !key.empty() && key.size() <= 9 && (key == "0" || key[0] != '0') &&
              std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
          if (!digits) return bad_field(at.path, "token ids as names", excerpt(Json(key)));
          const double b = double_of(bias).value_or(1000);
          if (!(b >= -100 && b <= 100)) {
            return wrong_value({at.path + "." + key, at.limits}, "a number from -100 to 100", bias);
          }
          out.sampling.logit_bias.push_back({std::stoi(key), static_cast<float>(b)});
        }
        return std::nullopt;
      }};
}

Reader allowed_tokens_reader() {
  const Reader ids = token_ids(
      [](ApiRequest& r, std::vector<std::int32_t> list) { r.allowed_token_ids = std::move(list); });
  return {ids.takes,
          [read = ids.read](const Json& value, const FieldContext& at,
                            ApiRequest& out) -> std::optional<ApiError> {
            if (auto wrong = read(value, at, out)) return wrong;
            if (!out.allowed_token_ids.empty()) return std::nullopt;
            return bad_field(at.path, "at least one token", "[]");
          }};
}

Reader truncate_reader() {
  const std::string takes = "-1, or an integer from 1 to 2147483647";
  return {
      takes,
      [=](const Json& value, const FieldContext& at, ApiRequest& out) -> std::optional<ApiError> {
        const auto i = integer_of(value, -1, std::numeric_limits<std::int32_t>::max());
        if (!i || *i == 0) return wrong_value(at, takes, value);
        out.truncate_prompt_tokens = static_cast<std::int32_t>(*i);
        return std::nullopt;
      }};
}

Reader seed_reader() {
  constexpr auto least = std::numeric_limits<std::int64_t>::min();
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  return integer(least, most, [](ApiRequest& r, std::int64_t i) {
    if (i != -1) r.sampling.seed = static_cast<std::uint64_t>(i);  // as in vLLM and llama.cpp
  });
}

Reader limited(std::string takes, std::int64_t least, std::int32_t FieldLimits::*most,
               std::string flag, std::function<void(ApiRequest&, std::int32_t)> set) {
  return {
      std::move(takes),
      [=](const Json& value, const FieldContext& at, ApiRequest& out) -> std::optional<ApiError> {
        const auto i = integer_of(value, least, at.limits.*most);
        if (!i) {
          return wrong_value(at, fmt::format("an integer from {} to {}", least, at.limits.*most),
                             value, flag);
        }
        set(out, static_cast<std::int32_t>(*i));
        return std::nullopt;
      }};
}

Reader text_logprobs_reader() {
  const Reader count = limited("an integer from 0 to --max-logprobs", 0, &FieldLimits::max_logprobs,
                               "--max-logprobs", [](ApiRequest& r, std::int32_t i) {
                                 r.logprobs = true;
                                 r.top_logprobs = i;
                               });
  return {count.takes,
          [read = count.read](const Json& value, const FieldContext& at,
                              ApiRequest& out) -> std::optional<ApiError> {
            if (!value.is_boolean()) return read(value, at, out);
            out.logprobs = value.get<bool>();
            if (out.logprobs) out.top_logprobs = 1;
            return std::nullopt;
          }};
}

Reader stream_options_reader() {
  return {
      "{include_usage, continuous_usage_stats}",
      [](const Json& value, const FieldContext& at, ApiRequest& out) -> std::optional<ApiError> {
        if (!value.is_object()) return wrong_value(at, "an object", value);
        out.has_stream_options = true;
        for (const auto& [name, option] : value.items()) {
          if (option.is_null()) continue;
          const FieldContext here{at.path + "." + name, at.limits};
          bool* const into = name == "include_usage"            ? &out.include_usage
                             : name == "continuous_usage_stats" ? &out.continuous_usage
                                                                : nullptr;
          if (into == nullptr) {
            out.ignored.push_back(here.path);
            continue;
          }
          if (!option.is_boolean()) return wrong_value(here, "true or false", option);
          *into = option.get<bool>();
        }
        return std::nullopt;
      }};
}

Reader sampling_params_reader() {
  return {
      "an object, or a list of one for each prompt",
      [](const Json& value, const FieldContext& at, ApiRequest& out) -> std::optional<ApiError> {
        if (value.is_object()) {
          return read_fields(value, fields_of(kInSampling), at.path + ".", at.limits, out);
        }
        if (!value.is_array() || value.empty()) {
          return wrong_value(at, "an object, or a list of one for each prompt", value);
        }
        for (std::size_t i = 0; i < value.size(); ++i) {
          const std::string path = fmt::format("{}[{}]", at.path, i);
          if (!value[i].is_object()) return wrong_value({path, at.limits}, "an object", value[i]);
          ApiRequest one;
          if (auto wrong =
                  read_fields(value[i], fields_of(kInSampling), path + ".", at.limits, one)) {
            return wrong;
          }
          out.ignored.insert(out.ignored.end(), one.ignored.begin(), one.ignored.end());
          out.each.push_back(std::move(one));
        }
        out.n = out.each[0].n;
        return std::nullopt;
      }};
}

Reader template_kwargs_reader() {
  return {
      "an object",
      [](const Json& value, const FieldContext& at, ApiRequest& out) -> std::optional<ApiError> {
        if (!value.is_object()) return wrong_value(at, "an object", value);
        if (const auto own = own_variable(value, /*tools=*/true); !own.empty()) {
          return bad_field(fmt::format("{}.{}", at.path, own), std::string(kOtherVariables),
                           std::string(own));
        }
        out.template_kwargs = value;
        return std::nullopt;
      }};
}

Reader tools_reader() {
  return {
      "a list of functions",
      [](const Json& value, const FieldContext& at, ApiRequest& out) -> std::optional<ApiError> {
        if (!value.is_array()) return wrong_value(at, "a list of functions", value);
        for (std::size_t i = 0; i < value.size(); ++i) {
          const std::string path = fmt::format("{}[{}]", at.path, i);
          const Json& tool = value[i];
          if (!tool.is_object() || tool.value("type", Json()) != "function") {
            // Built-in tools of other servers, such as browser and code_interpreter.
            const Json type = tool.is_object() ? tool.value("type", Json()) : Json();
            return bad_field(path + ".type", "\"function\", as the server runs no tools itself",
                             excerpt(type.is_string() ? type : tool));
          }
          if (!tool.contains("function") || !tool["function"].is_object()) {
            return bad_field(path + ".function", "an object", excerpt(tool));
          }
          const Json& function = tool["function"];
          if (!function.contains("name") || !function["name"].is_string()) {
            return bad_field(path + ".function.name", "a string", excerpt(function));
          }
          const Json strict = function.value("strict", Json());
          if (!strict.is_null() && !strict.is_boolean()) {
            return bad_field(path + ".function.strict", "true or false", excerpt(strict));
          }
          // As in /v1/responses; here it belongs into the function.
          if (!tool.value("strict", Json()).is_null()) out.ignored.push_back(path + ".strict");
        }
        if (!value.empty()) out.tools = value;
        return std::nullopt;
      }};
}

Reader tool_choice_reader() {
  const std::string takes =
      R"("auto", "none", "required", {"type": "function", "function": {"name"}} or )"
      R"({"type": "allowed_tools", "allowed_tools": {"mode", "tools"}})";
  return {
      takes,
      [=](const Json& value, const FieldContext& at, ApiRequest& out) -> std::optional<ApiError> {
        const Json type = value.is_object() ? value.value("type", Json()) : Json();
        if (type == "allowed_tools") {
          const std::string path = at.path + ".allowed_tools";
          const Json allowed = value.value("allowed_tools", Json());
          if (!allowed.is_object()) {
            return wrong_value({path, at.limits}, R"({"mode", "tools"})", allowed);
          }
          note_unknown(value, {"type", "allowed_tools"}, at.path, out.ignored);
          note_unknown(allowed, {"mode", "tools"}, path, out.ignored);
          return read_allowed_tools(allowed, path, /*nested=*/true, out);
        }
        const bool word = value == "auto" || value == "none" || value == "required";
        const bool function = type == "function" && value.contains("function") &&
                              value["function"].is_object() &&
                              value["function"].value("name", Json()).is_string();
        if (!word && !function) return wrong_value(at, takes, value);
        if (function) {
          note_unknown(value, {"type", "function"}, at.path, out.ignored);
          note_unknown(value["function"], {"name"}, at.path + ".function", out.ignored);
        }
        out.tool_choice = value;
        return std::nullopt;
      }};
}

Reader rids_reader(std::size_t most, std::size_t most_bytes) {
  const Reader names =
      strings(most, most_bytes, false,
              [](ApiRequest& r, std::vector<std::string> s) { r.rids = std::move(s); });
  return {names.takes,
          [read = names.read](const Json& value, const FieldContext& at,
                              ApiRequest& out) -> std::optional<ApiError> {
            out.rid_list = value.is_array();
            return read(value, at, out);
          }};
}

Reader priority_reader() {
  const std::string takes = fmt::format("an integer from {} to {}", kLeastInt, kMostInt);
  return {
      takes,
      [=](const Json& value, const FieldContext& at, ApiRequest& out) -> std::optional<ApiError> {
        const auto i = integer_of(value, kLeastInt, kMostInt);
        if (!i) return wrong_value(at, takes, value);
        out.priority = static_cast<std::int32_t>(*i);
        if (out.priority == 0 || at.limits.priorities) return std::nullopt;
        return ApiError{400, "unsupported_field",
                        at.path + ": wanted 0, as requests are served in order of arrival, got " +
                            excerpt(value) + "; --scheduling-policy priority",
                        at.path};
      }};
}

}  // namespace lathe
