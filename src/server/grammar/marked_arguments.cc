#include "server/grammar/marked_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/text/name_byte.h"
#include "server/grammar/schema/schema.h"
#include "server/grammar/schema/schema_document.h"
#include "server/grammar/schema/schema_shapes.h"
#include "server/grammar/text_search.h"

namespace lathe::grammar {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostReferences = 16;

Error not_followed(const std::string& path, std::string_view keyword, std::string wanted) {
  return {ErrorCode::unsupported, path + "." + std::string(keyword), std::move(wanted),
          std::string(keyword), "tool_choice \"required\" or a function"};
}

// What an argument may be.
struct Values {
  bool any_text = false;
  std::vector<std::string> texts;  // without any_text
  std::vector<Json> others;        // schemas of values that are no strings
};

class ValuesOf {
 public:
  ValuesOf(const ToolRules& rules, const Tool& tool)
      : root_(tool.schema), document_(tool.schema, tool.path, rules.lenient, rules.ignored) {}

  std::optional<Error> add(const Json& schema, const std::string& path, Values& out) {
    if (schema.is_boolean() || !schema.is_object()) return add_any(out);
    if (const auto ref = schema.find("$ref"); ref != schema.end()) {
      const Json* const target = find(*ref);
      if (target == nullptr || ++references_ > kMostReferences) {
        return not_followed(path, "$ref", "a reference to $defs that is not recursive");
      }
      return add(*target, path, out);
    }
    for (const char* word : {"anyOf", "oneOf"}) {
      const auto list = schema.find(word);
      if (list == schema.end() || !list->is_array()) continue;
      if (word[0] == 'o') note_overlap(*list, path + ".oneOf");
      for (std::size_t i = 0; i < list->size(); ++i) {
        auto wrong = add((*list)[i], fmt::format("{}.{}[{}]", path, word, i), out);
        if (wrong) return wrong;
      }
      return std::nullopt;
    }
    if (schema.contains("const")) return add_values(Json::array({schema["const"]}), out);
    if (const auto list = schema.find("enum"); list != schema.end() && list->is_array()) {
      return add_values(*list, out);
    }
    return add_types(schema, path, out);
  }

 private:
  // Alternatives are all allowed here, also values for which several hold.
  void note_overlap(const Json& list, const std::string& path) {
    const bool overlap = SchemaShapes(document_).overlap(list, 0);
    if (overlap || document_.failed()) document_.note(path);
    document_.forgive();
  }
  static std::optional<Error> add_any(Values& out) {
    out.any_text = true;
    return std::nullopt;
  }
  static std::optional<Error> add_values(const Json& list, Values& out) {
    Json others = Json::array();
    for (const Json& value : list) {
      if (value.is_string()) {
        out.texts.push_back(value.get<std::string>());
      } else {
        others.push_back(value);
      }
    }
    if (!others.empty()) out.others.push_back({{"enum", std::move(others)}});
    return std::nullopt;
  }
  static std::optional<Error> add_types(const Json& schema, const std::string& path, Values& out) {
    const auto type = schema.find("type");
    Json others = Json::array();
    bool text = type == schema.end();
    const auto take = [&](const Json& name) {
      if (name == "string") {
        text = true;
      } else {
        others.push_back(name);
      }
    };
    if (type != schema.end() && type->is_array()) {
      for (const Json& name : *type) take(name);
    } else if (type != schema.end()) {
      take(*type);
    }
    if (text) {
      for (const char* word :
           {"minLength", "maxLength", "pattern", "format", "allOf", "not", "if"}) {
        if (schema.contains(word)) {
          return not_followed(path, word,
                              "strings with enum or const alone, in this form of calls");
        }
      }
      return add_any(out);
    }
    Json other = schema;
    other["type"] = std::move(others);
    out.others.push_back(std::move(other));
    return std::nullopt;
  }
  const Json* find(const Json& ref) const {
    if (!ref.is_string()) return nullptr;
    const auto& text = ref.get_ref<const std::string&>();
    for (const char* word : {"$defs", "definitions"}) {
      const std::string front = fmt::format("#/{}/", word);
      if (!text.starts_with(front) || !root_.contains(word)) continue;
      const auto at = root_[word].find(text.substr(front.size()));
      if (at != root_[word].end()) return &*at;
    }
    return nullptr;
  }

