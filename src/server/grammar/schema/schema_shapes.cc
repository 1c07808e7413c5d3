#include "server/grammar/schema/schema_shapes.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/json_digits.h"

namespace lathe::grammar {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostShapes = 256;

template <class T>
void append_new(std::vector<T>& out, const std::vector<T>& more) {
  for (const T& m : more) {
    if (std::find(out.begin(), out.end(), m) == out.end()) out.push_back(m);
  }
}

bool meet_numbers(Numbers& out, const Numbers& with) {
  if (out.kind == Numbers::Kind::any) out.kind = with.kind;
  if (with.kind != Numbers::Kind::any && with.kind != out.kind) return false;
  if (with.least && (!out.least || *with.least >= *out.least)) {
    out.above = with.above || (out.above && out.least && *out.least == *with.least);
    out.least = with.least;
  }
  if (with.most && (!out.most || *with.most <= *out.most)) {
    out.below = with.below || (out.below && out.most && *out.most == *with.most);
    out.most = with.most;
  }
  append_new(out.steps, with.steps);
  append_new(out.except, with.except);
  return !out.none();
}

}  // namespace

bool is_true(const SchemaTerm& term) {
  const Json& s = *term.schema;
  if (s.is_boolean()) return s.get<bool>() != term.negated;
  return s.is_object() && s.empty() && !term.negated;
}

namespace {

bool is_false(const SchemaTerm& term) {
  const Json& s = *term.schema;
  if (s.is_boolean()) return s.get<bool>() == term.negated;
  return s.is_object() && s.empty() && term.negated;
}

}  // namespace

bool same_value(const Json& a, const Json& b) {
  if (a.is_object() && b.is_object()) {
    return a.size() == b.size() &&
           std::all_of(a.items().begin(), a.items().end(), [&](const auto& m) {
             const auto at = b.find(m.key());
             return at != b.end() && same_value(m.value(), *at);
           });
  }
  if (a.is_array() && b.is_array()) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), same_value);
  }
  // nlohmann compares an integer and a double as doubles.
  const bool exact = (a.is_number_integer() && b.is_number_integer()) ||
                     (a.is_number_float() && b.is_number_float());
  if (!exact && is_json_number(a) && is_json_number(b)) return decimal_of(a) == decimal_of(b);
  return a.is_structured() == b.is_structured() && a == b;
}

Shape::Type type_of(const Json& value) {
  if (value.is_null()) return Shape::Type::null;
  if (value.is_boolean()) return Shape::Type::boolean;
  if (is_json_number(value)) return Shape::Type::number;
  if (value.is_string()) return Shape::Type::string;
  return value.is_array() ? Shape::Type::array : Shape::Type::object;
}

Shape shape_of(Shape::Type type) {
  Shape out;
  out.type = type;
  return out;
}

Shape without_member(const std::string& name) {
  static const Json kNever = false;
  Shape out = shape_of(Shape::Type::object);
  ObjectPart part;
  part.properties.push_back({name, {&kNever}});
  part.evaluates = false;
  out.objects.push_back(std::make_shared<ObjectPart>(std::move(part)));
  return out;
}

std::vector<Shape> all_shapes() {
  std::vector<Shape> out;
  for (const auto type : {Shape::Type::null, Shape::Type::boolean, Shape::Type::number,
                          Shape::Type::string, Shape::Type::array, Shape::Type::object}) {
    out.emplace_back().type = type;
  }
  return out;
}

std::vector<Shape> with_other_types(Shape shape) {
  std::vector<Shape> out = all_shapes();
  out[static_cast<std::size_t>(shape.type)] = std::move(shape);
  return out;
}

bool Shape::open() const {
  return !values && except.empty() && numbers.all() && least == 0 && most < 0 && texts.empty() &&
         arrays.empty() && contains.empty() && !unique && objects.empty() && required.empty() &&
         names.empty() && some.empty();
}

void SchemaShapes::add_term(SchemaTerms& terms, const SchemaTerm& term) {
  if (is_true(term)) return;
  const auto at = std::lower_bound(terms.begin(), terms.end(), term);
  if (at == terms.end() || *at != term) terms.insert(at, term);
}

bool SchemaShapes::never(const SchemaTerms& terms) {
  constexpr bool kReadings[] = {true, false};  // of `format`
  return std::any_of(terms.begin(), terms.end(), is_false) ||
         std::any_of(terms.begin(), terms.end(), [&](SchemaTerm t) {
           t.negated = !t.negated;
           return std::any_of(std::begin(kReadings), std::end(kReadings), [&](bool formats) {
             t.formats = formats;
             return std::binary_search(terms.begin(), terms.end(), t);
           });
         });
}

