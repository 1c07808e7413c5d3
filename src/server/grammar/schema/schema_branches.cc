// The keywords that combine schemas, as shapes: references, allOf to oneOf, not, if, unevaluated.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "server/grammar/schema/schema_shapes.h"

namespace lathe::grammar {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostAnyOfSubsets = 4;
const Json kAlways = true;

}  // namespace

SchemaShapes::Shapes SchemaShapes::any_of(const Json& schemas) {
  std::vector<Shapes> each;
  Shapes out;
  for (const Json& s : schemas) {
    each.push_back(expand(s));
    if (doc_.failed()) return {};
  }
  // With unevaluated keywords it matters which of the schemas hold at once.
  const bool subsets = annotating_ > 0 && each.size() > 1 && each.size() <= kMostAnyOfSubsets;
  for (std::size_t set = 1; subsets && set < std::size_t{1} << each.size(); ++set) {
    Shapes all = all_shapes();
    for (std::size_t i = 0; i < each.size(); ++i) {
      if ((set >> i & 1) != 0) all = meet(all, each[i]);
    }
    join(out, std::move(all));
  }
  for (std::size_t i = 0; i < each.size() && !subsets; ++i) join(out, std::move(each[i]));
  return out;
}

// Each schema without the others that can hold with it. Where that cannot be computed: any_of(),
// and the document notes `path`.
SchemaShapes::Shapes SchemaShapes::one_of(const Json& schemas, const std::string& path) {
  std::vector<Shapes> each;
  for (const Json& s : schemas) {
    each.push_back(expand(s));
    if (doc_.failed()) return {};
  }
  std::vector<Shapes> exact = each;
  bool failed = false;
  for (std::size_t i = 0; i < each.size() && !failed; ++i) {
    for (std::size_t j = 0; j < each.size() && !failed; ++j) {
      if (i == j || meet(each[i], each[j]).empty()) {
        failed = doc_.failed();
        continue;
      }
      const auto others = attempt(term(schemas[j], true));
      if (others) exact[i] = meet(exact[i], *others);
      failed = !others || doc_.failed() ||
               std::any_of(exact[i].begin(), exact[i].end(),
                           [](const Shape& s) { return s.some.size() > kMostSomeMembers; });
    }
  }
  if (failed) {
    doc_.forgive();
    doc_.note(path);
  }
  Shapes out;
  for (Shapes& s : failed ? each : exact) join(out, std::move(s));
  return out;
}

void SchemaShapes::add_branches(const Json& schema, Shapes& out) {
  for (const char* word : {"$ref", "$dynamicRef"}) {
    if (!schema.contains(word)) continue;
    const Json* target = doc_.resolve(schema, word, scope_);
    if (target == nullptr) {
      if (doc_.ignore(below(doc_.path_of(schema), word))) continue;
      return;
    }
    out = meet(out, expand(*target));
  }
  if (const Json* all = list_in(schema, "allOf")) {
    for (const Json& s : *all) {
      out = meet(out, expand(s));
      if (doc_.failed()) return;
    }
  }
  if (const Json* any = list_in(schema, "anyOf")) out = meet(out, any_of(*any));
  if (doc_.failed()) return;
  if (const Json* one = list_in(schema, "oneOf")) {
    out = meet(out, one_of(*one, below(doc_.path_of(schema), "oneOf")));
  }
}

void SchemaShapes::add_conditions(const Json& schema, Shapes& out) {
  if (const Json* no = schema_in(schema, "not")) {
    const Shapes others = expand(*no, true);
    if (!doc_.failed()) {
      out = meet(out, without_annotations(others));
    } else if (!doc_.ignore(below(doc_.path_of(schema), "not"))) {
      return;
    }
  }
  const Json* condition = schema_in(schema, "if");
  const Json* yes = schema_in(schema, "then");
  const Json* no = schema_in(schema, "else");
  if (condition == nullptr || (yes == nullptr && no == nullptr && annotating_ == 0)) return;
  Shapes either = expand(this->condition(*condition));
  if (yes != nullptr && !doc_.failed()) either = meet(either, expand(*yes));
  Shapes others = expand(this->condition(*condition, true));
  if (no != nullptr && !doc_.failed()) others = meet(others, expand(*no));
  if (doc_.failed()) {
    doc_.ignore(below(doc_.path_of(schema), "if"));
    return;
  }
  join(either, std::move(others));
  out = meet(out, either);
}

void SchemaShapes::add_unevaluated(const Json& schema, Shapes& out) {
  const Json* members = schema_in(schema, "unevaluatedProperties");
  const Json* items = schema_in(schema, "unevaluatedItems");
  for (Shape& s : out) {
    if (s.type == Shape::Type::object && members != nullptr && !s.values) {
      ObjectPart part;
      for (const auto& p : s.objects) {
        if (!p->evaluates) continue;
        for (const auto& [name, term] : p->properties)
          part.properties.push_back({name, {&kAlways}});
        for (const auto& [name, term] : p->patterns) part.patterns.push_back({name, {&kAlways}});
        if (p->others) part.others = SchemaTerm{&kAlways};
      }
      if (!part.others) part.others = term(*members);
      s.objects.push_back(std::make_shared<ObjectPart>(std::move(part)));
    }
    if (s.type == Shape::Type::array && items != nullptr && !s.values) {
      ArrayPart part;
      for (const auto& p : s.arrays) {
        if (!p->evaluates) continue;
        if (p->first.size() > part.first.size()) part.first.resize(p->first.size(), {&kAlways});
        if (p->others) part.others = SchemaTerm{&kAlways};
      }
      if (!part.others) {
        part.others = term(*items);
        for (const Contains& c : s.contains) {
          if (c.evaluates) part.instead.push_back(c.item);
        }
      }
      s.arrays.push_back(std::make_shared<ArrayPart>(std::move(part)));
    }
  }
}

}  // namespace lathe::grammar
