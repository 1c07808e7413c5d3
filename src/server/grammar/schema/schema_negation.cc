// What a schema does not allow, as shapes: what one of its keywords does not.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <tuple>

#include "base/json_digits.h"
#include "server/grammar/schema/schema_shapes.h"

namespace lathe::grammar {
namespace {

using Json = nlohmann::ordered_json;

const Json kAnything = true;

}  // namespace

SchemaShapes::Shapes SchemaShapes::expand_negated(const Json& schema) {
  if (schema.is_boolean()) return schema.get<bool>() ? Shapes{} : all_shapes();
  if (!schema.is_object()) {
    doc_.malformed(doc_.path_of(schema), "a schema", schema);
    return {};
  }
  Shapes out;
  for (const auto& item : schema.items()) {
    if (doc_.failed()) return {};
    join(out, negate(schema, item.key()));
  }
  return out;
}

SchemaShapes::Shapes SchemaShapes::negate(const Json& schema, const std::string& word) {
  const std::string path = below(doc_.path_of(schema), word);
  if (is_annotation(word)) return {};
  const Json& value = schema[word];
  const bool any_others = word.ends_with("Properties") || word.ends_with("Items");
  if ((any_others && word != "uniqueItems" && value == true) ||
      (word == "uniqueItems" && value == false))
    return {};
  if (word == "type" || word == "nullable") {
    Shapes types = all_shapes();
    add_type(schema, types);
    Shapes out;
    if (word == "nullable" || doc_.failed()) return out;
    for (const Shape& s : all_shapes()) {
      const auto at = std::find_if(types.begin(), types.end(),
                                   [&](const Shape& t) { return t.type == s.type; });
      if (at == types.end()) out.push_back(s);
      if (at == types.end() || at->numbers.kind != Numbers::Kind::integer) continue;
      out.push_back(s);
      out.back().numbers.kind = Numbers::Kind::fraction;
    }
    return out;
  }
  if (word == "const") return negate_values(Json::array({schema["const"]}));
  if (word == "enum") {
    if (value.is_array()) return negate_values(value);
    doc_.malformed(path, "a list", value);
    return {};
  }
  if (word == "not") {
    const Json* no = schema_in(schema, "not");
    return no == nullptr ? Shapes{} : expand(*no);
  }
  if (word == "$ref" || word == "$dynamicRef") {
    const Json* target = doc_.resolve(schema, word.c_str(), scope_);
    return target == nullptr ? Shapes{} : expand(*target, true);
  }
  if (word == "allOf" || word == "anyOf") {
    const Json* list = list_in(schema, word.c_str());
    Shapes out = word == "anyOf" ? all_shapes() : Shapes{};
    for (std::size_t i = 0; list != nullptr && i < list->size() && !doc_.failed(); ++i) {
      Shapes no = expand((*list)[i], true);
      if (doc_.failed()) return {};
      if (word == "anyOf") {
        out = meet(out, no);
      } else {
        join(out, std::move(no));
      }
    }
    return out;
  }
  if (word == "oneOf") {
    const Json* list = list_in(schema, "oneOf");
    return list == nullptr ? Shapes{} : none_or_several_of(*list);
  }
  if (word == "if") {
    const Json* condition = schema_in(schema, "if");
    Shapes out;
    for (const char* then : {"then", "else"}) {
      const Json* follows = schema_in(schema, then);
      if (follows == nullptr || condition == nullptr || doc_.failed()) continue;
      const Shapes holds = expand(this->condition(*condition, then[0] == 'e'));
      if (!doc_.failed()) join(out, meet(holds, expand(*follows, true)));
    }
    return out;
  }
  for (const auto& more : {negate_text_or_count(schema, word), negate_members(schema, word),
                           negate_dependent(schema, word), negate_names(schema, word),
                           negate_unevaluated(schema, word), negate_items(schema, word)}) {
    if (more || doc_.failed()) return more.value_or(Shapes{});
  }
  if (word.ends_with("imum")) return negate_number(schema, word);
  doc_.unsupported(path, "a keyword that can be negated", word);
  return {};
}

SchemaShapes::Shapes SchemaShapes::none_or_several_of(const Json& schemas) {
  std::vector<Shapes> each;
  Shapes out = all_shapes();
  for (const Json& s : schemas) {
    each.push_back(expand(condition(s)));
    if (doc_.failed()) return {};
    out = meet(out, expand(s, true));
    if (doc_.failed()) return {};
  }
  for (std::size_t i = 0; i < each.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) join(out, meet(each[i], each[j]));
  }
  return out;
}

