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

bool is_tool(const Json& tools, std::string_view name) {
  for (const Json& t : tools) {
    if (t.is_object() && t.contains("function") && t["function"].is_object() &&
        t["function"].value("name", "") == name) {
      return true;
    }
  }
  return false;
}

// The schema of a tool's parameters, or null.
const Json* parameters_of(const Json& tools, std::string_view tool) {
  for (const Json& t : tools) {
    if (!t.is_object() || !t.contains("function")) continue;
    const Json& f = t["function"];
    if (f.is_object() && f.value("name", "") == tool && f.contains("parameters") &&
        f["parameters"].is_object()) {
      return &f["parameters"];
    }
  }
  return nullptr;
}

// The properties of a tool's parameters, or null.
const Json* properties_of(const Json& tools, std::string_view tool) {
  const Json* parameters = parameters_of(tools, tool);
  if (parameters == nullptr || !parameters->contains("properties")) return nullptr;
  const Json& properties = (*parameters)["properties"];
  return properties.is_object() ? &properties : nullptr;
}

// Types that a schema allows; none: it does not say.
struct Types {
  bool string = false, integer = false, number = false, boolean = false, null = false,
       array = false, object = false;

  void add(std::string_view name) {
    string |= name == "string";
    integer |= name == "integer";
    number |= name == "number";
    boolean |= name == "boolean";
    null |= name == "null";
    array |= name == "array";
    object |= name == "object";
  }
  void add_value(const Json& value) {
    add(value.is_number_float() ? "number" : value.is_number() ? "integer" : value.type_name());
  }
  bool others() const { return integer || number || boolean || array || object; }
};

// What one argument's schema may have, references included; types in further parts do not count. A
// part that refers to others several times must not multiply the work.
constexpr int kMostParts = 256;
constexpr int kMostReferences = 64;  // each is looked up name by name

// The schema at "#/a/b" in `root`, or null.
const Json* find_reference(const Json& root, const std::string& reference) {
  if (!reference.starts_with('#')) return nullptr;
  try {
    const Json::json_pointer path(reference.substr(1));
    return root.contains(path) ? &root.at(path) : nullptr;
  } catch (const Json::exception&) {  // not a path
    return nullptr;
  }
}

// The types of `schema` itself, without its parts'.
void add_own_types(const Json& schema, Types& out) {
  if (const auto type = schema.find("type"); type != schema.end()) {
    if (type->is_string()) out.add(type->get_ref<const std::string&>());
    if (type->is_array()) {
      for (const Json& name : *type) {
        if (name.is_string()) out.add(name.get_ref<const std::string&>());
      }
    }
  } else {
    if (schema.contains("const")) out.add_value(schema["const"]);
    if (const auto list = schema.find("enum"); list != schema.end() && list->is_array()) {
      for (const Json& value : *list) out.add_value(value);
    }
    if (schema.contains("properties")) out.add("object");
    if (schema.contains("items")) out.add("array");
  }
  out.null |= schema.value("nullable", Json()) == true;
}

// Types of `schema`, of what it refers to in `root`, and of its alternatives.
Types all_types(const Json& schema, const Json& root) {
  Types out;
  std::vector<const Json*> parts = {&schema};  // each once
  const auto add = [&](const Json* part) {
    const bool known = std::find(parts.begin(), parts.end(), part) != parts.end();
    if (part != nullptr && !known && parts.size() < kMostParts) parts.push_back(part);
  };
  int references = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Json& part = *parts[i];
    if (!part.is_object()) continue;
    add_own_types(part, out);
    const auto ref = part.find("$ref");
    if (ref != part.end() && ref->is_string() && ++references <= kMostReferences) {
      add(find_reference(root, ref->get_ref<const std::string&>()));
    }
    for (const char* word : {"anyOf", "oneOf", "allOf"}) {
      const auto list = part.find(word);
      if (list == part.end() || !list->is_array()) continue;
      for (const Json& alternative : *list) {
        if (parts.size() == kMostParts) break;
        add(&alternative);
      }
    }
  }
  return out;
}

Types types_of(const Json& tools, std::string_view tool, std::string_view argument) {
  const Json* properties = properties_of(tools, tool);
  if (properties == nullptr) return {};
  const auto schema = properties->find(std::string(argument));
  if (schema == properties->end()) return {};
  return all_types(*schema, *parameters_of(tools, tool));
}

bool is_word(std::string_view text, std::string_view word) {
  return std::equal(text.begin(), text.end(), word.begin(), word.end(), [](char a, char b) {
    return (a >= 'A' && a <= 'Z' ? static_cast<char>(a - 'A' + 'a') : a) == b;
  });
}

