// Functions as TypeScript, by the rules of openai-harmony.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "io/template/harmony_chat.h"
#include "io/template/jinja_failure.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostSchemaLevels = 100;

const Json* member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto at = object.find(key);
  return at == object.end() ? nullptr : &*at;
}

// A member's text; null if it is no string.
const std::string* text_member(const Json& object, const char* key) {
  const Json* value = member(object, key);
  return value != nullptr && value->is_string() ? &value->get_ref<const std::string&>() : nullptr;
}

// A member that is a list; null otherwise.
const Json* list_member(const Json& object, const char* key) {
  const Json* value = member(object, key);
  return value != nullptr && value->is_array() ? value : nullptr;
}

bool has_choices(const Json& schema) {
  const Json* list = list_member(schema, "enum");
  return list != nullptr && !list->empty();
}

// A default in a comment: a choice is shown without quotes below an object, with them elsewhere.
std::string default_text(const Json& value, bool bare) {
  if (!value.is_string()) return "default: " + json_text(value);
  const auto& text = value.get_ref<const std::string&>();
  return bare ? "default: " + text : "default: \"" + text + "\"";
}

std::string comments(const std::vector<std::string>& parts) {
  return parts.empty() ? "" : fmt::format(" // {}", fmt::join(parts, " "));
}

class TypeWriter {
 public:
  explicit TypeWriter(std::string path) : path_(std::move(path)) {}

  std::string type(const Json& schema, const std::string& indent) {
    if (++level_ > kMostSchemaLevels) {
      throw JinjaFailure{{ErrorCode::unsupported, path_,
                          fmt::format("a schema of at most {} levels", kMostSchemaLevels),
                          "a deeper one", ""}};
    }
    std::string out = any_type(schema, indent);
    --level_;
    return out;
  }

 private:
  std::string any_type(const Json& schema, const std::string& indent) {
    if (const Json* variants = list_member(schema, "oneOf")) return one_of(*variants, indent);
    if (const Json* types = list_member(schema, "type")) {
      std::vector<std::string> names;
      for (const Json& type : *types) {
        if (type.is_string()) names.push_back(type == "integer" ? "number" : type);
      }
      if (!names.empty()) return fmt::format("{}", fmt::join(names, " | "));
    }
    const std::string* type = text_member(schema, "type");
    if (type == nullptr) return "any";
    if (*type == "object") return object(schema, indent);
    if (*type == "string") return string(schema);
    if (*type == "number" || *type == "integer") return "number";
    if (*type == "boolean") return "boolean";
    if (*type != "array") return "any";
    const Json* items = member(schema, "items");
    return items == nullptr ? "Array<any>" : this->type(*items, indent) + "[]";
  }

  static std::string string(const Json& schema) {
    std::vector<std::string> choices;
    if (const Json* list = list_member(schema, "enum")) {
      for (const Json& choice : *list) {
        if (choice.is_string()) choices.push_back("\"" + choice.get<std::string>() + "\"");
      }
    }
    return choices.empty() ? "string" : fmt::format("{}", fmt::join(choices, " | "));
  }

  std::string nullable_type(const Json& schema, const std::string& indent) {
    std::string out = type(schema, indent);
    const Json* nullable = member(schema, "nullable");
    const bool null = nullable != nullptr && *nullable == true;
    if (null && out.find("null") == std::string::npos) out += " | null";
    return out;
  }

  std::string one_of(const Json& variants, const std::string& indent) {
    std::string out;
    for (const Json& variant : variants) {
      out += "\n" + indent + " | " + nullable_type(variant, indent + "   ");
      std::vector<std::string> parts;
      if (const std::string* text = text_member(variant, "description")) parts.push_back(*text);
      if (const Json* value = member(variant, "default")) {
        const bool quoted = value->is_string() && !has_choices(variant);
        parts.push_back(quoted ? default_text(*value, false) : "default: " + json_text(*value));
      }
      out += comments(parts);
    }
    return out;
  }

