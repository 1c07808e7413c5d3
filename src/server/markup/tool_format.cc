#include "server/markup/tool_format.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kSpace = " \t\r\n";

std::string_view trim(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

// Takes what stands before `mark` off the front of `text`, and the mark.
std::optional<std::string_view> take_until(std::string_view& text, std::string_view mark) {
  const std::size_t at = text.find(mark);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view out = text.substr(0, at);
  text.remove_prefix(at + mark.size());
  return out;
}

std::optional<Json> object_of(std::string_view text) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  return json;
}

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
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

// Whether a tool's schema says that an argument is a string; unknown ones are judged by their text.
bool is_string(const Json& tools, std::string_view tool, std::string_view argument) {
  for (const Json& t : tools) {
    if (!t.is_object() || !t.contains("function")) continue;
    const Json& f = t["function"];
    if (!f.is_object() || f.value("name", "") != tool || !f.contains("parameters")) continue;
    const Json& parameters = f["parameters"];
    if (!parameters.is_object() || !parameters.contains("properties")) continue;
    const Json& properties = parameters["properties"];
    const std::string name(argument);
    if (!properties.is_object() || !properties.contains(name)) continue;
    const Json& schema = properties[name];
    return schema.is_object() && schema.contains("type") && schema["type"] == "string";
  }
  return false;
}

// A value without quotes: a string where the schema says so, or where it is not JSON.
Json loose_value(const Json& tools, std::string_view tool, std::string_view argument,
                 std::string_view text) {
  if (is_string(tools, tool, argument)) return std::string(text);
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
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
  return ToolCall{(*json)["name"].get<std::string>(), text_of(arguments)};
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
  return ToolCall{std::string(trim(*name)), text_of(arguments)};
}

std::optional<ToolCall> read_pairs_call(std::string_view body, const Json& tools) {
  const std::size_t first = body.find("<arg_key>");
  const std::string name(trim(body.substr(0, first)));
  // Any word would do for a name, so it has to be a tool's.
  if (!is_tool(tools, name)) return std::nullopt;
  Json arguments = Json::object();
  while (take_until(body, "<arg_key>")) {
    const auto key = take_until(body, "</arg_key>");
    if (!key || !take_until(body, "<arg_value>")) return std::nullopt;
    const auto value = take_until(body, "</arg_value>");
    if (!value) return std::nullopt;
    arguments[std::string(trim(*key))] = loose_value(tools, name, trim(*key), *value);
  }
  return ToolCall{name, text_of(arguments)};
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
  return ToolCall{std::string(name), text_of(*arguments)};
}

std::optional<ToolCall> read_dsml_call(std::string_view body) {
  const auto name = take_until(body, "\"");
  if (!name || !take_until(body, ">")) return std::nullopt;
  Json arguments = Json::object();
  if (const auto whole = object_of(trim(body)))
    return ToolCall{std::string(*name), text_of(*whole)};
  while (take_until(body, "<｜DSML｜parameter name=\"")) {
    const auto key = take_until(body, "\"");
    const auto kind = key ? take_until(body, ">") : std::nullopt;
    const auto value = kind ? take_until(body, "</｜DSML｜parameter>") : std::nullopt;
    if (!value) return std::nullopt;
    if (kind->find("string=\"false\"") == std::string_view::npos) {
      arguments[std::string(*key)] = std::string(*value);
      continue;
    }
    Json json = Json::parse(*value, nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded()) return std::nullopt;
    arguments[std::string(*key)] = std::move(json);
  }
  return ToolCall{std::string(*name), text_of(arguments)};
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
               "</｜DSML｜tool_calls>"}};
  }
  return {};
}

std::optional<ToolCall> read_tool_call(ToolFormat format, std::string_view body,
                                       const Json& tools) {
  switch (format) {
    case ToolFormat::none:
      return std::nullopt;
    case ToolFormat::deepseek:
      return read_deepseek_call(body);
    case ToolFormat::dsml:
      return read_dsml_call(body);
    case ToolFormat::tag:
      break;
  }
  const std::string_view inner = trim(body);
  if (inner.starts_with('{')) return read_json_call(inner);
  if (inner.starts_with("<function=")) return read_function_call(inner, tools);
  return read_pairs_call(inner, tools);
}

}  // namespace lathe
