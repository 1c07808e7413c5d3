// Objects of schemas as rules.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "server/grammar/schema/schema_rules.h"

namespace lathe::grammar {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostNamePatterns = 6;
constexpr std::size_t kMostNames = 1000;  // of lists in propertyNames, to be known by name

}  // namespace

std::vector<SchemaRules::Property> SchemaRules::properties_of(const Shape& shape) {
  std::vector<std::string> names;
  std::map<std::string, bool> known;
  const auto add = [&](const std::string& name) {
    if (known.try_emplace(name, true).second) names.push_back(name);
  };
  for (const auto& part : shape.objects) {
    for (const auto& [name, term] : part->properties) add(name);
  }
  for (const std::string& name : shape.required) add(name);
  const std::vector<std::string> listed = listed_names(shape);
  if (listed.size() <= kMostNames) std::for_each(listed.begin(), listed.end(), add);
  std::vector<Property> out;
  for (const std::string& name : names) {
    Property p{name, shapes_.member_terms(shape, name), false};
    p.required =
        std::find(shape.required.begin(), shape.required.end(), name) != shape.required.end();
    if (!shapes_.allow(shape.names, Json(name))) {
      static const Json kNever = false;
      SchemaShapes::add_term(p.terms, {&kNever});
    }
    out.push_back(std::move(p));
  }
  return out;
}

// The names in the lists of propertyNames, next to which others may be allowed.
std::vector<std::string> SchemaRules::listed_names(const Shape& shape) {
  std::vector<std::string> out;
  if (shape.names.empty()) return out;
  for (const Shape& s : shapes_.shapes_of(shape.names)) {
    if (s.type != Shape::Type::string) continue;
    if (!s.values) {
      if (s.most == 0) out.emplace_back();
      continue;
    }
    for (const Json* v : *s.values) {
      if (shapes_.allows_listed(s, *v)) out.push_back(v->get<std::string>());
    }
  }
  return out;
}

// A rule for a name in quotes.
Rule SchemaRules::name_rule(const Todo& at, const Shape& name) {
  const Rule rule = b_.rule();
  const State close = add_text(at, b_.text(b_.start(rule), "\""), name);
  b_.skip(b_.text(close, "\""), b_.end(rule));
  return rule;
}

// The forms of names that are not known.
std::vector<Shape> SchemaRules::other_names(const Shape& shape, Found found,
                                            const std::vector<std::string>& known) {
  SchemaTerms terms = shape.names;
  for (std::size_t k = 0; k < shape.some.size(); ++k) {
    if ((found >> k & 1) == 0) continue;
    for (const SchemaTerm& t : shape.some[k].names) SchemaShapes::add_term(terms, t);
  }
  std::vector<Shape> out;
  if (terms.empty()) {
    out.emplace_back().type = Shape::Type::string;
  } else {
    out = shapes_.shapes_of(terms);
    std::erase_if(out, [](auto& s) { return s.type != Shape::Type::string; });
    const std::set<std::string_view> all(known.begin(), known.end());
    for (Shape& s : out) {
      if (!s.values) continue;
      TextRule& list = s.texts.emplace_back(TextRule{});
      for (const Json* v : *s.values) {
        if (!all.contains(v->get_ref<const std::string&>())) list.texts.push_back(*v);
      }
    }
    std::erase_if(out, [](Shape& s) { return s.values && s.texts.back().texts.empty(); });
    for (Shape& s : out) s.values.reset();
  }
  for (std::size_t k = 0; k < shape.some.size(); ++k) {
    if ((found >> k & 1) == 0 || shape.some[k].not_named.empty()) continue;
    for (Shape& s : out) {
      s.texts.push_back({nullptr, RegexMatch::whole, shape.some[k].not_named, true});
    }
  }
  return out;
}

