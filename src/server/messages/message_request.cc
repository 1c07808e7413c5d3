#include "server/messages/message_request.h"

#include <fmt/format.h>

#include <limits>

#include "server/messages/content_blocks.h"
#include "server/openai/constraint_fields.h"
#include "server/openai/field_readers.h"
#include "server/openai/object_reader.h"

namespace lathe::anthropic {
namespace {

using Json = nlohmann::ordered_json;
using Wrong = std::optional<ApiError>;

constexpr std::int64_t kAnyInt = std::numeric_limits<std::int32_t>::max();

// Chat's fields with the same name and meaning here; all but a few are no part of Anthropic's own.
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
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
    "stream",
    "chat_template_kwargs",
    "json_schema",
    "regex",
    "structured_outputs",
    "allowed_token_ids",
    "bad_words",
    "rid",
    "metadata",
    "service_tier",
    "priority",
    "cache_salt",
};

Wrong read_system(const Json& value, const FieldContext& at, ApiRequest& out) {
  auto text = read_block_texts(value, at.path, out.ignored);
  if (!text) return text.error();
  ChatHistory history(out.sources);
  if (!text->empty()) history.add("system", std::move(*text), at.path);
  out.messages = history.take();
  return std::nullopt;
}

Wrong read_messages(const Json& value, const FieldContext& at, ApiRequest& out) {
  if (!value.is_array() || value.empty()) {
    return wrong_value(at, "a list of messages, at least one", value);
  }
  ChatHistory history(out.sources);
  if (out.messages.is_array() && !out.messages.empty()) {
    history.add("system", out.messages[0]["content"], "system");
  }
  if (auto wrong = read_content_blocks(value, at.path, history, out)) return wrong;
  out.continue_final_message = history.ends_with_answer();
  out.sources.add("continue_final_message",
                  fmt::format("{}[{}].content", at.path, value.size() - 1));
  out.messages = history.take();
  return std::nullopt;
}

// {"name", "description", "input_schema"} of a list, in chat's form.
Wrong read_tool(const Json& tools, const Json& tool, const FieldContext& at, ApiRequest& out) {
  if (!tool.is_object()) return wrong_value(at, "a tool", tool);
  const Json type = tool.value("type", Json());
  if (!type.is_null() && type != "custom") {
    return leave_out_tool(tools, type, at.path, {"custom"}, "\"custom\" or none", out);
  }
  const Json schema = tool.value("input_schema", Json());
  if (!schema.is_object()) {
    return bad_field(at.path + ".input_schema", "a JSON schema",
                     schema.is_null() ? "nothing" : excerpt(schema));
  }
  note_unknown(tool, {"type", "name", "description", "input_schema", "strict", "cache_control"},
               at.path, out.ignored);
  return add_function(tool, "input_schema", at.path, out);
}

Wrong read_tools(const Json& value, const FieldContext& at, ApiRequest& out) {
  if (!value.is_array()) return wrong_value(at, "a list of tools", value);
  for (std::size_t i = 0; i < value.size(); ++i) {
    const std::string path = fmt::format("{}[{}]", at.path, i);
    if (auto wrong = read_tool(value, value[i], {path, at.limits}, out)) return wrong;
  }
  return std::nullopt;
}

Wrong read_tool_choice(const Json& value, const FieldContext& at, ApiRequest& out) {
  if (!value.is_object()) return wrong_value(at, "{\"type\"}", value);
  const Json type = value.value("type", Json());
  if (type == "auto" || type == "none") {
    out.tool_choice = type;
  } else if (type == "any") {
    out.tool_choice = "required";
  } else if (type == "tool") {
    auto name = read_string(value, "name", at.path);
    if (!name) return name.error();
    out.tool_choice = {{"type", "function"}, {"function", {{"name", *name}}}};
    out.sources.add_copy("tool_choice.function", at.path);
  } else {
    return not_offered(at.path + ".type", R"("auto", "any", "tool" or "none")", type);
  }
  note_unknown(value, {"type", "name", "disable_parallel_tool_use"}, at.path, out.ignored);
  const Json one = value.value("disable_parallel_tool_use", Json());
  if (one.is_null()) return std::nullopt;
  if (!one.is_boolean()) {
    return bad_field(at.path + ".disable_parallel_tool_use", "true or false", excerpt(one));
  }
  out.parallel_tool_calls = !one.get<bool>();
  return std::nullopt;
}

// Templates read the switch as enable_thinking (Qwen, GLM) or thinking (DeepSeek).
Wrong read_thinking(const Json& value, const FieldContext& at, ApiRequest& out) {
  if (!value.is_object()) return wrong_value(at, "{\"type\"}", value);
  const Json type = value.value("type", Json());
  if (type != "enabled" && type != "disabled" && type != "adaptive") {
    return not_offered(at.path + ".type", R"("enabled", "adaptive" or "disabled")", type);
  }
  const Json budget = value.value("budget_tokens", Json());
  if (type == "enabled" && budget.is_null()) {
    return bad_field(at.path + ".budget_tokens", "an integer, 1 or more", "nothing",
                     R"(or type "adaptive")");
  }
  if (!budget.is_null() && !integer_of(budget, 1, kAnyInt)) {
    return bad_field(at.path + ".budget_tokens", wanted_integer(budget, 1, kAnyInt),
                     excerpt(budget));
  }
  if (type == "disabled" && !budget.is_null()) {
    out.idle.push_back(at.path + ".budget_tokens");
  } else if (const auto tokens = integer_of(budget, 1, kAnyInt)) {
    out.thinking_budget = static_cast<std::int32_t>(*tokens);
  }
  note_unknown(value, {"type", "budget_tokens"}, at.path, out.ignored);
  if (out.template_kwargs.is_null()) out.template_kwargs = Json::object();
  const bool thinks = type != "disabled";
  bool differs = false;
  for (const char* name : {"enable_thinking", "thinking"}) {
    Json& variable = out.template_kwargs[name];
    if (variable.is_null()) {
      variable = thinks;
      out.sources.add(fmt::format("chat_template_kwargs.{}", name), at.path + ".type");
    }
    // The template's own variable goes first.
    if (variable.is_boolean() && variable.get<bool>() != thinks) differs = true;
  }
  if (differs) out.idle.push_back(at.path + ".type");
  return std::nullopt;
}

Wrong read_output_format(const Json& value, const FieldContext& at, ApiRequest& out) {
  if (!value.is_object()) return wrong_value(at, "an object", value);
  const Json type = value.value("type", Json());
  if (type != "json_schema") return not_offered(at.path + ".type", "\"json_schema\"", type);
  grammar::Source source;
  source.kind = grammar::Source::Kind::json_schema;
  source.path = at.path + ".schema";
  source.schema = value.value("schema", Json());
  if (!source.schema.is_object() && !source.schema.is_boolean()) {
    return bad_field(source.path, "a JSON schema", excerpt(source.schema));
  }
  note_unknown(value, {"type", "schema"}, at.path, out.ignored);
  return set_constraint(std::move(source), out);
}

Wrong read_output_config(const Json& value, const FieldContext& at, ApiRequest& out) {
  if (!value.is_object()) return wrong_value(at, "an object", value);
  note_unknown(value, {"effort", "format"}, at.path, out.ignored);
  const Json effort = value.value("effort", Json());
  const std::string effort_path = at.path + ".effort";
  if (!effort.is_null()) {
    if (auto wrong = chat_field("reasoning_effort").read(effort, {effort_path, at.limits}, out)) {
      return wrong;
    }
  }
  const Json format = value.value("format", Json());
  if (format.is_null()) return std::nullopt;
  const std::string format_path = at.path + ".format";
  return read_output_format(format, {format_path, at.limits}, out);
}

Field own(std::string_view name, std::string takes, std::string_view absent, std::string_view note,
          FieldRead read) {
  return {name, 0, std::move(takes), absent, note, std::move(read)};
}

Field from(std::string_view name, Reader reader, std::string_view absent, std::string_view note) {
  return own(name, std::move(reader.takes), absent, note, std::move(reader.read));
}

FieldTable make_fields() {
  FieldTable out;
  out.push_back(own("system", "text, or a list of text blocks", "none", "", read_system));
  out.push_back(own("messages", "a list of messages, at least one", "required",
                    "blocks text, tool_use, tool_result, thinking; a last one of the assistant's "
                    "is continued",
                    read_messages));
  out.push_back(from(
      "max_tokens",
      integer(1, kAnyInt,
              [](ApiRequest& r, std::int64_t i) { r.max_tokens = static_cast<std::int32_t>(i); }),
      "required", "the context may end an answer before"));
  out.push_back(
      from("stop_sequences",
           strings(32, 1024, false, [](ApiRequest& r, std::vector<std::string> s) { r.stop = s; }),
           "none", "text that ends the answer and is cut from it"));
  out.push_back(own("tools", R"(a list of {"name", "description", "input_schema"})", "none",
                    "of a model whose template has tools", read_tools));
  out.push_back(own("tool_choice",
                    R"({"type": "auto", "any", "tool" or "none", "disable_parallel_tool_use"})",
                    "auto", "", read_tool_choice));
  out.push_back(own("output_config", R"({"format": {"type": "json_schema", "schema"}, "effort"})",
                    "none", "", read_output_config));
  for (const std::string_view name : kOfChat) out.push_back(chat_field(name));
  out.push_back(own("thinking", R"({"type": "enabled", "adaptive" or "disabled", "budget_tokens"})",
                    "the template's",
                    "sets enable_thinking and thinking of the template; the budget ends reasoning",
                    read_thinking));
  out.push_back(own("output_format", R"({"type": "json_schema", "schema"})", "none",
                    "as format of output_config", read_output_format));
  out.push_back(own("context_management", "an object", "none",
                    "no effect: the template decides what a prompt has of earlier turns",
                    [](const Json& value, const FieldContext& at, ApiRequest& r) -> Wrong {
                      if (!value.is_object()) return wrong_value(at, "an object", value);
                      r.idle.push_back(at.path);
                      return std::nullopt;
                    }));
  for (const char* name : {"container", "mcp_servers"}) {
    out.push_back(from(name, unsupported("this server does not support it"), "", "400"));
  }
  return out;
}

}  // namespace

const FieldTable& fields() {
  static const FieldTable fields = make_fields();
  return fields;
}

Result<ApiRequest, ApiError> parse_request(std::string_view body, const FieldLimits& limits,
                                           bool counts) {
  const auto json = parse_body(body);
  if (!json) return json.error();
  ApiRequest out;
  out.route = ApiRoute::messages;
  out.sources.add("reasoning_effort", "output_config.effort");
  if (auto wrong = read_fields(*json, fields(), "", limits, out)) return *wrong;
  if (auto wrong = refuse_ignored(out, fields(), limits)) return *wrong;
  if (json->value("messages", Json()).is_null()) {
    return ApiError{400, "missing_field", "messages: wanted a list of messages, got nothing",
                    "messages"};
  }
  if (!counts && !out.max_tokens) {
    return ApiError{400, "missing_field", "max_tokens: wanted an integer, 1 or more, got nothing",
                    "max_tokens"};
  }
  if (auto wrong = check_effort(out, "output_config.effort")) return *wrong;
  if (auto wrong = check_lengths(out)) return *wrong;
  if (auto wrong = check_tools(out)) return *wrong;
  if (auto wrong = check_rids(out)) return *wrong;
  return out;
}

}  // namespace lathe::anthropic