  std::string object(const Json& schema, const std::string& indent) {
    std::string out;
    if (const std::string* text = text_member(schema, "description")) {
      out += indent + "// " + *text + "\n";
    }
    out += "{\n";
    const Json* properties = member(schema, "properties");
    if (properties != nullptr && properties->is_object()) {
      for (const auto& [key, value] : properties->items()) {
        const Json* required = list_member(schema, "required");
        const bool needed = required != nullptr &&
                            std::find(required->begin(), required->end(), key) != required->end();
        out += property(key + (needed ? ":" : "?:"), value, indent);
      }
    }
    return out + indent + "}";
  }

  std::string property(const std::string& key, const Json& schema, const std::string& indent) {
    std::string out;
    if (const std::string* title = text_member(schema, "title")) {
      out += indent + "// " + *title + "\n" + indent + "//\n";
    }
    const std::string* text = text_member(schema, "description");
    const bool chooses = member(schema, "oneOf") != nullptr;
    if (text != nullptr && !chooses) out += indent + "// " + *text + "\n";
    if (const Json* examples = list_member(schema, "examples");
        examples != nullptr && !examples->empty()) {
      out += indent + "// Examples:\n";
      for (const Json& example : *examples) {
        if (example.is_string()) {
          out += indent + "// - \"" + example.get<std::string>() + "\"\n";
        }
      }
    }
    if (list_member(schema, "oneOf") != nullptr) return out + variants(key, schema, indent);
    out += indent + key + " " + nullable_type(schema, indent + "    ") + ",";
    if (const Json* value = member(schema, "default"); value != nullptr && !chooses) {
      out += " // " + default_text(*value, has_choices(schema));
    }
    return out + "\n";
  }

  // A property with variants, each on a line. The first one's description is left out where the
  // property's own is above it, and the property's where it is the first one's.
  std::string variants(const std::string& key, const Json& schema, const std::string& indent) {
    const Json& list = *list_member(schema, "oneOf");
    const std::string* own = text_member(schema, "description");
    const std::string* first = list.empty() ? nullptr : text_member(list[0], "description");
    const bool above = own != nullptr && (first == nullptr || *first != *own);
    std::string out;
    if (above) out += indent + "// " + *own + "\n";
    if (const Json* value = member(schema, "default")) {
      out += indent + "// " + default_text(*value, has_choices(schema)) + "\n";
    }
    out += indent + key + "\n";
    for (std::size_t i = 0; i < list.size(); ++i) {
      out += indent + " | " + nullable_type(list[i], indent + "   ");
      std::vector<std::string> parts;
      const std::string* text = text_member(list[i], "description");
      const bool told = (i == 0 && above) || (text != nullptr && own != nullptr && *text == *own);
      if (text != nullptr && !told) parts.push_back(*text);
      if (const Json* value = member(list[i], "default")) {
        parts.push_back(default_text(*value, has_choices(list[i])));
      }
      out += comments(parts) + "\n";
    }
    return out + indent + ",\n";
  }

  const std::string path_;  // of the outermost schema
  int level_ = 0;
};

// Rust's str::lines(): a line may end with \r\n, and the last needs no end.
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    std::string line = text.substr(at, end - at);
    if (end != std::string::npos && line.ends_with('\r')) line.pop_back();
    out.push_back(std::move(line));
    if (end == std::string::npos) break;
    at = end + 1;
  }
  return out;
}

}  // namespace

std::string harmony_tools(const Json& tools) {
  std::string out = "# Tools\n\n## functions\n\nnamespace functions {\n";
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const Json& tool = tools[i];
    const std::string path = fmt::format("tools[{}].function", i);
    const Json* function = member(tool, "function");
    const std::string* name = function != nullptr ? text_member(*function, "name") : nullptr;
    if (name == nullptr) {
      throw JinjaFailure{
          {ErrorCode::invalid_argument, path, "a function with a name", json_excerpt(tool), ""}};
    }
    if (const std::string* text = text_member(*function, "description")) {
      for (const std::string& line : lines_of(*text)) out += "\n// " + line;
    }
    const Json* parameters = member(*function, "parameters");
    const bool any = parameters != nullptr && !parameters->is_null();
    const std::string type =
        any ? "_: " + TypeWriter(path + ".parameters").type(*parameters, "") : "";
    out += fmt::format("\ntype {} = ({}) => any;\n", *name, type);
  }
  return out + "\n} // namespace functions";
}

}  // namespace lathe