// Any value but those of the list. Keeps copies of them, since shapes have pointers.
SchemaShapes::Shapes SchemaShapes::negate_values(const Json& list) {
  const Json& kept = kept_.emplace_back(list);
  Shapes out = all_shapes();
  for (const Json& v : kept) {
    Shape& s = out[static_cast<std::size_t>(type_of(v))];
    if (is_json_number(v)) {
      if (const auto number = decimal_of(v)) s.numbers.except.push_back(*number);
    } else {
      s.except.push_back(&v);
    }
  }
  std::erase_if(out,
                [](const Shape& s) { return !s.except.empty() && s.type == Shape::Type::null; });
  return out;
}

SchemaShapes::Shapes SchemaShapes::negate_number(const Json& schema, const std::string& word) {
  const auto bound = number_of(schema, word.c_str());
  Shape out = shape_of(Shape::Type::number);
  if (!bound) return {};
  const bool exclusive = word.starts_with("excl") || excludes_bound(schema, word);
  if (word == "minimum" || word == "exclusiveMinimum") {
    out.numbers.most = bound;
    out.numbers.below = !exclusive;
  } else {
    out.numbers.least = bound;
    out.numbers.above = !exclusive;
  }
  return {out};
}

std::optional<SchemaShapes::Shapes> SchemaShapes::negate_text_or_count(const Json& schema,
                                                                       const std::string& word) {
  const std::tuple<const char*, Shape::Type, bool> counts[] = {
      {"minLength", Shape::Type::string, true},     {"maxLength", Shape::Type::string, false},
      {"minItems", Shape::Type::array, true},       {"maxItems", Shape::Type::array, false},
      {"minProperties", Shape::Type::object, true}, {"maxProperties", Shape::Type::object, false}};
  for (const auto& [name, type, least] : counts) {
    if (word != name) continue;
    const auto count = count_of(schema, name);
    if (!count || (least && *count == 0)) return Shapes{};
    Shape out = shape_of(type);
    if (least) out.most = *count - 1;
    if (!least) out.least = *count + 1;
    return Shapes{out};
  }
  if (word != "pattern" && word != "format") return std::nullopt;
  if (word == "format") {
    // The standard's `format` is an annotation, so a value never violates it. Alternatives of oneOf
    // that differ in it would then all hold at once: an attempt to tell them apart fails.
    return attempts_ > 0 && formats_ ? std::nullopt : std::optional(Shapes{});
  }
  auto rule = text_rule_of(schema, word.c_str());
  if (!rule) return Shapes{};
  rule->negated = true;
  Shape out = shape_of(Shape::Type::string);
  out.texts.push_back(std::move(*rule));
  return Shapes{out};
}

std::optional<SchemaShapes::Shapes> SchemaShapes::negate_members(const Json& schema,
                                                                 const std::string& word) {
  Shapes out;
  if (word == "required" && schema["required"].is_boolean()) return out;
  if (word == "required" && schema["required"].is_array()) {
    const auto names = strings_of(schema["required"], below(doc_.path_of(schema), word));
    for (const std::string& n : names.value_or(std::vector<std::string>{})) {
      out.push_back(without_member(n));
    }
    return out;
  }
  if (word != "properties") return std::nullopt;
  const Json* named = object_in(schema, word.c_str());
  if (named == nullptr) return out;
  for (const auto& item : named->items()) {
    const SchemaTerm no = term(item.value(), true);
    if (never({no})) continue;
    if (!can_be_negated(item.value())) return out;
    ObjectPart part;
    part.properties.push_back({item.key(), no});
    part.evaluates = false;
    Shape shape = shape_of(Shape::Type::object);
    shape.objects.push_back(std::make_shared<ObjectPart>(std::move(part)));
    shape.required = {item.key()};
    if (!is_dead(shape)) out.push_back(std::move(shape));
  }
  return out;
}

