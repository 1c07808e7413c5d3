// The keywords of a schema, as shapes.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <string_view>
#include <tuple>

#include "base/json.h"
#include "server/grammar/schema/formats.h"
#include "server/grammar/schema/schema_shapes.h"

namespace lathe::grammar {
namespace {

using Json = nlohmann::ordered_json;

// Keywords that constrain nothing.
constexpr std::string_view kAnnotations[] = {"title",
                                             "description",
                                             "default",
                                             "examples",
                                             "example",
                                             "deprecated",
                                             "readOnly",
                                             "writeOnly",
                                             "$comment",
                                             "$schema",
                                             "$id",
                                             "$anchor",
                                             "$dynamicAnchor",
                                             "$vocabulary",
                                             "$defs",
                                             "definitions",
                                             "discriminator",
                                             "contentMediaType",
                                             "contentEncoding",
                                             "contentSchema",
                                             "xml",
                                             "externalDocs",
                                             "enumNames",
                                             "enumDescriptions",
                                             "propertyOrdering",
                                             "errorMessage",
                                             "markdownDescription",
                                             "then",
                                             "else",
                                             "minContains",
                                             "maxContains"};
constexpr std::string_view kFollowed[] = {"type",
                                          "enum",
                                          "const",
                                          "nullable",
                                          "minimum",
                                          "maximum",
                                          "exclusiveMinimum",
                                          "exclusiveMaximum",
                                          "multipleOf",
                                          "minLength",
                                          "maxLength",
                                          "pattern",
                                          "format",
                                          "items",
                                          "prefixItems",
                                          "additionalItems",
                                          "contains",
                                          "minItems",
                                          "maxItems",
                                          "uniqueItems",
                                          "properties",
                                          "patternProperties",
                                          "additionalProperties",
                                          "required",
                                          "propertyNames",
                                          "minProperties",
                                          "maxProperties",
                                          "dependentRequired",
                                          "dependentSchemas",
                                          "dependencies",
                                          "$ref",
                                          "$dynamicRef",
                                          "allOf",
                                          "anyOf",
                                          "oneOf",
                                          "not",
                                          "if",
                                          "unevaluatedItems",
                                          "unevaluatedProperties"};
constexpr std::string_view kTypes[] = {"object",  "array",   "string", "number",
                                       "integer", "boolean", "null"};

bool is_in(std::string_view word, std::span<const std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

bool SchemaShapes::is_annotation(std::string_view word) {
  return word.starts_with("x-") || is_in(word, kAnnotations);
}

void SchemaShapes::check_keywords(const Json& schema) {
  for (const auto& item : schema.items()) {
    const std::string& word = item.key();
    const bool known =
        word.starts_with("x-") || is_in(word, kAnnotations) || is_in(word, kFollowed);
    if (known || doc_.failed()) continue;
    doc_.cannot_follow(below(doc_.path_of(schema), word), "keywords that docs/server.md lists",
                       word);
  }
}

SchemaShapes::Shapes SchemaShapes::expand_schema(const Json& schema) {
  if (schema.is_boolean()) return schema.get<bool>() ? all_shapes() : Shapes{};
  if (!schema.is_object()) {
    doc_.malformed(doc_.path_of(schema), "a schema", schema);
    return {};
  }
  check_keywords(schema);
  const bool annotates =
      schema.contains("unevaluatedProperties") || schema.contains("unevaluatedItems");
  annotating_ += annotates ? 1 : 0;
  Shapes out = expand_keywords(schema);
  if (!doc_.failed()) add_unevaluated(schema, out);
  annotating_ -= annotates ? 1 : 0;
  return out;
}

// All but unevaluated ones.
SchemaShapes::Shapes SchemaShapes::expand_keywords(const Json& schema) {
  Shapes out = all_shapes();
  using Add = void (SchemaShapes::*)(const Json&, Shapes&);
  for (const Add add :
       {&SchemaShapes::add_type, &SchemaShapes::add_values, &SchemaShapes::add_numbers,
        &SchemaShapes::add_texts, &SchemaShapes::add_arrays, &SchemaShapes::add_objects,
        &SchemaShapes::add_dependent, &SchemaShapes::add_branches, &SchemaShapes::add_conditions}) {
    if (!doc_.failed()) (this->*add)(schema, out);
  }
  return out;
}

const Json* SchemaShapes::list_in(const Json& schema, const char* word) {
  const auto at = schema.find(word);
  if (at == schema.end()) return nullptr;
  const std::string path = below(doc_.path_of(schema), word);
  if (!at->is_array() || at->empty()) {
    doc_.malformed(path, "a list of schemas", *at);
    return nullptr;
  }
  for (std::size_t i = 0; i < at->size(); ++i) doc_.name((*at)[i], item_of(path, i));
  return &*at;
}

const Json* SchemaShapes::object_in(const Json& schema, const char* word) {
  const auto at = schema.find(word);
  if (at == schema.end()) return nullptr;
  const std::string path = below(doc_.path_of(schema), word);
  if (!at->is_object()) {
    doc_.malformed(path, "an object", *at);
    return nullptr;
  }
  for (const auto& item : at->items()) doc_.name(item.value(), below(path, item.key()));
  return &*at;
}

const Json* SchemaShapes::schema_in(const Json& schema, const char* word) {
  const auto at = schema.find(word);
  if (at == schema.end()) return nullptr;
  if (!at->is_object() && !at->is_boolean()) {
    doc_.malformed(below(doc_.path_of(schema), word), "a schema", *at);
    return nullptr;
  }
  return &doc_.name_below(schema, word, *at);
}

std::optional<std::vector<std::string>> SchemaShapes::strings_of(const Json& list,
                                                                 const std::string& path) {
  const bool strings = list.is_array() &&
                       std::all_of(list.begin(), list.end(), [](auto& n) { return n.is_string(); });
  if (strings) return list.get<std::vector<std::string>>();
  doc_.malformed(path, "a list of names", list);
  return std::nullopt;
}

std::optional<std::int64_t> SchemaShapes::count_of(const Json& schema, const char* word) {
  const auto value = schema.find(word);
  if (value == schema.end()) return std::nullopt;
  const std::string path = below(doc_.path_of(schema), word);
  const auto number = decimal_of(*value);
  if (!number || !number->is_integer() || number->negative) {
    doc_.malformed(path, "an integer, 0 or more", *value);
    return std::nullopt;
  }
  if (number->whole.size() > 9 ||
      (!number->whole.empty() && std::stoll(number->whole) > kMostRepeats)) {
    doc_.cannot_follow(path, fmt::format("at most {}", kMostRepeats), json_text(*value));
    return std::nullopt;
  }
  return number->whole.empty() ? 0 : std::stoll(number->whole);
}

std::optional<Decimal> SchemaShapes::number_of(const Json& schema, const char* word) {
  const auto value = schema.find(word);
  if (value == schema.end()) return std::nullopt;
  std::string wanted = "a number";
  if (std::string_view(word).starts_with("exclusive") && value->is_boolean()) {
    const char* bound = std::string_view(word) == "exclusiveMinimum" ? "minimum" : "maximum";
    if (*value == false || schema.contains(bound)) return std::nullopt;
    wanted = fmt::format("a number, or true beside {}", bound);
  }
  auto out = decimal_of(*value);
  if (!out) doc_.malformed(below(doc_.path_of(schema), word), std::move(wanted), *value);
  return out;
}

bool SchemaShapes::is_nullable(const Json& schema) {
  const auto at = schema.find("nullable");
  return at != schema.end() && *at == true && schema.contains("type");
}

bool SchemaShapes::excludes_bound(const Json& schema, std::string_view bound) {
  const auto at = schema.find(bound == "minimum" ? "exclusiveMinimum" : "exclusiveMaximum");
  return at != schema.end() && *at == true;
}

void SchemaShapes::add_type(const Json& schema, Shapes& out) {
  if (const auto nullable = schema.find("nullable");
      nullable != schema.end() && !nullable->is_boolean()) {
    return doc_.malformed(below(doc_.path_of(schema), "nullable"), "true or false", *nullable);
  }
  const auto type = schema.find("type");
  if (type == schema.end()) return;
  const std::string path = below(doc_.path_of(schema), "type");
  const Json list = type->is_array() ? *type : Json::array({*type});
  std::vector<std::string> names;
  for (const Json& t : list) {
    if (!t.is_string() || !is_in(t.get_ref<const std::string&>(), kTypes)) {
      return doc_.malformed(path, fmt::format("{}", fmt::join(kTypes, ", ")), t);
    }
    names.push_back(t.get<std::string>());
  }
  if (list.empty()) return doc_.malformed(path, "at least one", *type);
  if (is_nullable(schema)) names.push_back("null");
  const auto has = [&](const char* name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  Shapes types;
  const std::pair<const char*, Shape::Type> kinds[] = {
      {"null", Shape::Type::null},     {"boolean", Shape::Type::boolean},
      {"string", Shape::Type::string}, {"array", Shape::Type::array},
      {"object", Shape::Type::object}, {"number", Shape::Type::number}};
  for (const auto& [name, kind] : kinds) {
    if (has(name)) types.push_back(shape_of(kind));
  }
  if (has("integer") && !has("number")) {
    types.push_back(shape_of(Shape::Type::number));
    types.back().numbers.kind = Numbers::Kind::integer;
  }
  out = meet(out, types);
}

void SchemaShapes::add_values(const Json& schema, Shapes& out) {
  for (const char* word : {"const", "enum"}) {
    const auto given = schema.find(word);
    if (given == schema.end()) continue;
    const bool list = std::string_view(word) == "enum";
    if (list && !given->is_array()) {
      return doc_.malformed(below(doc_.path_of(schema), word), "a list", *given);
    }
    Shapes values = all_shapes();
    for (Shape& s : values) s.values.emplace();
    const auto add = [&](const Json& v) {
      values[static_cast<std::size_t>(type_of(v))].values->push_back(&v);
    };
    if (!list) add(*given);
    if (list) std::for_each(given->begin(), given->end(), add);
    std::erase_if(values, [](const Shape& s) { return s.values->empty(); });
    out = meet(out, values);
  }
}

void SchemaShapes::add_numbers(const Json& schema, Shapes& out) {
  Shape shape = shape_of(Shape::Type::number);
  Numbers& n = shape.numbers;
  n.least = number_of(schema, "minimum");
  n.above = n.least && excludes_bound(schema, "minimum");
  n.most = number_of(schema, "maximum");
  n.below = n.most && excludes_bound(schema, "maximum");
  if (const auto low = number_of(schema, "exclusiveMinimum");
      low && (!n.least || *low >= *n.least)) {
    n.least = low;
    n.above = true;
  }
  if (const auto high = number_of(schema, "exclusiveMaximum");
      high && (!n.most || *high <= *n.most)) {
    n.most = high;
    n.below = true;
  }
  if (const auto step = number_of(schema, "multipleOf")) {
    if (step->negative || step->is_zero()) {
      return doc_.malformed(below(doc_.path_of(schema), "multipleOf"), "a number above 0",
                            schema["multipleOf"]);
    }
    n.steps.push_back(*step);
  }
  if (doc_.failed()) return;
  if (n.none()) {
    std::erase_if(out, [](const Shape& s) { return s.type == Shape::Type::number; });
    return;
  }
  if (!shape.open()) out = meet(out, with_other_types(std::move(shape)));
}

std::optional<TextRule> SchemaShapes::text_rule_of(const Json& schema, const char* word) {
  const auto given = schema.find(word);
  if (given == schema.end()) return std::nullopt;
  const std::string path = below(doc_.path_of(schema), word);
  if (!given->is_string()) {
    doc_.malformed(path, "a string", *given);
    return std::nullopt;
  }
  std::string pattern = given->get<std::string>();
  const bool format = std::string_view(word) == "format";
  if (format) {
    const auto known = format_pattern(pattern);
    if (!known || !formats_) return std::nullopt;  // an annotation
    pattern = *known;
  }
  const Regex* regex = doc_.pattern(pattern, path);
  if (regex == nullptr) return std::nullopt;
  return TextRule{regex, format ? RegexMatch::whole : RegexMatch::anywhere};
}

void SchemaShapes::add_texts(const Json& schema, Shapes& out) {
  Shape shape = shape_of(Shape::Type::string);
  shape.least = count_of(schema, "minLength").value_or(0);
  shape.most = count_of(schema, "maxLength").value_or(-1);
  for (const char* word : {"pattern", "format"}) {
    if (auto rule = text_rule_of(schema, word)) shape.texts.push_back(std::move(*rule));
  }
  if (!doc_.failed() && !shape.open()) out = meet(out, with_other_types(std::move(shape)));
}

void SchemaShapes::add_arrays(const Json& schema, Shapes& out) {
  Shape shape = shape_of(Shape::Type::array);
  shape.least = count_of(schema, "minItems").value_or(0);
  shape.most = count_of(schema, "maxItems").value_or(-1);
  ArrayPart part;
  // Before draft 2020-12 a list of first items was in `items`, and others in `additionalItems`.
  const auto items = schema.find("items");
  const bool old = items != schema.end() && items->is_array();
  if (const Json* first =
          old && items->empty() ? nullptr : list_in(schema, old ? "items" : "prefixItems")) {
    for (const Json& s : *first) part.first.push_back(term(s));
  }
  if (const Json* others = schema_in(schema, old ? "additionalItems" : "items")) {
    part.others = term(*others);
  }
  if (!part.first.empty() || part.others) {
    shape.arrays.push_back(std::make_shared<ArrayPart>(std::move(part)));
  }
  if (const Json* item = schema_in(schema, "contains")) {
    const std::int64_t least = count_of(schema, "minContains").value_or(1);
    const std::int64_t most = count_of(schema, "maxContains").value_or(-1);
    if (least > 0 || most >= 0 || annotating_ > 0)
      shape.contains.push_back({most < 0 ? term(*item) : condition(*item), least, most});
  }
  if (const auto unique = schema.find("uniqueItems"); unique != schema.end()) {
    if (!unique->is_boolean()) {
      return doc_.malformed(below(doc_.path_of(schema), "uniqueItems"), "true or false", *unique);
    }
    shape.unique = unique->get<bool>();
  }
  if (!doc_.failed() && !shape.open()) out = meet(out, with_other_types(std::move(shape)));
}

void SchemaShapes::add_objects(const Json& schema, Shapes& out) {
  Shape shape = shape_of(Shape::Type::object);
  shape.least = count_of(schema, "minProperties").value_or(0);
  shape.most = count_of(schema, "maxProperties").value_or(-1);
  ObjectPart part;
  if (const Json* named = object_in(schema, "properties")) {
    for (const auto& item : named->items())
      part.properties.push_back({item.key(), term(item.value())});
  }
  if (const Json* named = object_in(schema, "patternProperties")) {
    for (const auto& item : named->items()) {
      const std::string path = below(below(doc_.path_of(schema), "patternProperties"), item.key());
      const Regex* regex = doc_.pattern(item.key(), path);
      if (regex != nullptr) part.patterns.push_back({regex, term(item.value())});
    }
  }
  if (const Json* others = schema_in(schema, "additionalProperties")) {
    part.others = term(*others);
  }
  if (!part.properties.empty() || !part.patterns.empty() || part.others) {
    shape.objects.push_back(std::make_shared<ObjectPart>(std::move(part)));
  }
  const auto required = schema.find("required");
  // Draft 3, and some tools, have a boolean in a property.
  if (required != schema.end() && !required->is_boolean()) {
    const auto names = strings_of(*required, below(doc_.path_of(schema), "required"));
    if (names) shape.required = *names;
  }
  if (const Json* names = schema_in(schema, "propertyNames")) add_term(shape.names, term(*names));
  if (!doc_.failed() && !shape.open()) out = meet(out, with_other_types(std::move(shape)));
}

// The same values, of which unevaluated keywords see nothing: of `not`.
std::vector<Shape> SchemaShapes::without_annotations(Shapes shapes) {
  const auto hide = [](auto& parts) {
    for (auto& p : parts) {
      auto own = *p;
      own.evaluates = false;
      p = std::make_shared<std::remove_const_t<decltype(own)>>(std::move(own));
    }
  };
  for (Shape& s : shapes) {
    if (annotating_ == 0) break;
    hide(s.arrays);
    hide(s.objects);
    for (Contains& c : s.contains) c.evaluates = false;
  }
  return shapes;
}

// Objects without the member, or with all that it depends on.
void SchemaShapes::add_dependent(const Json& schema, Shapes& out) {
  for (const char* word : {"dependentRequired", "dependentSchemas", "dependencies"}) {
    const Json* named = object_in(schema, word);
    if (named == nullptr) continue;
    for (const auto& item : named->items()) {
      const std::string path = below(below(doc_.path_of(schema), word), item.key());
      Shapes either = with_other_types(without_member(item.key()));
      Shape with = shape_of(Shape::Type::object);
      with.required = {item.key()};
      Shapes more;
      if (item.value().is_array()) {
        const auto names = strings_of(item.value(), path);
        if (!names) return;
        for (const std::string& n : *names) {
          if (n != item.key()) with.required.push_back(n);
        }
        more = {with};
      } else {
        more = meet({with}, expand(item.value()));
      }
      if (doc_.failed()) return;
      for (Shape& s : more) either.push_back(std::move(s));
      out = meet(out, either);
    }
  }
}

}  // namespace lathe::grammar
