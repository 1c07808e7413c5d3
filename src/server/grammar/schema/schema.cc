#include "server/grammar/schema/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/grammar/schema/number_multiples.h"
#include "server/grammar/schema/schema_rules.h"

namespace lathe::grammar {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostSchemaLevels = 64;

const Json kObject = {{"type", "object"}};

// The only keyword of a schema that constrains anything, if it has one such keyword.
const char* only_keyword(const Json& schema, std::initializer_list<const char*> words) {
  const char* out = nullptr;
  for (const auto& item : schema.items()) {
    const std::string& word = item.key();
    const bool annotation = word == "$defs" || word == "definitions" || word == "title" ||
                            word == "description" || word == "default" || word == "$schema" ||
                            word == "discriminator" || word == "examples" || word == "$comment" ||
                            word == "$id" || word == "$anchor" || word.starts_with("x-");
    if (annotation) continue;
    const auto at = std::find_if(words.begin(), words.end(), [&](auto w) { return word == w; });
    if (at == words.end() || out != nullptr) return nullptr;
    out = *at;
  }
  return out;
}

}  // namespace

Result<Rule> add_schema(Builder& b, JsonRules& json, const Json& schema, const std::string& path,
                        const SchemaOptions& options) {
  SchemaDocument document(schema, path, options.lenient, options.ignored);
  SchemaTerms terms;
  SchemaShapes::add_term(terms, {&schema});
  if (options.object) SchemaShapes::add_term(terms, {&document.name(kObject, path)});
  return SchemaRules(b, json, document).run(terms);
}

Result<Rule> SchemaRules::run(const SchemaTerms& terms) {
  const Rule rule = rule_of(terms, 0);
  // Iterative, so a deep schema needs no stack.
  while (!todo_.empty() && !doc_.failed() && !b_.full()) {
    const Todo next = std::move(todo_.back());
    todo_.pop_back();
    add(next);
  }
  if (doc_.failed()) return *doc_.error();
  b_.spend(kStepsOfShapeWork * shapes_.work());
  return rule;
}

Rule SchemaRules::rule_of(SchemaTerms terms, int level) {
  const auto [it, fresh] = rules_.try_emplace(terms, 0);
  if (!fresh) return it->second;
  if (level > kMostSchemaLevels) {
    doc_.unsupported(doc_.path_of(*terms[0].schema),
                     fmt::format("at most {} levels", kMostSchemaLevels), "more");
  }
  it->second = terms.empty() ? json_.value() : b_.rule();
  if (!terms.empty()) todo_.push_back({it->second, std::move(terms), level});
  return it->second;
}

std::string SchemaRules::path_of(const Todo& at, const char* keyword) const {
  for (const SchemaTerm& t : at.terms) {
    if (t.schema->is_object() && t.schema->contains(keyword)) {
      return below(doc_.path_of(*t.schema), keyword);
    }
  }
  return doc_.path_of(*at.terms[0].schema);
}

void SchemaRules::too_large(const std::string& path) {
  doc_.fail({ErrorCode::exhausted, path, "texts that an automaton of 10,000 states follows",
             "a larger one", "simpler patterns, or fewer at once"});
}

void SchemaRules::add(const Todo& at) {
  if (SchemaShapes::never(at.terms) || add_simple(at)) return;
  const std::vector<Shape> shapes = shapes_.shapes_of(at.terms);
  const bool any = shapes.size() == all_shapes().size() &&
                   std::all_of(shapes.begin(), shapes.end(), [](auto& s) { return s.open(); });
  if (any) return b_.call(b_.start(at.rule), json_.value(), b_.end(at.rule));
  for (const Shape& s : shapes) {
    if (!doc_.failed() && !b_.full()) add_shape(at, s);
  }
}

// A schema that only refers to others calls their rules.
bool SchemaRules::add_simple(const Todo& at) {
  if (at.terms.size() != 1 || at.terms[0].negated || !at.terms[0].schema->is_object()) return false;
  const Json& schema = *at.terms[0].schema;
  const char* word = only_keyword(schema, {"$ref", "anyOf", "oneOf"});
  if (word == nullptr) return false;
  const State start = b_.start(at.rule), end = b_.end(at.rule);
  const int scope = doc_.enter(at.terms[0].scope, schema);
  if (word[0] == '$') {
    const Json* target = doc_.resolve(schema, word, scope);
    if (target == nullptr) return !doc_.ignore(below(doc_.path_of(schema), word));
    SchemaTerms terms;
    SchemaShapes::add_term(terms, {target, false, scope, at.terms[0].formats});
    b_.call(start, rule_of(std::move(terms), 0), end);
    return true;
  }
  const Json& given = schema[word];
  if (!given.is_array() || given.empty()) return false;
  const std::string path = below(doc_.path_of(schema), word);
  for (std::size_t i = 0; i < given.size(); ++i) doc_.name(given[i], item_of(path, i));
  if (word[0] == 'o' && given.size() > 1) {
    const bool overlap = shapes_.overlap(given, scope, at.terms[0].formats);
    if (doc_.failed()) return true;
    if (overlap) return false;
  }
  for (const Json& s : given) {
    SchemaTerms terms;
    SchemaShapes::add_term(terms, {&s, false, scope, at.terms[0].formats});
    b_.call(start, rule_of(std::move(terms), at.level + 1), end);
  }
  return true;
}