// Objects with a member, but not with what it depends on.
std::optional<SchemaShapes::Shapes> SchemaShapes::negate_dependent(const Json& schema,
                                                                   const std::string& word) {
  if (!word.starts_with("depend")) return std::nullopt;
  Shapes out;
  const Json* named = object_in(schema, word.c_str());
  for (std::size_t i = 0; named != nullptr && i < named->size() && !doc_.failed(); ++i) {
    const auto item = std::next(named->begin(), static_cast<std::ptrdiff_t>(i));
    const std::string path = below(below(doc_.path_of(schema), word), item.key());
    Shape with = shape_of(Shape::Type::object);
    with.required = {item.key()};
    if (item.value().is_array()) {
      const auto names = strings_of(item.value(), path);
      for (const std::string& n : names.value_or(std::vector<std::string>{})) {
        if (n == item.key()) continue;
        out.push_back(without_member(n));
        out.back().required = {item.key()};
      }
    } else {
      join(out, meet({with}, expand(item.value(), true)));
    }
  }
  return out;
}

SchemaShapes::Shapes SchemaShapes::some_member(SomeMember some) {
  if (never(some.names) || never(some.value)) return {};
  Shape out = shape_of(Shape::Type::object);
  out.some.push_back(std::move(some));
  return {out};
}

// Keywords about members by their names: some member does not follow them.
std::optional<SchemaShapes::Shapes> SchemaShapes::negate_names(const Json& schema,
                                                               const std::string& word) {
  Shapes out;
  const auto pattern_of = [&](const std::string& pattern) {
    return doc_.pattern(pattern, below(below(doc_.path_of(schema), "patternProperties"), pattern));
  };
  if (word == "patternProperties") {
    const Json* named = object_in(schema, "patternProperties");
    for (std::size_t i = 0; named != nullptr && i < named->size() && !doc_.failed(); ++i) {
      const auto item = std::next(named->begin(), static_cast<std::ptrdiff_t>(i));
      const SchemaTerm no = term(item.value(), true);
      if (never({no})) continue;
      if (attempts_ > 0) return std::nullopt;  // may need many states
      const Regex* regex = pattern_of(item.key());
      if (regex == nullptr) continue;
      SomeMember some;
      some.patterns.push_back({regex, RegexMatch::anywhere});
      add_term(some.value, no);
      join(out, some_member(std::move(some)));
    }
    return out;
  }
  SomeMember some;
  if (word == "propertyNames") {
    const Json* names = schema_in(schema, "propertyNames");
    if (names == nullptr || !can_be_negated(*names)) return out;
    add_term(some.names, term(*names, true));
    return some_member(std::move(some));
  }
  if (word != "additionalProperties") return std::nullopt;
  if (attempts_ > 0 && schema.contains("patternProperties")) return std::nullopt;
  const Json* others = schema_in(schema, "additionalProperties");
  if (others == nullptr || !can_be_negated(*others)) return out;
  add_term(some.value, term(*others, true));
  if (const Json* named = object_in(schema, "properties")) {
    for (const auto& item : named->items()) some.not_named.push_back(item.key());
  }
  if (const Json* named = object_in(schema, "patternProperties")) {
    for (const auto& item : named->items()) {
      const Regex* regex = pattern_of(item.key());
      if (regex != nullptr) some.patterns.push_back({regex, RegexMatch::anywhere, {}, true});
    }
  }
  return some_member(std::move(some));
}