// Whether the terms' own types or lists of values have nothing in common.
bool SchemaShapes::contradict(const SchemaTerms& terms) {
  if (never(terms)) return true;
  std::optional<std::vector<const Json*>> values;
  for (const SchemaTerm& t : terms) {
    if (t.negated || !t.schema->is_object()) continue;
    std::vector<const Json*> own;
    const auto one = t.schema->find("const"), list = t.schema->find("enum");
    if (one != t.schema->end()) {
      own.push_back(&*one);
    } else if (list != t.schema->end() && list->is_array()) {
      for (const Json& v : *list) own.push_back(&v);
    } else {
      continue;
    }
    if (values) std::erase_if(own, [&](const Json* v) { return !finds(*values, *v); });
    values = std::move(own);
    if (values->empty()) return true;
  }
  std::string known;
  for (const SchemaTerm& t : terms) {
    if (t.negated || !t.schema->is_object() || is_nullable(*t.schema)) continue;
    const auto type = t.schema->find("type");
    if (type == t.schema->end() || !type->is_string()) continue;
    std::string own = type->get<std::string>();
    if (own == "integer") own = "number";
    if (!known.empty() && known != own) return true;
    known = own;
  }
  return false;
}

SchemaTerms SchemaShapes::item_terms(const Shape& shape, std::size_t i) {
  SchemaTerms out;
  for (const auto& part : shape.arrays) {
    if (i < part->first.size()) {
      add_term(out, part->first[i]);
    } else if (part->others && part->instead.empty()) {
      add_term(out, *part->others);
    }
  }
  return out;
}

std::vector<SchemaTerms> SchemaShapes::item_choices(const Shape& shape, std::size_t i) {
  std::vector<SchemaTerms> out = {item_terms(shape, i)};
  for (const auto& part : shape.arrays) {
    if (i < part->first.size() || part->instead.empty()) continue;
    std::vector<SchemaTerm> either = part->instead;
    either.push_back(*part->others);
    const std::vector<SchemaTerms> before = std::exchange(out, {});
    for (const SchemaTerms& terms : before) {
      for (const SchemaTerm& t : either) {
        out.push_back(terms);
        add_term(out.back(), t);
      }
    }
  }
  std::erase_if(out, [](const SchemaTerms& terms) { return never(terms); });
  return out;
}

SchemaTerms SchemaShapes::member_terms(const Shape& shape, const std::string& name) {
  SchemaTerms out;
  for (const auto& part : shape.objects) {
    bool found = false;
    for (const auto& [own, term] : part->properties) {
      if (own != name) continue;
      add_term(out, term);
      found = true;
    }
    for (const auto& [regex, term] : part->patterns) {
      if (!follows({regex, RegexMatch::anywhere}, name)) continue;
      add_term(out, term);
      found = true;
    }
    if (!found && part->others) add_term(out, *part->others);
  }
  return out;
}

bool SchemaShapes::names_it(const SomeMember& some, const std::string& name) {
  if (std::find(some.not_named.begin(), some.not_named.end(), name) != some.not_named.end()) {
    return false;
  }
  return std::all_of(some.patterns.begin(), some.patterns.end(),
                     [&](const TextRule& rule) { return follows(rule, name); }) &&
         allow(some.names, Json(name));
}

bool SchemaShapes::follows(const TextRule& rule, const std::string& text) {
  bool is = false;
  if (rule.regex == nullptr) {
    is = std::find(rule.texts.begin(), rule.texts.end(), text) != rule.texts.end();
  } else {
    const auto [it, fresh] = dfas_.try_emplace({rule.regex, rule.match});
    if (fresh) {
      TextRule own = rule;
      own.negated = false;
      std::int64_t edges = 0;
      it->second = TextDfa::make({&own, 1}, edges);
      work_ += edges / kStepsOfShapeWork;
      if (!it->second) {
        doc_.fail({ErrorCode::exhausted, doc_.path_of(doc_.root()),
                   "patterns that an automaton of 10,000 states follows", "a larger one", ""});
      }
    }
    is = it->second && it->second->allows(decode_utf8(text));
  }
  return is != rule.negated;
}

bool SchemaShapes::is_dead(const Shape& shape) {
  if (shape.most >= 0 && shape.least > shape.most) return true;
  if (shape.values && shape.values->empty()) return true;
  if (shape.type == Shape::Type::number) return shape.numbers.none();
  if (shape.type == Shape::Type::array) {
    for (std::int64_t i = 0; i < std::min<std::int64_t>(shape.least, 16); ++i) {
      if (contradict(item_terms(shape, static_cast<std::size_t>(i)))) return true;
    }
  }
  if (shape.most >= 0 && std::ssize(shape.required) > shape.most) return true;
  return std::any_of(shape.required.begin(), shape.required.end(), [&](const std::string& name) {
    return contradict(member_terms(shape, name));
  });
}

