#include "server/markup/tool_format.h"

#include <algorithm>

#include "base/json.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kParameter = "<｜DSML｜parameter";
constexpr std::string_view kEndParameter = "</｜DSML｜parameter>";

std::string_view trim(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kJsonSpace);
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(kJsonSpace) - first + 1);
}

// Removes the front of `text` up to and including `mark`; returns the text before the mark.
std::optional<std::string_view> take_until(std::string_view& text, std::string_view mark) {
  const std::size_t at = text.find(mark);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view out = text.substr(0, at);
  text.remove_prefix(at + mark.size());
  return out;
}

std::optional<Json> object_of(std::string_view text) {
  Json json = read_json<Json>(text);
  if (!json.is_object()) return std::nullopt;
  return json;
}

bool is_tool(const Json& tools, std::string_view name) {
  for (const Json& t : tools) {
    if (t.is_object() && t.contains("function") && t["function"].is_object() &&
        t["function"].value("name", "") == name) {
      return true;
    }
  }
  return false;
}

// The schema of a tool's argument, or null.
const Json* schema_of(const Json& tools, std::string_view tool, std::string_view argument) {
  for (const Json& t : tools) {
    if (!t.is_object() || !t.contains("function")) continue;
    const Json& f = t["function"];
    if (!f.is_object() || f.value("name", "") != tool || !f.contains("parameters")) continue;
    const Json& parameters = f["parameters"];
    if (!parameters.is_object() || !parameters.contains("properties")) continue;
    const Json& properties = parameters["properties"];
    const std::string name(argument);
    if (properties.is_object() && properties.contains(name)) return &properties[name];
  }
  return nullptr;
}

// Whether the schema says string. Without a schema loose_value() decides by the text.
bool is_string(const Json& tools, std::string_view tool, std::string_view argument) {
  const Json* schema = schema_of(tools, tool, argument);
  return schema != nullptr && schema->is_object() && schema->contains("type") &&
         (*schema)["type"] == "string";
}

// A value without quotes: a string where the schema says so, or where it is not JSON.
Json loose_value(const Json& tools, std::string_view tool, std::string_view argument,
                 std::string_view text) {
  if (is_string(tools, tool, argument)) return std::string(text);
  Json json = read_json<Json>(text);
  return json.is_discarded() ? Json(std::string(text)) : json;
}

std::optional<ToolCall> read_json_call(std::string_view body) {
  const auto json = object_of(body);
  if (!json || !json->contains("name") || !(*json)["name"].is_string()) return std::nullopt;
  Json arguments = json->contains("arguments")    ? (*json)["arguments"]
                   : json->contains("parameters") ? (*json)["parameters"]
                                                  : Json::object();
  if (arguments.is_string()) {
    const auto inner = object_of(arguments.get_ref<const std::string&>());
    if (!inner) return std::nullopt;
    arguments = *inner;
  }
  if (!arguments.is_object()) return std::nullopt;
  return ToolCall{(*json)["name"].get<std::string>(), json_text(arguments)};
}

std::optional<ToolCall> read_function_call(std::string_view body, const Json& tools) {
  if (!take_until(body, "<function=")) return std::nullopt;
  const auto name = take_until(body, ">");
  if (!name) return std::nullopt;
  Json arguments = Json::object();
  while (take_until(body, "<parameter=")) {
    const auto key = take_until(body, ">");
    if (!key) return std::nullopt;
    auto value = take_until(body, "</parameter>");
    if (!value) return std::nullopt;
    // The template puts the value on lines of its own.
    if (value->starts_with('\n')) value->remove_prefix(1);
    if (value->ends_with('\n')) value->remove_suffix(1);
    arguments[std::string(trim(*key))] = loose_value(tools, trim(*name), trim(*key), *value);
  }
  return ToolCall{std::string(trim(*name)), json_text(arguments)};
}

std::optional<ToolCall> read_pairs_call(std::string_view body, const Json& tools) {
  const std::size_t first = body.find("<arg_key>");
  const std::string name(trim(body.substr(0, first)));
  // The format allows any word as a name, so require a tool's.
  if (!is_tool(tools, name)) return std::nullopt;
  Json arguments = Json::object();
  while (take_until(body, "<arg_key>")) {
    const auto key = take_until(body, "</arg_key>");
    if (!key || !take_until(body, "<arg_value>")) return std::nullopt;
    const auto value = take_until(body, "</arg_value>");
    if (!value) return std::nullopt;
    arguments[std::string(trim(*key))] = loose_value(tools, name, trim(*key), *value);
  }
  return ToolCall{name, json_text(arguments)};
}

std::optional<ToolCall> read_deepseek_call(std::string_view body) {
  const auto first = take_until(body, "<｜tool▁sep｜>");
  if (!first) return std::nullopt;
  std::string_view name = trim(*first);
  if (const std::size_t fence = body.find("```json"); fence != std::string_view::npos) {
    if (name != "function") return std::nullopt;
    name = trim(body.substr(0, fence));
    body.remove_prefix(fence + 7);
    body = body.substr(0, body.rfind("```"));
  }
  const auto arguments = object_of(trim(body));
  if (!arguments || name.empty()) return std::nullopt;
  return ToolCall{std::string(name), json_text(*arguments)};
}