// Members by which patterns their names match.
std::vector<SchemaRules::OtherMember> SchemaRules::others_of(const Todo& at, const Shape& shape,
                                                             const std::vector<Property>& known) {
  std::vector<OtherMember> out;
  std::vector<const Regex*> patterns;
  const auto add_pattern = [&](const Regex* regex) {
    if (std::find(patterns.begin(), patterns.end(), regex) == patterns.end()) {
      patterns.push_back(regex);
    }
  };
  for (const auto& part : shape.objects) {
    for (const auto& [regex, term] : part->patterns) add_pattern(regex);
  }
  for (const SomeMember& some : shape.some) {
    for (const TextRule& rule : some.patterns) add_pattern(rule.regex);
  }
  if (patterns.size() > kMostNamePatterns) {
    doc_.unsupported(path_of(at, "patternProperties"),
                     fmt::format("at most {} patterns", kMostNamePatterns),
                     fmt::format("{}", patterns.size()));
    return out;
  }
  std::vector<std::string> names;
  for (const Property& p : known) names.push_back(p.name);
  const std::size_t sets = std::size_t{1} << patterns.size();
  for (std::size_t way = 0; way < sets << shape.some.size(); ++way) {
    const std::size_t set = way % sets;
    const auto found = static_cast<Found>(way / sets);
    const auto is_in = [&](const Regex* regex) {
      const auto i = std::find(patterns.begin(), patterns.end(), regex) - patterns.begin();
      return (set >> i & 1) != 0;
    };
    SchemaTerms terms;
    for (const auto& part : shape.objects) {
      bool matches = false;
      for (const auto& [regex, term] : part->patterns) {
        if (!is_in(regex)) continue;
        SchemaShapes::add_term(terms, term);
        matches = true;
      }
      if (!matches && part->others) SchemaShapes::add_term(terms, *part->others);
    }
    bool possible = true;
    for (std::size_t k = 0; k < shape.some.size(); ++k) {
      if ((found >> k & 1) == 0) continue;
      for (const SchemaTerm& t : shape.some[k].value) SchemaShapes::add_term(terms, t);
      for (const TextRule& rule : shape.some[k].patterns) {
        possible = possible && is_in(rule.regex) != rule.negated;
      }
    }
    if (!possible || SchemaShapes::never(terms)) continue;
    for (Shape form : other_names(shape, found, names)) {
      if (b_.full() || doc_.failed()) return out;
      for (std::size_t i = 0; i < patterns.size(); ++i) {
        form.texts.push_back({patterns[i], RegexMatch::anywhere, {}, !is_in(patterns[i])});
      }
      const bool plain = form.open();
      if (plain && names.empty()) {
        out.push_back({json_.string(), rule_of(terms, at.level + 1), found});
      } else if (plain) {
        out.push_back({json_.name_except(names), rule_of(terms, at.level + 1), found});
      } else {
        if (!names.empty()) form.texts.push_back({nullptr, RegexMatch::whole, names, true});
        out.push_back({name_rule(at, form), rule_of(terms, at.level + 1), found});
      }
    }
  }
  return out;
}

// The terms of a property that is some of the members; never, if it cannot be.
SchemaTerms SchemaRules::terms_of(const Shape& shape, const Property& property, Found found) {
  static const Json kNever = false;
  SchemaTerms out = property.terms;
  for (std::size_t k = 0; k < shape.some.size(); ++k) {
    if ((found >> k & 1) == 0) continue;
    if (!shapes_.names_it(shape.some[k], property.name)) SchemaShapes::add_term(out, {&kNever});
    for (const SchemaTerm& t : shape.some[k].value) SchemaShapes::add_term(out, t);
  }
  return out;
}