  const Json& root_;
  SchemaDocument document_;
  int references_ = 0;
};

// Keywords that say nothing of the arguments together.
std::optional<Error> check_keywords(const Json& schema, const std::string& path) {
  for (const auto& [word, value] : schema.items()) {
    constexpr std::string_view kRead[] = {
        "type",    "properties",  "required", "$defs", "definitions", "additionalProperties",
        "title",   "description", "$schema",  "$id",   "$comment",    "default",
        "examples"};
    if (std::ranges::find(kRead, word) != std::end(kRead) || word.starts_with("x-")) continue;
    return not_followed(path, word, "properties and required alone, in this form of calls");
  }
  return std::nullopt;
}

// Whether the form's reader gets an argument's name back: names stand between marks as they are.
bool carries_name(const MarkedForm& marks, const std::string& name) {
  constexpr std::string_view kSpace = " \t\r\n";
  const auto has = [](std::string_view in, std::string_view text) {
    return in.find(text) != std::string_view::npos;
  };
  if (name.empty() || has(kSpace, name.substr(0, 1)) || has(kSpace, {&name.back(), 1}))
    return false;
  if (marks.before_key.ends_with('"') && has(name, "\"")) return false;
  if ((name + marks.after_key).find(marks.after_key) != name.size()) return false;
  for (const std::string& text : marks.avoided) {
    if (has(name, text)) return false;
  }
  if (!marks.before_key.empty()) return true;
  // Without a mark before it the first byte tells a name from a string and the end; Python's
  // keywords are names throughout.
  return is_name_byte(name[0]) &&
         (!marks.after_text.empty() || std::ranges::all_of(name, is_name_byte));
}

// Any text as it is, and the mark after it.
State add_text(Builder& b, const MarkedForm& marks, State from) {
  std::string_view end = marks.after_text;
  end.remove_prefix(std::min(end.find_first_not_of('\n'), end.size()));
  const std::size_t line = std::min(end.find('\n'), end.size());
  const State found = add_until(b, from, end.substr(0, line), {.avoided = marks.avoided});
  return add_mark(b, found, end.substr(line));
}

// A string as it is, up to the mark after it, or a value as JSON with its own mark.
Result<State> add_value(const ToolRules& rules, const Values& values, const Tool& tool,
                        const std::string& path, const CallForm& form, State from) {
  Builder& b = rules.b;
  const MarkedForm& marks = *form.marked;
  const State to = b.state(from);
  const bool raw = !marks.after_text.empty();
  if (raw && values.any_text) {
    b.skip(add_text(b, marks, add_mark(b, from, marks.before_text)), to);
  }
  if (raw && !values.texts.empty()) {
    const State text = b.state(from);
    b.texts(add_mark(b, from, marks.before_text), values.texts, text);
    b.skip(add_mark(b, text, marks.after_text), to);
  }
  std::vector<Json> others = values.others;
  if (!raw && values.any_text) others.push_back({{"type", "string"}});
  if (!raw && !values.texts.empty()) others.push_back({{"enum", values.texts}});
  for (Json& other : others) {
    for (const char* word : {"$defs", "definitions"}) {
      if (tool.schema.contains(word)) other[word] = tool.schema[word];
    }
    const auto rule = add_schema(b, rules.json, other, path, {false, rules.lenient, rules.ignored});
    if (!rule) return rule.error();
    const State value = b.state(from);
    b.call(add_mark(b, from, marks.before_json), *rule, value);
    b.skip(add_mark(b, value, marks.after_json), to);
  }
  return to;
}

// Arguments of any names and values.
State add_any_arguments(const ToolRules& rules, const CallForm& form, State from) {
  Builder& b = rules.b;
  const MarkedForm& marks = *form.marked;
  const State before = b.state(from), after = b.state(from), to = b.state(from);
  const State name = b.state(from), named = b.state(from);
  b.skip(from, before);
  b.skip(from, to);
  b.skip(b.text(before, marks.before_key), name);
  for (const auto& [first, last] :
       {std::pair{'a', 'z'}, {'A', 'Z'}, {'0', '9'}, {'_', '_'}, {'-', '-'}, {'.', '.'}}) {
    for (const State s : {name, named}) {
      b.bytes(s, static_cast<std::uint8_t>(first), static_cast<std::uint8_t>(last), named);
    }
  }
  const State value = b.text(named, marks.after_key);
  if (!marks.after_text.empty()) {
    b.skip(add_text(b, marks, add_mark(b, value, marks.before_text)), after);
  }
  if (marks.after_text.empty() || !marks.before_text.empty()) {
    const State read = b.state(from);
    b.call(add_mark(b, value, marks.before_json), rules.json.value(), read);
    b.skip(add_mark(b, read, marks.after_json), after);
  }
  b.skip(b.text(after, marks.between), before);
  b.skip(after, to);
  return to;
}

}  // namespace