// A parameter's value. If the string attribute is missing, the schema decides.
std::optional<Json> dsml_value(const Json& tools, std::string_view tool, std::string_view key,
                               std::string_view mark, std::string_view text) {
  if (mark == "string=\"true\"") return std::string(text);
  if (mark.empty()) return loose_value(tools, tool, key, text);
  if (mark != "string=\"false\"") return std::nullopt;
  Json json = read_json<Json>(text);
  if (!json.is_discarded()) return json;
  if (!is_string(tools, tool, key)) return std::nullopt;
  return std::string(text);
}

// Unwraps {"arguments": {...}}, unless the tool has an argument of that name.
Json without_wrapper(Json arguments, const Json& tools, std::string_view tool) {
  if (arguments.size() != 1 || !arguments.contains("arguments")) return arguments;
  if (schema_of(tools, tool, "arguments") != nullptr) return arguments;
  Json& inner = arguments["arguments"];
  if (inner.is_object()) return inner;
  if (!inner.is_string()) return arguments;
  auto parsed = object_of(inner.get_ref<const std::string&>());
  return parsed ? std::move(*parsed) : arguments;
}

// Accepts parameters alone, each once, or one JSON object.
std::optional<ToolCall> read_dsml_call(std::string_view body, const Json& tools) {
  const auto name = take_until(body, "\"");
  const auto rest = name ? take_until(body, ">") : std::nullopt;
  if (!rest || !trim(*rest).empty()) return std::nullopt;
  Json arguments = Json::object();
  if (auto whole = object_of(trim(body))) {
    arguments = std::move(*whole);
    body = "";
  }
  while (const auto gap = take_until(body, kParameter)) {
    const auto front = take_until(body, "name=\"");
    const auto key = front ? take_until(body, "\"") : std::nullopt;
    const auto mark = key ? take_until(body, ">") : std::nullopt;
    const auto text = mark ? take_until(body, kEndParameter) : std::nullopt;
    if (!text || !trim(*gap).empty() || !trim(*front).empty()) return std::nullopt;
    auto value = dsml_value(tools, *name, *key, trim(*mark), *text);
    if (!value || arguments.contains(std::string(*key))) return std::nullopt;
    arguments[std::string(*key)] = std::move(*value);
  }
  if (!trim(body).empty()) return std::nullopt;
  arguments = without_wrapper(std::move(arguments), tools, *name);
  return ToolCall{std::string(*name), json_text(arguments)};
}

}  // namespace

ToolFormat find_tool_format(std::string_view chat_template) {
  const auto has = [&](std::string_view mark) {
    return chat_template.find(mark) != std::string_view::npos;
  };
  if (has("｜DSML｜")) return ToolFormat::dsml;
  if (has("<｜tool▁sep｜>")) return ToolFormat::deepseek;
  if (has("<tool_call>")) return ToolFormat::tag;
  return ToolFormat::none;
}

ToolMarks tool_marks(ToolFormat format) {
  switch (format) {
    case ToolFormat::none:
      return {};
    case ToolFormat::tag:
      return {"<tool_call>", "</tool_call>", {}};
    case ToolFormat::deepseek:
      return {"<｜tool▁call▁begin｜>",
              "<｜tool▁call▁end｜>",
              {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"}};
    case ToolFormat::dsml:
      return {"<｜DSML｜invoke name=\"",
              "</｜DSML｜invoke>",
              {"<｜DSML｜function_calls>", "</｜DSML｜function_calls>", "<｜DSML｜tool_calls>",
               "</｜DSML｜tool_calls>",
               // V4's misspellings seen in practice.
               "<｜DSML｜toolcalls>", "</｜DSML｜toolcalls>", "<｜DSML｜tool>", "</｜DSML｜tool>"}};
  }
  return {};
}

std::size_t find_call_end(ToolFormat format, std::string_view text, std::size_t& from) {
  const std::string_view mark = tool_marks(format).end;
  for (;;) {
    const std::size_t end = text.find(mark, from);
    const std::size_t open =
        format == ToolFormat::dsml ? text.find(kParameter, from) : std::string_view::npos;
    if (open >= end) {  // neither, or the end first
      if (end == std::string_view::npos) {
        const std::size_t kept = std::max(mark.size(), kParameter.size());
        from = std::max(from, text.size() - std::min(text.size(), kept));
      }
      return end;
    }
    const std::size_t shut = text.find(kEndParameter, open);
    if (shut == std::string_view::npos) {
      from = open;
      return shut;
    }
    from = shut + kEndParameter.size();
  }
}

std::optional<ToolCall> read_tool_call(ToolFormat format, std::string_view body,
                                       const Json& tools) {
  switch (format) {
    case ToolFormat::none:
      return std::nullopt;
    case ToolFormat::deepseek:
      return read_deepseek_call(body);
    case ToolFormat::dsml:
      return read_dsml_call(body, tools);
    case ToolFormat::tag:
      break;
  }
  const std::string_view inner = trim(body);
  if (inner.starts_with('{')) return read_json_call(inner);
  if (inner.starts_with("<function=")) return read_function_call(inner, tools);
  return read_pairs_call(inner, tools);
}

}  // namespace lathe
