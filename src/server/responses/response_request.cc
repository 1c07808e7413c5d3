#include "server/responses/response_request.h"

#include <fmt/format.h>

#include <limits>

#include "server/openai/allowed_tools.h"
#include "server/openai/constraint_fields.h"
#include "server/openai/field_readers.h"
#include "server/openai/object_reader.h"
#include "server/responses/input_items.h"
#include "server/responses/tools.h"

namespace lathe::responses_api {
namespace {

using Json = nlohmann::ordered_json;
using Wrong = std::optional<ApiError>;

constexpr std::string_view kKeepsNothing = "this server keeps no responses";

// Chat's fields with the same name and meaning here; all but a few are no part of OpenAI's own.
constexpr std::string_view kOfChat[] = {
    "model",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "min_tokens",
    "stop",
    "include_stop_str_in_output",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
    "stream",
    "parallel_tool_calls",
    "chat_template_kwargs",
    "json_schema",
    "regex",
    "structured_outputs",
    "allowed_token_ids",
    "bad_words",
    "rid",
    "request_id",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "service_tier",
    "metadata",
    "priority",
    "cache_salt",
};

// What the answer repeats of its request.
constexpr const char* kEchoed[] = {
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "reasoning",
    "temperature",
    "parallel_tool_calls",
    "text",
    "tools",
    "tool_choice",
    "top_p",
    "user",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
};

Wrong read_tool_choice(const Json& value, const FieldContext& at, ApiRequest& out) {
  if (value == "auto" || value == "none" || value == "required") {
    out.tool_choice = value;
    return std::nullopt;
  }
  const Json type = value.is_object() ? value.value("type", Json()) : Json();
  if (type == "allowed_tools") {
    note_unknown(value, {"type", "mode", "tools"}, at.path, out.ignored);
    return read_allowed_tools(value, at.path, /*nested=*/false, out);
  }
  if (type != "function" && type != "custom") {
    return not_offered(at.path,
                       R"("auto", "none", "required", {"type": "function", "name"} or )"
                       R"({"type": "allowed_tools", "mode", "tools"})",
                       value);
  }
  note_unknown(value, {"type", "name"}, at.path, out.ignored);
  auto name = read_string(value, "name", at.path);
  if (!name) return name.error();
  out.tool_choice = {{"type", "function"}, {"function", {{"name", *name}}}};
  out.sources.add_copy("tool_choice.function", at.path);
  return std::nullopt;
}

// A tool is named with its own kind.
Wrong check_kind(const Json& named, const std::string& path, const ApiRequest& r) {
  const Json type = named.value("type", Json());
  if (type != "function" && type != "custom") return std::nullopt;
  const std::string name = named["name"].get<std::string>();
  const auto other = r.other_tools.find(name);
  const char* kind = other != r.other_tools.end() && other->second.custom ? "custom" : "function";
  if (type == kind) return std::nullopt;
  return bad_field(path + ".type", fmt::format("\"{}\", as the tool {} is", kind, excerpt(name)),
                   excerpt(type));
}

Wrong check_kinds(const Json& choice, const ApiRequest& r) {
  if (!choice.is_object()) return std::nullopt;
  if (auto wrong = check_kind(choice, "tool_choice", r)) return wrong;
  const Json tools = choice.value("tools", Json::array());
  for (std::size_t i = 0; i < tools.size() && !r.allowed_tools.empty(); ++i) {
    if (auto wrong = check_kind(tools[i], fmt::format("tool_choice.tools[{}]", i), r)) return wrong;
  }
  return std::nullopt;
}

Wrong read_format(const Json& format, const FieldContext& at, ApiRequest& out) {
  if (!format.is_object()) return wrong_value(at, "an object", format);
  const Json type = format.value("type", Json());
  if (type == "text" || type == "json_object") note_unknown(format, {"type"}, at.path, out.ignored);
  if (type == "text") return std::nullopt;
  grammar::Source source;
  source.path = at.path;
  if (type == "json_schema") {
    source.kind = grammar::Source::Kind::json_schema;
    source.path += ".schema";
    source.schema = format.value("schema", Json());
    note_unknown(format, {"type", "name", "schema", "strict", "description"}, at.path, out.ignored);
    if (auto wrong = check_format_words(format, at.path)) return wrong;
    if (!source.schema.is_object() && !source.schema.is_boolean()) {
      return bad_field(source.path, "a JSON schema", excerpt(source.schema));
    }
  } else if (type != "json_object") {
    return not_offered(at.path + ".type", R"("text", "json_object" or "json_schema")", type);
  }
  return set_constraint(std::move(source), out);
}

// A word of OpenAI's that has no effect.
Wrong note_idle(const Json& object, const char* name, const std::string& path, ApiRequest& out) {
  const auto text = read_optional_string(object, name, path);
  if (!text) return text.error();
  if (!text->empty()) out.idle.push_back(path + "." + name);
  return std::nullopt;
}

Wrong read_text(const Json& value, const FieldContext& at, ApiRequest& out) {
  if (!value.is_object()) return wrong_value(at, "an object", value);
  note_unknown(value, {"format", "verbosity"}, at.path, out.ignored);
  if (auto wrong = note_idle(value, "verbosity", at.path, out)) return wrong;
  const Json format = value.value("format", Json());
  if (format.is_null()) return std::nullopt;
  return read_format(format, {at.path + ".format", at.limits}, out);
}

Wrong read_reasoning(const Json& value, const FieldContext& at, ApiRequest& out) {
  if (!value.is_object()) return wrong_value(at, "an object", value);
  note_unknown(value, {"effort", "summary", "generate_summary"}, at.path, out.ignored);
  for (const char* name : {"summary", "generate_summary"}) {
    if (auto wrong = note_idle(value, name, at.path, out)) return wrong;
  }
  const Json effort = value.value("effort", Json());
  if (effort.is_null()) return std::nullopt;
  const std::string path = at.path + ".effort";
  return chat_field("reasoning_effort").read(effort, {path, at.limits}, out);
}

// The other things that may be included belong to tools that this server lacks.
Wrong read_include(const Json& value, const FieldContext& at, ApiRequest& out) {
  if (!value.is_array()) return wrong_value(at, "a list of names", value);
  for (std::size_t i = 0; i < value.size(); ++i) {
    const std::string path = fmt::format("{}[{}]", at.path, i);
    if (!value[i].is_string()) return wrong_value({path, at.limits}, "a name", value[i]);
    if (value[i] == "message.output_text.logprobs") {
      return not_offered(path, "no log-probabilities", value[i], "/v1/chat/completions has them");
    }
    out.encode_reasoning = out.encode_reasoning || value[i] == "reasoning.encrypted_content";
  }
  return std::nullopt;
}

Wrong read_truncation(const Json& value, const FieldContext& at, ApiRequest&) {
  if (value == "disabled") return std::nullopt;
  return not_offered(at.path, "\"disabled\"", value, "this server shortens no input");
}

Wrong read_options(const Json& value, const FieldContext& at, ApiRequest& out) {
  if (!value.is_object()) return wrong_value(at, "an object", value);
  note_unknown(value, {"include_obfuscation"}, at.path, out.ignored);
  return std::nullopt;
}

Field own(std::string_view name, std::string takes, std::string_view absent, std::string_view note,
          FieldRead read) {
  return {name, 0, std::move(takes), absent, note, std::move(read)};
}

Field from(std::string_view name, Reader reader, std::string_view absent, std::string_view note) {
  return {name, 0, std::move(reader.takes), absent, note, std::move(reader.read)};
}

FieldTable make_fields() {
  FieldTable out;
  out.push_back(own("instructions", "text", "none", "the first system message",
                    [](const Json& value, const FieldContext& at, ApiRequest& r) -> Wrong {
                      if (!value.is_string()) return wrong_value(at, "text", value);
                      ChatHistory history(r.sources);
                      history.add("system", value.get<std::string>(), at.path);
                      r.messages = history.take();
                      return std::nullopt;
                    }));
  out.push_back(own("input", "text, or a list of items, at least one", "required",
                    "message, function_call, custom_tool_call, their outputs, reasoning, "
                    "additional_tools; text alone",
                    [](const Json& value, const FieldContext& at, ApiRequest& r) -> Wrong {
                      ChatHistory history(r.sources);
                      if (r.messages.is_array()) {
                        history.add("system", r.messages[0]["content"], "instructions");
                      }
                      if (auto wrong = read_input_items(value, at.path, history, r)) {
                        return wrong;
                      }
                      r.messages = history.take();
                      return std::nullopt;
                    }));
  out.push_back(from(
      "max_output_tokens",
      integer(1, std::numeric_limits<std::int32_t>::max(),
              [](ApiRequest& r, std::int64_t i) { r.max_tokens = static_cast<std::int32_t>(i); }),
      "rest of context", ""));
  out.push_back(own("tools",
                    R"(a list of {"type": "function", "custom" or "namespace", "name", ...})",
                    "none", "of a model whose template has tools",
                    [](const Json& value, const FieldContext& at, ApiRequest& r) {
                      return read_tools(value, at.path, r);
                    }));
  out.push_back(own("tool_choice",
                    R"("auto", "none", "required", {"type": "function", "name"} or )"
                    R"({"type": "allowed_tools", "mode", "tools"})",
                    "auto", "", read_tool_choice));
  out.push_back(own("text", R"({"format": {"type": "text", "json_object" or "json_schema"}})",
                    "text", "", read_text));
  out.push_back(own("reasoning", R"({"effort"})", "the template's", "a variable of the template",
                    read_reasoning));
  for (const std::string_view name : kOfChat) out.push_back(chat_field(name));
  out.push_back(
      own("include", "a list of names", "none",
          "\"reasoning.encrypted_content\": the reasoning's text in base64; others: no effect",
          read_include));
  out.push_back(own("stream_options", "{include_obfuscation}", "{}", "no effect", read_options));
  out.push_back(own("truncation", "\"disabled\"", "disabled", "", read_truncation));
  out.push_back(from("max_tool_calls", unread(), "", "no effect: of OpenAI's own tools"));
  out.push_back(from("prompt_cache_retention", unread(), "", "no effect"));
  for (const char* name : {"store", "previous_response_id", "conversation", "background"}) {
    out.push_back(from(name, unsupported(std::string(kKeepsNothing)), "", "400"));
  }
  for (const char* name : {"top_logprobs", "prompt", "context_management", "moderation"}) {
    out.push_back(from(name, unsupported("this server does not support it"), "", "400"));
  }
  return out;
}

}  // namespace

const FieldTable& fields() {
  static const FieldTable fields = make_fields();
  return fields;
}

Result<ApiRequest, ApiError> parse_request(std::string_view body, const FieldLimits& limits) {
  const auto json = parse_body(body);
  if (!json) return json.error();
  ApiRequest out;
  out.route = ApiRoute::responses;
  out.sources.add("messages", "input");
  out.sources.add("reasoning_effort", "reasoning.effort");
  if (auto wrong = read_fields(*json, fields(), "", limits, out)) return *wrong;
  if (auto wrong = refuse_ignored(out, fields(), limits)) return *wrong;
  if (json->value("input", Json()).is_null()) {
    return ApiError{400, "missing_field", "input: wanted text or items, got nothing", "input"};
  }
  if (auto wrong = check_effort(out, "reasoning.effort")) return *wrong;
  if (auto wrong = check_lengths(out)) return *wrong;
  if (auto wrong = check_tools(out)) return *wrong;
  if (auto wrong = check_kinds(json->value("tool_choice", Json()), out)) return *wrong;
  if (auto wrong = check_rids(out)) return *wrong;
  out.echoed = Json::object();
  for (const char* name : kEchoed) {
    const auto value = json->find(name);
    if (value != json->end() && !value->is_null()) out.echoed[name] = *value;
  }
  return out;
}

}  // namespace lathe::responses_api
