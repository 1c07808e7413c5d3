#include "server/markup/tool_arguments.h"

#include <algorithm>

#include "base/json_digits.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

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

bool is_word(std::string_view text, std::string_view word) {
  return std::equal(text.begin(), text.end(), word.begin(), word.end(), [](char a, char b) {
    return (a >= 'A' && a <= 'Z' ? static_cast<char>(a - 'A' + 'a') : a) == b;
  });
}

}  // namespace

std::string_view trim(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kJsonSpace);
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(kJsonSpace) - first + 1);
}

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

const Json* properties_of(const Json& tools, std::string_view tool) {
  const Json* parameters = parameters_of(tools, tool);
  if (parameters == nullptr || !parameters->contains("properties")) return nullptr;
  const Json& properties = (*parameters)["properties"];
  return properties.is_object() ? &properties : nullptr;
}

void Types::add(std::string_view name) {
  string |= name == "string";
  integer |= name == "integer";
  number |= name == "number";
  boolean |= name == "boolean";
  null |= name == "null";
  array |= name == "array";
  object |= name == "object";
}

void Types::add_value(const Json& value) {
  if (is_json_number(value)) {
    const bool whole = json_text(value).find_first_of(".eE") == std::string::npos;
    return add(whole ? "integer" : "number");
  }
  add(value.type_name());
}

Types types_of(const Json& tools, std::string_view tool, std::string_view argument) {
  const Json* properties = properties_of(tools, tool);
  if (properties == nullptr) return {};
  const auto schema = properties->find(std::string(argument));
  if (schema == properties->end()) return {};
  return all_types(*schema, *parameters_of(tools, tool));
}

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

std::string loose_value(const Json& tools, std::string_view tool, std::string_view argument,
                        std::string_view text) {
  const Types types = types_of(tools, tool, argument);
  if (auto json = typed_value(types, text)) return *json;
  if (!types.string) {
    if (auto json = compact_json(text)) return *json;
  }
  return json_text(std::string(text));
}

void set_member(JsonMembers& members, std::string_view name, std::string value) {
  const auto at = std::find_if(members.begin(), members.end(),
                               [&](const auto& member) { return member.first == name; });
  if (at == members.end()) {
    members.emplace_back(name, std::move(value));
  } else {
    at->second = std::move(value);
  }
}

const std::string* find_member(const JsonMembers& members, std::string_view name) {
  for (const auto& [key, value] : members) {
    if (key == name) return &value;
  }
  return nullptr;
}

std::optional<std::string> string_of(const std::string& json) {
  const Json value = read_json<Json>(json);
  return value.is_string() ? std::optional(value.get<std::string>()) : std::nullopt;
}

}  // namespace lathe