// Followed where each shape of the schema that an object can have is any object, but for what it
// evaluates, or where there is only one.
std::optional<SchemaShapes::Shapes> SchemaShapes::negate_unevaluated(const Json& schema,
                                                                     const std::string& word) {
  if (word != "unevaluatedProperties") return std::nullopt;
  const Json* members = schema_in(schema, word.c_str());
  if (members == nullptr || !can_be_negated(*members)) return Shapes{};
  ++annotating_;
  const bool formats = std::exchange(formats_, false);
  Shapes shapes = expand_keywords(schema);
  formats_ = formats;
  --annotating_;
  if (doc_.failed()) return Shapes{};
  std::erase_if(shapes, [](const Shape& s) { return s.type != Shape::Type::object; });
  const auto evaluates_alone = [](const Shape& s) {
    Shape rest = s;
    rest.objects.clear();
    return rest.open() && std::all_of(s.objects.begin(), s.objects.end(), [](const auto& part) {
             const auto open = [](const auto& named) { return is_true(named.second); };
             return std::all_of(part->properties.begin(), part->properties.end(), open) &&
                    std::all_of(part->patterns.begin(), part->patterns.end(), open) &&
                    (!part->others || is_true(*part->others));
           });
  };
  if (shapes.size() > 1 && !std::all_of(shapes.begin(), shapes.end(), evaluates_alone)) {
    return std::nullopt;
  }
  Shapes out = all_shapes();
  for (const Shape& s : shapes) {
    SomeMember some;
    add_term(some.value, term(*members, true));
    bool all = false;
    for (const auto& part : s.objects) {
      if (!part->evaluates) continue;
      for (const auto& named : part->properties) some.not_named.push_back(named.first);
      for (const auto& named : part->patterns) {
        some.patterns.push_back({named.first, RegexMatch::anywhere, {}, true});
      }
      all = all || part->others.has_value();
    }
    out = all ? Shapes{} : meet(out, meet({s}, some_member(std::move(some))));
  }
  return shapes.empty() ? Shapes{} : without_annotations(out);
}

std::optional<SchemaShapes::Shapes> SchemaShapes::negate_items(const Json& schema,
                                                               const std::string& word) {
  Shapes out;
  if (word == "prefixItems" || (word == "items" && schema["items"].is_array())) {
    if (schema[word].empty() && word == "items") return out;
    const Json* first = list_in(schema, word.c_str());
    for (std::size_t i = 0; first != nullptr && i < first->size(); ++i) {
      ArrayPart part;
      part.evaluates = false;
      if (!can_be_negated((*first)[i])) return out;
      part.first.assign(i, {&kAnything});
      part.first.push_back(term((*first)[i], true));
      Shape shape = shape_of(Shape::Type::array);
      shape.arrays.push_back(std::make_shared<ArrayPart>(std::move(part)));
      shape.least = static_cast<std::int64_t>(i) + 1;
      if (!is_dead(shape)) out.push_back(std::move(shape));
    }
    return out;
  }
  Shape shape = shape_of(Shape::Type::array);
  if (word == "additionalItems" && (!schema.contains("items") || !schema["items"].is_array())) {
    return out;  // the keyword has no effect
  }
  if (word == "items" && !schema.contains("prefixItems")) {
    const Json* item = schema_in(schema, "items");
    if (item == nullptr || never({term(*item, true)}) || !can_be_negated(*item)) return out;
    shape.contains.push_back({term(*item, true), 1, -1, false});
    return Shapes{shape};
  }
  if (word != "contains") return std::nullopt;
  const Json* item = schema_in(schema, "contains");
  if (item == nullptr) return out;
  const std::int64_t least = count_of(schema, "minContains").value_or(1);
  const std::int64_t most = count_of(schema, "maxContains").value_or(-1);
  if (least > 0) {
    out.push_back(shape);
    out.back().contains.push_back({condition(*item), 0, least - 1, false});
  }
  if (most >= 0) {
    shape.contains.push_back({condition(*item), most + 1, -1, false});
    out.push_back(shape);
  }
  return out;
}

}  // namespace lathe::grammar