void SchemaRules::add_shape(const Todo& at, const Shape& shape) {
  if (shape.values || shape.type == Shape::Type::boolean) return add_values(at, shape);
  switch (shape.type) {
    case Shape::Type::null:
      return b_.skip(b_.text(b_.start(at.rule), "null"), b_.end(at.rule));
    case Shape::Type::number:
      return add_number(at, shape);
    case Shape::Type::string:
      return add_string(at, shape);
    case Shape::Type::array:
      return add_array(at, shape);
    default:
      return add_object(at, shape);
  }
}

void SchemaRules::add_values(const Todo& at, const Shape& shape) {
  static const Json kBooleans[] = {true, false};
  std::vector<const Json*> values = {&kBooleans[0], &kBooleans[1]};
  if (shape.values) values = *shape.values;
  std::vector<std::string> texts;
  for (const Json* value : values) {
    if (b_.full() || doc_.failed()) return;
    if (!shapes_.allows_listed(shape, *value)) continue;
    if (value->is_structured()) {
      b_.skip(json_.literal(b_.start(at.rule), *value), b_.end(at.rule));
      continue;
    }
    texts.push_back(json_.scalar(*value));
    const auto number = decimal_of(*value);
    if (value->is_number_float() && number && number->is_integer() &&
        number->whole.size() <= kMostDigits) {
      texts.push_back((number->negative ? "-" : "") + (number->is_zero() ? "0" : number->whole));
    }
  }
  b_.texts(b_.start(at.rule), std::move(texts), b_.end(at.rule));
}

void SchemaRules::add_number(const Todo& at, const Shape& shape) {
  const State start = b_.start(at.rule), end = b_.end(at.rule);
  Numbers numbers = shape.numbers;
  if (!can_follow_steps(numbers)) {
    if (auto few = multiples_of(numbers)) return b_.texts(start, std::move(*few), end);
    doc_.cannot_follow(path_of(at, "multipleOf"), "multiples and bounds of at most 15 digits",
                       "more");
    numbers.steps.clear();
  }
  if (numbers.all()) return b_.call(start, json_.number(), end);
  Numbers integer;
  integer.kind = Numbers::Kind::integer;
  if (numbers == integer) return b_.call(start, json_.integer(), end);
  add_numbers(b_, start, numbers, end);
}

void SchemaRules::add_string(const Todo& at, const Shape& shape) {
  const State start = b_.start(at.rule), end = b_.end(at.rule);
  if (shape.texts.empty() && shape.except.empty()) {
    const bool any = shape.least == 0 && shape.most < 0;
    return b_.call(start, any ? json_.string() : json_.string(shape.least, shape.most), end);
  }
  const State close = add_text(at, b_.text(start, "\""), shape);
  b_.skip(b_.text(close, "\""), end);
}

// The characters of a string.
State SchemaRules::add_text(const Todo& at, State from, const Shape& shape) {
  const bool counted = shape.least > 0 || shape.most >= 0;
  if (shape.texts.size() == 1 && !counted && shape.except.empty()) {
    const TextRule& rule = shape.texts[0];
    const bool plain = rule.regex != nullptr && !rule.negated && rule.regex->looks.empty();
    if (plain) return add_regex(b_, from, *rule.regex, rule.match, Spelling::quoted);
  }
  std::vector<TextRule> rules = shape.texts;
  if (!shape.except.empty()) {
    TextRule& others = rules.emplace_back();
    for (const Json* v : shape.except) others.texts.push_back(v->get<std::string>());
    others.negated = true;
  }
  std::int64_t work = 0;
  const auto dfa = TextDfa::make(rules, work);
  b_.spend(work);
  if (!dfa) {
    too_large(path_of(at, "pattern"));
    return from;
  }
  return dfa->add(b_, from, shape.least, shape.most, Spelling::quoted);
}

}  // namespace lathe::grammar