std::optional<Shape> SchemaShapes::meet(const Shape& a, const Shape& b) {
  if (a.type != b.type) return std::nullopt;
  if (a.open()) return b;
  if (b.open()) return a;
  Shape out = a;
  if (b.values && out.values) {
    std::erase_if(*out.values, [&](const Json* v) { return !finds(*b.values, *v); });
  } else if (b.values) {
    out.values = b.values;
  }
  append_new(out.except, b.except);
  if (!meet_numbers(out.numbers, b.numbers)) return std::nullopt;
  out.least = std::max(out.least, b.least);
  if (b.most >= 0) out.most = out.most < 0 ? b.most : std::min(out.most, b.most);
  append_new(out.texts, b.texts);
  append_new(out.arrays, b.arrays);
  append_new(out.contains, b.contains);
  out.unique = out.unique || b.unique;
  append_new(out.objects, b.objects);
  append_new(out.required, b.required);
  for (const SchemaTerm& t : b.names) add_term(out.names, t);
  append_new(out.some, b.some);
  if (is_dead(out)) return std::nullopt;
  return out;
}

SchemaShapes::Shapes SchemaShapes::meet(const Shapes& a, const Shapes& b) {
  Shapes out;
  for (const Shape& x : a) {
    for (const Shape& y : b) {
      if (doc_.failed()) return {};
      if (x.type != y.type) continue;
      ++work_;
      if (auto both = meet(x, y)) out.push_back(std::move(*both));
      if (out.size() > kMostShapes || work_ > kMostShapeWork) {
        doc_.fail({ErrorCode::exhausted, doc_.path_of(*open_.back().schema),
                   fmt::format("a schema that comes to {} alternatives", kMostShapes), "more", ""});
        return {};
      }
    }
  }
  return out;
}

// Adds alternatives. What an alternative without conditions allows needs no others.
void SchemaShapes::join(Shapes& out, Shapes more) {
  for (Shape& m : more) {
    if (m.type != Shape::Type::array && m.type != Shape::Type::object && m.open()) {
      std::erase_if(out, [&](const Shape& o) { return o.type == m.type; });
    }
    const bool known = std::any_of(out.begin(), out.end(), [&](const Shape& o) {
      return o.type == m.type && o.open() && (annotating_ == 0 || m.open());
    });
    if (known) continue;
    if (m.open() && annotating_ == 0) {
      std::erase_if(out, [&](const Shape& o) { return o.type == m.type; });
    }
    out.push_back(std::move(m));
  }
}

std::vector<Shape> SchemaShapes::shapes_of(const SchemaTerms& terms) {
  Shapes out = all_shapes();
  for (const SchemaTerm& t : terms) {
    open_.push_back(t);  // names the terms in errors of meet()
    open_.pop_back();
    Shapes own = expand(t);
    open_.push_back(t);
    out = meet(out, own);
    open_.pop_back();
    if (doc_.failed()) return {};
  }
  std::erase_if(out, [&](const Shape& s) { return is_dead(s); });
  return out;
}

SchemaShapes::Shapes SchemaShapes::expand(const SchemaTerm& term) {
  if (std::find(open_.begin(), open_.end(), term) != open_.end()) {
    doc_.unsupported(doc_.path_of(*term.schema), "references that resolve to a value",
                     "one that refers to itself");
    return {};
  }
  open_.push_back(term);
  const int outer = std::exchange(scope_, doc_.enter(term.scope, *term.schema));
  const bool formats = std::exchange(formats_, term.formats);
  Shapes out = term.negated ? expand_negated(*term.schema) : expand_schema(*term.schema);
  scope_ = outer;
  formats_ = formats;
  open_.pop_back();
  if (doc_.failed()) return {};
  return out;
}

std::optional<SchemaShapes::Shapes> SchemaShapes::attempt(const SchemaTerm& term) {
  if (doc_.failed()) return std::nullopt;
  ++attempts_;
  Shapes out = expand(term);
  --attempts_;
  // A value with items or members can only be left out as a whole.
  const bool wide = std::any_of(out.begin(), out.end(), [](const Shape& s) {
    return std::any_of(s.except.begin(), s.except.end(),
                       [](const Json* v) { return v->is_structured() && !v->empty(); });
  });
  if (!doc_.failed() && !wide) return out;
  doc_.forgive();
  return std::nullopt;
}

// Also tries it where it would be expanded later.
bool SchemaShapes::can_be_negated(const Json& schema) {
  if (attempts_ == 0 || attempt(term(schema, true))) return true;
  doc_.unsupported(doc_.path_of(schema), "a schema that can be negated", "another");
  return false;
}

bool SchemaShapes::overlap(const Json& schemas, int scope, bool formats) {
  std::vector<Shapes> each;
  for (const Json& s : schemas) {
    each.push_back(shapes_of({{&s, false, scope, formats}}));
    if (doc_.failed()) return false;
  }
  open_.push_back({&schemas, false});
  bool out = false;
  for (std::size_t i = 0; i < each.size() && !out; ++i) {
    for (std::size_t j = 0; j < i && !out; ++j) out = !meet(each[i], each[j]).empty();
  }
  open_.pop_back();
  return out;
}

}  // namespace lathe::grammar