// JSON of one of the types that are not strings, for text that is written as one; else nullopt.
std::optional<std::string> typed_value(const Types& types, std::string_view text) {
  const std::string_view word = trim(text);
  if (types.null && (is_word(word, "null") || is_word(word, "none"))) return "null";
  if (types.boolean && (is_word(word, "true") || is_word(word, "false"))) {
    return is_word(word, "true") ? "true" : "false";
  }
  auto json = compact_json(word);
  if (!json) return std::nullopt;
  const char front = json->front();
  const bool number = front == '-' || (front >= '0' && front <= '9');
  const bool whole = number && json->find_first_of(".eE") == std::string::npos;
  const bool fits = (types.number && number) || (types.integer && whole) ||
                    (types.array && front == '[') || (types.object && front == '{');
  return fits ? json : std::nullopt;
}

// A value without quotes, as JSON: by the argument's schema; without one, a string if it is not
// JSON.
std::string loose_value(const Json& tools, std::string_view tool, std::string_view argument,
                        std::string_view text) {
  const Types types = types_of(tools, tool, argument);
  if (auto json = typed_value(types, text)) return *json;
  if (!types.string) {
    if (auto json = compact_json(text)) return *json;
  }
  return json_text(std::string(text));
}

// Sets an argument; the last of equal names wins.
void set(JsonMembers& arguments, std::string_view name, std::string value) {
  const auto at = std::find_if(arguments.begin(), arguments.end(),
                               [&](const auto& member) { return member.first == name; });
  if (at == arguments.end()) {
    arguments.emplace_back(name, std::move(value));
  } else {
    at->second = std::move(value);
  }
}

const std::string* find(const JsonMembers& members, std::string_view name) {
  for (const auto& [key, value] : members) {
    if (key == name) return &value;
  }
  return nullptr;
}

// The text of a JSON string.
std::optional<std::string> string_of(const std::string& json) {
  const Json value = read_json<Json>(json);
  return value.is_string() ? std::optional(value.get<std::string>()) : std::nullopt;
}

std::optional<std::vector<ToolCall>> one(ToolCall call) {
  std::vector<ToolCall> out;
  out.push_back(std::move(call));
  return out;
}

std::optional<std::vector<ToolCall>> read_json_call(std::string_view body) {
  const auto json = read_members(body);
  const std::string* name = json ? find(*json, "name") : nullptr;
  const auto called = name != nullptr ? string_of(*name) : std::nullopt;
  if (!called) return std::nullopt;
  const std::string* given = find(*json, "arguments");
  if (given == nullptr) given = find(*json, "parameters");
  std::string arguments = given != nullptr ? *given : "{}";
  if (auto text = string_of(arguments)) arguments = std::move(*text);
  const auto members = read_members(arguments);
  if (!members) return std::nullopt;
  return one({*called, members_text(*members)});
}

constexpr std::string_view kFunction = "<function=", kEndFunction = "</function>";
constexpr std::string_view kTagParameter = "<parameter=", kEndTagParameter = "</parameter>";

// The next tag that begins a line, or npos.
std::size_t find_line_tag(std::string_view text, std::string_view tag) {
  for (std::size_t at = text.find(tag); at != std::string_view::npos; at = text.find(tag, at + 1)) {
    const std::size_t before = text.find_last_not_of(" \t", at == 0 ? 0 : at - 1);
    if (at == 0 || before == std::string_view::npos || text[before] == '\n') return at;
  }
  return std::string_view::npos;
}

// Where a parameter's value ends, and its end tag. That is an end tag with another tag behind it:
// others belong to the value. A value without one ends at the next tag.
std::pair<std::size_t, std::size_t> value_end(std::string_view text) {
  const std::size_t next =
      std::min(find_line_tag(text, kTagParameter), find_line_tag(text, kFunction));
  for (std::size_t at = text.find(kEndTagParameter); at < next;
       at = text.find(kEndTagParameter, at + 1)) {
    const std::string_view rest = trim(text.substr(at + kEndTagParameter.size()));
    if (rest.empty() || rest.starts_with(kTagParameter) || rest.starts_with(kEndFunction) ||
        rest.starts_with(kFunction)) {
      return {at, at + kEndTagParameter.size()};
    }
  }
  const std::size_t end = std::min({next, text.find(kEndFunction), text.size()});
  return {end, end};
}

std::optional<std::vector<ToolCall>> read_function_calls(std::string_view body, const Json& tools) {
  std::vector<ToolCall> out;
  while (!trim(body).empty()) {
    const auto gap = take_until(body, kFunction);
    const auto name = gap ? take_until(body, ">") : std::nullopt;
    if (!name || !trim(*gap).empty()) return std::nullopt;
    JsonMembers arguments;
    for (;;) {
      body = trim(body);
      if (!body.starts_with(kTagParameter)) break;
      body.remove_prefix(kTagParameter.size());
      const auto key = take_until(body, ">");
      if (!key) return std::nullopt;
      const auto [end, next] = value_end(body);
      std::string_view value = body.substr(0, end);
      body.remove_prefix(next);
      // The template puts the value on lines of its own.
      if (value.starts_with('\n')) value.remove_prefix(1);
      if (value.ends_with('\n')) value.remove_suffix(1);
      set(arguments, trim(*key), loose_value(tools, trim(*name), trim(*key), value));
    }
    if (body.starts_with(kEndFunction)) body.remove_prefix(kEndFunction.size());
    out.push_back({std::string(trim(*name)), members_text(arguments)});
  }
  return out;
}