void SchemaRules::add_object(const Todo& at, Shape shape) {
  for (const Json* v : shape.except) {
    if (v->empty()) {
      shape.least = std::max<std::int64_t>(shape.least, 1);
    } else {
      doc_.cannot_follow(path_of(at, "not"), "values without members", "others");
    }
  }
  if (shape.some.size() > kMostSomeMembers) {
    doc_.cannot_follow(path_of(at, "not"), "conditions on fewer members", "more");
    shape.some.resize(kMostSomeMembers);
  }
  if (doc_.failed()) return;
  const std::vector<Property> properties = properties_of(shape);
  const std::vector<OtherMember> others = others_of(at, shape, properties);
  if (doc_.failed()) return;
  const std::size_t n = properties.size();
  const Found all = (Found{1} << shape.some.size()) - 1;
  // Whether the object may end before property i, by the properties that it must have.
  std::vector<bool> may_end(n + 1, true);
  for (std::size_t i = n; i-- > 0;) may_end[i] = may_end[i + 1] && !properties[i].required;

  // A state before each property, for each number of members so far, if they are counted, and for
  // which of the members in shape.some were found.
  const std::int64_t told = shape.most >= 0 ? shape.most : shape.least;
  struct At {
    std::size_t property;
    std::int64_t count;
    Found found;
    auto operator<=>(const At&) const = default;
  };
  const State open = json_.space(b_.text(b_.start(at.rule), "{"));
  const State close = b_.state(open);  // before }
  if (may_end[0] && shape.least == 0 && all == 0) b_.skip(open, close);
  std::map<std::pair<std::size_t, Found>, Rule> members;  // shared by the counts
  const auto value = [&](State name_end, const SchemaTerms& terms, State to) {
    b_.call(json_.space(b_.text(json_.space(name_end), ":")), rule_of(terms, at.level + 1), to);
  };
  const auto member = [&](State from, std::size_t i, Found found, const SchemaTerms& terms,
                          State to) {
    const std::string name = "\"" + quoted_text(properties[i].name, b_.escapes_less) + "\"";
    if (told == 0) return value(b_.text(from, name), terms, to);
    const auto [it, fresh] = members.try_emplace({i, found}, 0);
    if (fresh) {
      const Rule rule = b_.rule();
      it->second = rule;
      value(b_.text(b_.start(rule), name), terms, b_.end(rule));
    }
    b_.call(from, it->second, to);
  };
  std::map<At, State> made;
  std::vector<At> todo;
  const auto state_of = [&](const At& where) {
    const auto [it, fresh] = made.try_emplace(where, 0);
    if (fresh) {
      it->second = b_.state(open);
      todo.push_back(where);
    }
    return it->second;
  };
  // From the end of a member to the next one, or to the end.
  const auto go_on = [&](State after, At next) {
    next.count = std::min(next.count + 1, told);
    if (may_end[next.property] && next.count >= shape.least && next.found == all) {
      b_.skip(json_.space(after), close);
    }
    b_.skip(json_.comma(after), state_of(next));
  };
  b_.skip(open, state_of({0, 0, 0}));
  while (!todo.empty() && !b_.full() && !doc_.failed()) {
    const At here = todo.back();
    const std::size_t i = here.property;
    todo.pop_back();
    const State before = made.at(here);
    const bool full = shape.most >= 0 && here.count == shape.most;
    if (i < n) {
      if (!properties[i].required) b_.skip(before, state_of({i + 1, here.count, here.found}));
      for (Found found = 0; found <= all && !full; ++found) {
        const SchemaTerms terms = terms_of(shape, properties[i], found);
        if (SchemaShapes::never(terms)) continue;
        const State after = b_.state(open);
        member(before, i, found, terms, after);
        go_on(after, {i + 1, here.count, here.found | found});
      }
      continue;
    }
    for (const OtherMember& other : others) {
      if (full) break;
      const State name = b_.state(open), after = b_.state(open);
      b_.call(before, other.name, name);
      b_.call(json_.space(b_.text(json_.space(name), ":")), other.value, after);
      go_on(after, {n, here.count, here.found | other.found});
    }
  }
  b_.skip(b_.text(close, "}"), b_.end(at.rule));
}

}  // namespace lathe::grammar