State add_mark(Builder& b, State from, std::string_view mark) {
  State s = from;
  for (std::size_t at = 0; at < mark.size();) {
    const std::size_t line = std::min(mark.find('\n', at), mark.size());
    s = b.text(s, mark.substr(at, line - at));
    if (line < mark.size()) {
      const State after = b.state(s);
      b.skip(s, after);
      b.bytes(s, '\n', '\n', after);
      s = after;
    }
    at = line + 1;
  }
  return s;
}

Result<State> add_marked_arguments(const ToolRules& rules, const Tool& tool, const CallForm& form,
                                   State from) {
  Builder& b = rules.b;
  const MarkedForm& marks = *form.marked;
  if (tool.schema.empty()) return add_any_arguments(rules, form, from);
  if (auto wrong = check_keywords(tool.schema, tool.path)) return *wrong;
  const Json properties = tool.schema.value("properties", Json::object());
  const Json required = tool.schema.value("required", Json::array());
  // States before the next argument: no argument has come yet, or one has.
  State none = b.state(from), some = b.state(from);
  b.skip(from, none);
  bool may_be_none = true, any = false;
  for (const auto& [name, schema] : properties.items()) {
    const std::string path = below(tool.path + ".properties", name);
    if (!carries_name(marks, name)) {
      return Error{ErrorCode::unsupported, path, "a name that this form of calls can write", name,
                   "tool_choice \"required\" or a function"};
    }
    Values values;
    if (auto wrong = ValuesOf(rules, tool).add(schema, path, values)) return *wrong;
    const State next_some = b.state(from), key = b.state(from);
    if (may_be_none) b.skip(none, key);
    if (any) b.skip(b.text(some, marks.between), key);
    const State value = b.text(b.text(b.text(key, marks.before_key), name), marks.after_key);
    const auto end = add_value(rules, values, tool, path, form, value);
    if (!end) return end.error();
    b.skip(*end, next_some);
    const bool needed = std::ranges::find(required, Json(name)) != required.end();
    if (!needed && any) b.skip(some, next_some);
    may_be_none = may_be_none && !needed;
    any = true;
    some = next_some;
  }
  for (const Json& name : required) {
    if (!name.is_string() || !properties.contains(name.get<std::string>())) {
      return not_followed(tool.path, "required", "names of properties");
    }
  }
  const State to = b.state(from);
  if (may_be_none) b.skip(none, to);
  if (any) b.skip(some, to);
  return to;
}

}  // namespace lathe::grammar