std::optional<std::vector<ToolCall>> read_pairs_call(std::string_view body, const Json& tools) {
  constexpr std::string_view kKey = "<arg_key>", kEndValue = "</arg_value>";
  const std::size_t first = body.find(kKey);
  const std::string name(trim(body.substr(0, first)));
  // The format allows any word as a name, so require a tool's.
  if (!is_tool(tools, name)) return std::nullopt;
  body.remove_prefix(std::min(first, body.size()));
  JsonMembers arguments;
  while (!trim(body).empty()) {
    const auto before = take_until(body, kKey);
    const auto key = before ? take_until(body, "</arg_key>") : std::nullopt;
    const auto gap = key ? take_until(body, "<arg_value>") : std::nullopt;
    if (!gap || !trim(*before).empty() || !trim(*gap).empty()) return std::nullopt;
    // A value without an end mark ends at the next key.
    const std::size_t shut = body.find(kEndValue);
    const std::size_t end = std::min({shut, find_line_tag(body, kKey), body.size()});
    const std::string_view value = body.substr(0, end);
    body.remove_prefix(end == shut ? end + kEndValue.size() : end);
    set(arguments, trim(*key), loose_value(tools, name, trim(*key), value));
  }
  return one({name, members_text(arguments)});
}

std::optional<std::vector<ToolCall>> read_deepseek_call(std::string_view body) {
  const auto first = take_until(body, "<｜tool▁sep｜>");
  if (!first) return std::nullopt;
  std::string_view name = trim(*first);
  if (const std::size_t fence = body.find("```json"); fence != std::string_view::npos) {
    if (name != "function") return std::nullopt;
    name = trim(body.substr(0, fence));
    body.remove_prefix(fence + 7);
    body = body.substr(0, body.rfind("```"));
  }
  const auto arguments = read_members(trim(body));
  if (!arguments || name.empty()) return std::nullopt;
  return one({std::string(name), members_text(*arguments)});
}

// A parameter's value as JSON. If the string attribute is missing, the schema decides.
std::optional<std::string> dsml_value(const Json& tools, std::string_view tool,
                                      std::string_view key, std::string_view mark,
                                      std::string_view text) {
  if (mark == "string=\"true\"") return json_text(std::string(text));
  if (mark.empty()) return loose_value(tools, tool, key, text);
  if (mark != "string=\"false\"") return std::nullopt;
  if (auto json = compact_json(text)) return json;
  const Types types = types_of(tools, tool, key);
  if (auto json = typed_value(types, text)) return json;
  return types.string ? std::optional(json_text(std::string(text))) : std::nullopt;
}

// Unwraps {"arguments": ...} and {"input": ...}, unless the tool has an argument of that name: an
// object, one in a string, or the value of a tool's only argument.
JsonMembers without_wrapper(JsonMembers arguments, const Json& tools, std::string_view tool) {
  if (arguments.size() != 1) return arguments;
  const auto& [name, value] = arguments.front();
  if (name != "arguments" && name != "input") return arguments;
  const Json* properties = properties_of(tools, tool);
  if (properties != nullptr && properties->contains(name)) return arguments;
  if (auto inner = read_members(value)) return *inner;
  const auto text = string_of(value);
  if (auto inner = text ? read_members(*text) : std::nullopt) return *inner;
  if (properties == nullptr || properties->size() != 1) return arguments;
  return {{properties->begin().key(), value}};
}

// Accepts parameters alone, each once, or one JSON object.
std::optional<std::vector<ToolCall>> read_dsml_call(std::string_view body, const Json& tools) {
  const auto name = take_until(body, "\"");
  const auto rest = name ? take_until(body, ">") : std::nullopt;
  if (!rest || !trim(*rest).empty()) return std::nullopt;
  JsonMembers arguments;
  if (auto whole = read_members(trim(body))) {
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
    if (!value || find(arguments, *key) != nullptr) return std::nullopt;
    arguments.emplace_back(*key, std::move(*value));
  }
  if (!trim(body).empty()) return std::nullopt;
  arguments = without_wrapper(std::move(arguments), tools, *name);
  return one({std::string(*name), members_text(arguments)});
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

std::optional<std::vector<ToolCall>> read_tool_calls(ToolFormat format, std::string_view body,
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
  if (inner.starts_with(kFunction)) return read_function_calls(inner, tools);
  return read_pairs_call(inner, tools);
}

}  // namespace lathe
