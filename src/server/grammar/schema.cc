#include "server/grammar/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/json.h"

#include "io/text/quote.h"
#include "server/grammar/formats.h"
#include "server/grammar/regex.h"

namespace lathe::grammar {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostSchemaLevels = 64;
constexpr std::size_t kMostPathBytes = 400;

constexpr std::string_view kAnnotations[] = {
    "title",    "description", "default", "examples", "deprecated",  "readOnly",     "writeOnly",
    "$comment", "$schema",     "$id",     "$defs",    "definitions", "discriminator"};

struct TypeWord {
  std::string_view type;
  std::string_view keyword;
};
// Keywords that constrain values of one type and ignore others.
constexpr TypeWord kTyped[] = {
    {"object", "properties"}, {"object", "required"},         {"object", "additionalProperties"},
    {"array", "items"},       {"array", "prefixItems"},       {"array", "minItems"},
    {"array", "maxItems"},    {"string", "minLength"},        {"string", "maxLength"},
    {"string", "pattern"},    {"string", "format"},           {"number", "minimum"},
    {"number", "maximum"},    {"number", "exclusiveMinimum"}, {"number", "exclusiveMaximum"}};

constexpr std::string_view kTypes[] = {"object",  "array",   "string", "number",
                                       "integer", "boolean", "null"};

bool is_annotation(std::string_view keyword) {
  return keyword.starts_with("x-") || std::find(std::begin(kAnnotations), std::end(kAnnotations),
                                                keyword) != std::end(kAnnotations);
}

std::string below(const std::string& path, std::string_view name) {
  std::string out = path + "." + std::string(name);
  if (out.size() > kMostPathBytes) out = out.substr(0, kMostPathBytes) + "...";
  return out;
}

std::string item_of(const std::string& path, std::size_t i) {
  return path + fmt::format("[{}]", i);
}

// Whether `type` names the value's type; integers are numbers, too.
bool has_type(const Json& value, std::string_view type) {
  if (type == "integer") {
    if (value.is_number_integer()) return true;
    return value.is_number_float() && std::floor(value.get<double>()) == value.get<double>();
  }
  return (type == "object" && value.is_object()) || (type == "array" && value.is_array()) ||
         (type == "string" && value.is_string()) || (type == "number" && value.is_number()) ||
         (type == "boolean" && value.is_boolean()) || (type == "null" && value.is_null());
}

class SchemaRules {
 public:
  SchemaRules(Builder& b, JsonRules& json, const Json& root, const std::string& path)
      : b_(b), json_(json), root_(root), root_path_(path) {}

  Result<Rule> run() {
    const Rule rule = rule_of(root_, root_path_, 0);
    // Iterative, so a deep schema needs no stack.
    while (!todo_.empty() && !error_ && !b_.full()) {
      const Todo next = std::move(todo_.back());
      todo_.pop_back();
      add(next);
    }
    if (error_) return *error_;
    return rule;
  }

 private:
  struct Todo {
    Rule rule;
    const Json* schema;
    std::string path;
    int level;
  };

  void unsupported(const std::string& path, std::string wanted, std::string got) {
    if (!error_) {
      error_ = Error{ErrorCode::unsupported, path, std::move(wanted), std::move(got), ""};
    }
  }
  void malformed(const std::string& path, std::string wanted, const Json& got) {
    if (error_) return;
    error_ = Error{ErrorCode::malformed, path, std::move(wanted), json_excerpt(got), ""};
  }

  Rule rule_of(const Json& schema, std::string path, int level) {
    const auto [it, fresh] = rules_.try_emplace(&schema, 0);
    if (!fresh) return it->second;
    if (level > kMostSchemaLevels) {
      unsupported(path, fmt::format("at most {} levels", kMostSchemaLevels), "more");
    }
    it->second = b_.rule();
    todo_.push_back({it->second, &schema, std::move(path), level});
    return it->second;
  }

  void add(const Todo& at) {
    const Json& s = *at.schema;
    const State start = b_.start(at.rule), end = b_.end(at.rule);
    if (s.is_boolean()) {
      if (s.get<bool>()) b_.call(start, json_.value(), end);
      return;
    }
    if (!s.is_object()) return malformed(at.path, "a schema", s);
    check_keywords(at);
    if (error_) return;
    if (s.contains("$ref")) return add_reference(at);
    for (const char* word : {"const", "enum"}) {
      if (s.contains(word)) return add_values(at, word);
    }
    for (const char* word : {"anyOf", "oneOf", "allOf"}) {
      if (s.contains(word)) return add_branches(at, word);
    }
    const auto types = types_of(at);
    if (error_) return;
    if (!types) {
      b_.call(start, json_.value(), end);
      return;
    }
    for (const std::string& type : *types) add_type(at, type);
  }

  // Rejects unknown keywords and combinations that are not supported.
  void check_keywords(const Todo& at) {
    const Json& s = *at.schema;
    std::string_view leading;
    for (const std::string_view word : {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"}) {
      if (leading.empty() && s.contains(std::string(word))) leading = word;
    }
    for (const auto& item : s.items()) {
      const std::string& word = item.key();
      if (is_annotation(word) || word == leading) continue;
      const bool typed =
          word == "type" || std::any_of(std::begin(kTyped), std::end(kTyped),
                                        [&](const TypeWord& t) { return t.keyword == word; });
      if (typed && leading.empty()) continue;
      const bool lists = leading == "const" || leading == "enum";
      if (word == "type" && lists) continue;
      if (typed || (!leading.empty() && (word == "const" || word == "enum" || word == "$ref" ||
                                         word == "anyOf" || word == "oneOf" || word == "allOf"))) {
        return unsupported(below(at.path, word), fmt::format("{} without it", leading), word);
      }
      return unsupported(below(at.path, word), "keywords that docs/server.md lists", word);
    }
  }

  void add_reference(const Todo& at) {
    const Json& ref = (*at.schema)["$ref"];
    const std::string path = below(at.path, "$ref");
    if (!ref.is_string()) return malformed(path, "a string", ref);
    std::string_view rest = ref.get_ref<const std::string&>();
    if (!rest.starts_with('#') || (rest.size() > 1 && rest[1] != '/')) {
      return unsupported(path, "#, or a path in the schema as #/$defs/name", std::string(rest));
    }
    rest.remove_prefix(1);
    const Json* target = &root_;
    std::string target_path = root_path_;
    while (!rest.empty()) {
      rest.remove_prefix(1);
      const std::string name = unescape(rest.substr(0, rest.find('/')));
      rest = rest.find('/') == std::string_view::npos ? "" : rest.substr(rest.find('/'));
      std::size_t i = 0;
      const bool number = std::from_chars(name.data(), name.data() + name.size(), i).ptr ==
                          name.data() + name.size();
      if (target->is_object() && target->contains(name)) {
        target = &(*target)[name];
      } else if (target->is_array() && number && i < target->size()) {
        target = &(*target)[i];
      } else {
        return malformed(path, "a path in the schema", ref);
      }
      target_path = below(target_path, name);
    }
    b_.call(b_.start(at.rule), rule_of(*target, target_path, 0), b_.end(at.rule));
  }

  // Decodes a step of a JSON pointer in a URI fragment.
  static std::string unescape(std::string_view step) {
    std::string out;
    for (std::size_t i = 0; i < step.size(); ++i) {
      unsigned byte = 0;
      const char* hex = step.data() + i + 1;
      if (step[i] == '%' && i + 2 < step.size() &&
          std::from_chars(hex, hex + 2, byte, 16).ptr == hex + 2) {
        out += static_cast<char>(byte);
        i += 2;
      } else if (step[i] == '~' && i + 1 < step.size()) {
        out += step[++i] == '1' ? '/' : '~';
      } else {
        out += step[i];
      }
    }
    return out;
  }

  void add_values(const Todo& at, const char* word) {
    const Json& given = (*at.schema)[word];
    const std::string path = below(at.path, word);
    const bool list = std::string_view(word) == "enum";
    if (list && (!given.is_array() || given.empty())) return malformed(path, "a list", given);
    const auto types = types_of(at);
    if (error_) return;
    std::vector<std::string> texts;
    const auto one = [&](const Json& value) {
      const bool fits = !types || std::any_of(types->begin(), types->end(),
                                              [&](const auto& t) { return has_type(value, t); });
      if (!fits) return;
      if (value.is_structured()) {
        b_.skip(json_.literal(b_.start(at.rule), value), b_.end(at.rule));
      } else {
        texts.push_back(JsonRules::scalar(value));
      }
    };
    if (!list) one(given);
    if (list) std::for_each(given.begin(), given.end(), one);
    b_.texts(b_.start(at.rule), std::move(texts), b_.end(at.rule));
  }

  void add_branches(const Todo& at, const char* word) {
    const Json& given = (*at.schema)[word];
    const std::string path = below(at.path, word);
    if (!given.is_array() || given.empty()) return malformed(path, "a list of schemas", given);
    if (std::string_view(word) == "allOf" && given.size() > 1) {
      return unsupported(path, "allOf of one schema", fmt::format("{}", given.size()));
    }
    for (std::size_t i = 0; i < given.size() && !error_; ++i) {
      b_.call(b_.start(at.rule), rule_of(given[i], item_of(path, i), at.level + 1),
              b_.end(at.rule));
    }
  }

  // nullopt: any type.
  std::optional<std::vector<std::string>> types_of(const Todo& at) {
    const Json& s = *at.schema;
    std::vector<std::string> out;
    const auto take = [&](std::string_view type) {
      if (std::find(out.begin(), out.end(), type) == out.end()) out.emplace_back(type);
    };
    if (const auto type = s.find("type"); type != s.end()) {
      const Json list = type->is_array() ? *type : Json::array({*type});
      for (const Json& t : list) {
        const bool known =
            t.is_string() && std::find(std::begin(kTypes), std::end(kTypes),
                                       t.get_ref<const std::string&>()) != std::end(kTypes);
        if (!known) {
          malformed(below(at.path, "type"), fmt::format("{}", fmt::join(kTypes, ", ")), t);
          return std::nullopt;
        }
        take(t.get_ref<const std::string&>());
      }
      if (list.empty()) malformed(below(at.path, "type"), "at least one", *type);
      return out;
    }
    for (const TypeWord& t : kTyped) {
      if (s.contains(std::string(t.keyword))) take(t.type);
    }
    if (out.empty()) return std::nullopt;
    return out;
  }

  void add_type(const Todo& at, std::string_view type) {
    const State start = b_.start(at.rule), end = b_.end(at.rule);
    if (type == "object") return add_object(at);
    if (type == "array") return add_array(at);
    if (type == "string") return add_string(at);
    if (type == "integer") return add_integer(at);
    if (type == "number") return add_number(at);
    if (type == "null") return b_.skip(b_.text(start, "null"), end);
    for (const char* word : {"true", "false"}) b_.skip(b_.text(start, word), end);
  }

  // A nonnegative count; `absent` if missing.
  std::int64_t count_of(const Todo& at, const char* word, std::int64_t absent) {
    const auto value = at.schema->find(word);
    if (value == at.schema->end()) return absent;
    const std::string path = below(at.path, word);
    const bool whole = has_type(*value, "integer") && value->get<double>() >= 0;
    if (!whole) {
      malformed(path, "an integer, 0 or more", *value);
      return absent;
    }
    if (value->get<double>() > static_cast<double>(kMostRepeats)) {
      unsupported(path, fmt::format("at most {}", kMostRepeats), json_text(*value));
      return absent;
    }
    return static_cast<std::int64_t>(value->get<double>());
  }

  void add_string(const Todo& at) {
    const Json& s = *at.schema;
    const State start = b_.start(at.rule), end = b_.end(at.rule);
    const std::int64_t least = count_of(at, "minLength", 0);
    const std::int64_t most = count_of(at, "maxLength", -1);
    if (error_) return;
    const char* shape = s.contains("pattern") ? "pattern" : s.contains("format") ? "format" : "";
    if (*shape == '\0') {
      const bool any = least == 0 && most < 0;
      if (most >= 0 && least > most) return;
      b_.call(start, any ? json_.string() : json_.string(least, most), end);
      return;
    }
    for (const char* other : {"minLength", "maxLength", "format"}) {
      if (!s.contains(other) || std::string_view(other) == shape) continue;
      return unsupported(below(at.path, other), fmt::format("{} without it", shape), other);
    }
    const std::string path = below(at.path, shape);
    if (!s[shape].is_string()) return malformed(path, "a string", s[shape]);
    std::string pattern = s[shape].get<std::string>();
    const bool format = std::string_view(shape) == "format";
    if (format) {
      const auto known = format_pattern(pattern);
      if (!known) return unsupported(path, known_formats(), quote(pattern));
      pattern = *known;
    }
    const auto regex = parse_regex(pattern, path);
    if (!regex) {
      error_ = regex.error();
      return;
    }
    const State inside = b_.text(start, "\"");
    const State close = add_regex(
        b_, inside, *regex, format ? RegexMatch::whole : RegexMatch::anywhere, Spelling::quoted);
    b_.skip(b_.text(close, "\""), end);
  }

  void add_number(const Todo& at) {
    for (const TypeWord& t : kTyped) {
      const std::string word(t.keyword);
      if (t.type == "number" && at.schema->contains(word)) {
        return unsupported(below(at.path, word), "bounds of type integer alone", "of numbers");
      }
    }
    b_.call(b_.start(at.rule), json_.number(), b_.end(at.rule));
  }

  // The nearest integer inside the bound; nullopt if there is none, or no bound.
  std::optional<Integer> bound(const Todo& at, const char* word, bool lower, bool open) {
    const auto value = at.schema->find(word);
    if (value == at.schema->end()) return std::nullopt;
    if (!value->is_number()) {
      malformed(below(at.path, word), "a number", *value);
      return std::nullopt;
    }
    const auto as_double = value->get<double>();
    if (std::abs(as_double) > 9e18) {
      unsupported(below(at.path, word), "a bound from -9e18 to 9e18", json_text(*value));
      return std::nullopt;
    }
    std::int64_t i = 0;
    if (value->is_number_integer()) {
      i = value->get<std::int64_t>();
      if (open) i += lower ? 1 : -1;
    } else {
      const double near = lower ? std::ceil(as_double) : std::floor(as_double);
      i = static_cast<std::int64_t>(near);
      if (open && near == as_double) i += lower ? 1 : -1;
    }
    return Integer{i < 0, static_cast<std::uint64_t>(i < 0 ? -i : i)};
  }

  static bool less(const Integer& a, const Integer& b) {
    if (a.negative != b.negative) return a.negative;
    return a.negative ? a.size > b.size : a.size < b.size;
  }

  void add_integer(const Todo& at) {
    std::optional<Integer> least, most;
    for (const bool open : {false, true}) {
      const auto low = bound(at, open ? "exclusiveMinimum" : "minimum", true, open);
      const auto high = bound(at, open ? "exclusiveMaximum" : "maximum", false, open);
      if (low && (!least || less(*least, *low))) least = low;
      if (high && (!most || less(*high, *most))) most = high;
    }
    if (error_) return;
    b_.call(b_.start(at.rule), json_.integer(least, most), b_.end(at.rule));
  }

  void add_array(const Todo& at) {
    const Json& s = *at.schema;
    const std::int64_t least = count_of(at, "minItems", 0);
    const std::int64_t most = count_of(at, "maxItems", -1);
    if (error_ || (most >= 0 && least > most)) return;
    static const Json kNone = Json::array();
    const Json& first = s.contains("prefixItems") ? s["prefixItems"] : kNone;
    if (!first.is_array()) return malformed(below(at.path, "prefixItems"), "a list", first);
    const auto item = [&](std::int64_t i) -> Rule {
      if (i < std::ssize(first)) {
        const auto k = static_cast<std::size_t>(i);
        return rule_of(first[k], item_of(below(at.path, "prefixItems"), k), at.level + 1);
      }
      if (!s.contains("items")) return json_.value();
      return rule_of(s["items"], below(at.path, "items"), at.level + 1);
    };
    const State open = json_.space(b_.text(b_.start(at.rule), "["));
    const State close = b_.state(open);  // before ]
    if (least == 0) b_.skip(open, close);
    // Items that need a state of their own: those with a schema, or all that are counted.
    const std::int64_t told = most >= 0 ? most : std::max<std::int64_t>(least, std::ssize(first));
    State before = open;  // before the next item
    for (std::int64_t i = 0; i < told && !b_.full() && !error_; ++i) {
      const State after = b_.state(open);
      b_.call(before, item(i), after);
      if (i + 1 >= least) b_.skip(json_.space(after), close);
      before = json_.comma(after);
    }
    if (most < 0) {
      const State again = b_.state(open), after = b_.state(open);
      b_.skip(before, again);
      b_.call(again, item(told), after);
      b_.skip(json_.comma(after), again);
      b_.skip(json_.space(after), close);
    }
    b_.skip(b_.text(close, "]"), b_.end(at.rule));
  }

  struct Property {
    std::string name;
    Rule rule;
    bool required;
  };

  std::vector<Property> properties_of(const Todo& at, const Json& additional) {
    const Json& s = *at.schema;
    static const Json kNothing = Json::object();
    const Json& given = s.contains("properties") ? s["properties"] : kNothing;
    const std::string path = below(at.path, "properties");
    std::vector<Property> out;
    if (!given.is_object()) {
      malformed(path, "an object", given);
      return out;
    }
    std::vector<std::string> required;
    if (s.contains("required")) {
      const Json& names = s["required"];
      const bool strings = names.is_array() && std::all_of(names.begin(), names.end(),
                                                           [](auto& n) { return n.is_string(); });
      if (!strings) {
        malformed(below(at.path, "required"), "a list of names", names);
        return out;
      }
      required = names.get<std::vector<std::string>>();
    }
    for (const auto& item : given.items()) {
      const bool needed = std::find(required.begin(), required.end(), item.key()) != required.end();
      out.push_back(
          {item.key(), rule_of(item.value(), below(path, item.key()), at.level + 1), needed});
    }
    for (const std::string& name : required) {
      const bool known =
          std::any_of(out.begin(), out.end(), [&](const Property& p) { return p.name == name; });
      if (known) continue;
      out.push_back(
          {name, rule_of(additional, below(at.path, "additionalProperties"), at.level + 1), true});
    }
    return out;
  }

  void add_object(const Todo& at) {
    static const Json kAny = true;
    const Json& s = *at.schema;
    const Json& additional = s.contains("additionalProperties") ? s["additionalProperties"] : kAny;
    const std::vector<Property> properties = properties_of(at, additional);
    if (error_) return;
    const std::size_t n = properties.size();
    // Whether the object may end before property i.
    std::vector<bool> may_end(n + 1, true);
    for (std::size_t i = n; i-- > 0;) may_end[i] = may_end[i + 1] && !properties[i].required;

    const State open = json_.space(b_.text(b_.start(at.rule), "{"));
    const State close = b_.state(open);  // before }
    if (may_end[0]) b_.skip(open, close);
    const auto value = [&](State name_end, Rule rule, State to) {
      b_.call(json_.space(b_.text(json_.space(name_end), ":")), rule, to);
    };
    // From the end of a property's value to property i or a later one.
    const auto go_on = [&](State after, std::size_t i, State before) {
      if (may_end[i]) b_.skip(json_.space(after), close);
      b_.skip(json_.comma(after), before);
    };
    State before = open;
    for (std::size_t i = 0; i < n && !b_.full(); ++i) {
      const Property& p = properties[i];
      const State next = b_.state(open);
      const State after = b_.state(open);
      value(b_.text(before, "\"" + quoted_text(p.name) + "\""), p.rule, after);
      if (!p.required) b_.skip(before, next);
      go_on(after, i + 1, next);
      before = next;
    }
    if (additional != false) {
      std::vector<std::string> names;
      for (const Property& p : properties) names.push_back(p.name);
      const State again = b_.state(open), name = b_.state(open), after = b_.state(open);
      b_.skip(before, again);
      b_.call(again, names.empty() ? json_.string() : json_.name_except(names), name);
      value(name, rule_of(additional, below(at.path, "additionalProperties"), at.level + 1), after);
      go_on(after, n, again);
    }
    b_.skip(b_.text(close, "}"), b_.end(at.rule));
  }

  Builder& b_;
  JsonRules& json_;
  const Json& root_;
  const std::string& root_path_;
  std::unordered_map<const Json*, Rule> rules_;
  std::vector<Todo> todo_;
  std::optional<Error> error_;
};

}  // namespace

Result<Rule> add_schema(Builder& b, JsonRules& json, const Json& schema, const std::string& path) {
  return SchemaRules(b, json, schema, path).run();
}

}  // namespace lathe::grammar
