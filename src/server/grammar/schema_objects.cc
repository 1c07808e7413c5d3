// Objects of schemas as rules.
#include <fmt/format.h>

#include <algorithm>

#include "server/grammar/schema_rules.h"

namespace lathe::grammar {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostNamePatterns = 6;
constexpr std::size_t kMostNames = 1000;  // of propertyNames, to be known by name

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
  if (!shape.names.empty()) {
    const auto values = shapes_.values_of(shape.names, kMostNames);
    for (const Json& v : values.value_or(std::vector<Json>{})) {
      if (v.is_string()) add(v.get<std::string>());
    }
  }
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

// A rule for a name in quotes.
Rule SchemaRules::name_rule(const Todo& at, const Shape& name) {
  const Rule rule = b_.rule();
  const State close = add_text(at, b_.text(b_.start(rule), "\""), name);
  b_.skip(b_.text(close, "\""), b_.end(rule));
  return rule;
}

// Members by which patterns their names match.
std::vector<SchemaRules::OtherMember> SchemaRules::others_of(const Todo& at, const Shape& shape,
                                                             const std::vector<Property>& known) {
  std::vector<OtherMember> out;
  std::vector<const Regex*> patterns;
  for (const auto& part : shape.objects) {
    for (const auto& [regex, term] : part->patterns) {
      if (std::find(patterns.begin(), patterns.end(), regex) == patterns.end()) {
        patterns.push_back(regex);
      }
    }
  }
  if (patterns.size() > kMostNamePatterns) {
    doc_.unsupported(path_of(at, "patternProperties"),
                     fmt::format("at most {} patterns", kMostNamePatterns),
                     fmt::format("{}", patterns.size()));
    return out;
  }
  std::vector<std::string> names;
  for (const Property& p : known) names.push_back(p.name);
  std::vector<Shape> forms;  // of names
  if (shape.names.empty()) {
    forms.emplace_back().type = Shape::Type::string;
  } else {
    forms = shapes_.shapes_of(shape.names);
    // Names of a list are known.
    std::erase_if(forms, [](auto& s) { return s.type != Shape::Type::string || s.values; });
  }
  for (std::size_t set = 0; set < std::size_t{1} << patterns.size(); ++set) {
    const auto is_in = [&](const Regex* regex) {
      const auto i = std::find(patterns.begin(), patterns.end(), regex) - patterns.begin();
      return (set >> i & 1) != 0;
    };
    SchemaTerms terms;
    for (const auto& part : shape.objects) {
      bool found = false;
      for (const auto& [regex, term] : part->patterns) {
        if (!is_in(regex)) continue;
        SchemaShapes::add_term(terms, term);
        found = true;
      }
      if (!found && part->others) SchemaShapes::add_term(terms, *part->others);
    }
    if (SchemaShapes::never(terms)) continue;
    for (Shape form : forms) {
      if (b_.full() || doc_.failed()) return out;
      for (std::size_t i = 0; i < patterns.size(); ++i) {
        form.texts.push_back({patterns[i], RegexMatch::anywhere, {}, !is_in(patterns[i])});
      }
      const bool plain = form.open();
      if (plain && names.empty()) {
        out.push_back({json_.string(), rule_of(terms, at.level + 1)});
      } else if (plain) {
        out.push_back({json_.name_except(names), rule_of(terms, at.level + 1)});
      } else {
        if (!names.empty()) form.texts.push_back({nullptr, RegexMatch::whole, names, true});
        out.push_back({name_rule(at, form), rule_of(terms, at.level + 1)});
      }
    }
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
  if (doc_.failed()) return;
  const std::vector<Property> properties = properties_of(shape);
  const std::vector<OtherMember> others = others_of(at, shape, properties);
  if (doc_.failed()) return;
  const std::size_t n = properties.size();
  // Whether the object may end before property i, by the properties that it must have.
  std::vector<bool> may_end(n + 1, true);
  for (std::size_t i = n; i-- > 0;) may_end[i] = may_end[i + 1] && !properties[i].required;

  // A state before each property and, if members are counted, for each number of members so far.
  const std::int64_t told = shape.most >= 0 ? shape.most : shape.least;
  const State open = json_.space(b_.text(b_.start(at.rule), "{"));
  const State close = b_.state(open);  // before }
  if (may_end[0] && shape.least == 0) b_.skip(open, close);
  std::vector<std::optional<Rule>> members(n);  // shared by the counts
  const auto value = [&](State name_end, const SchemaTerms& terms, State to) {
    b_.call(json_.space(b_.text(json_.space(name_end), ":")), rule_of(terms, at.level + 1), to);
  };
  const auto member = [&](State from, std::size_t i, State to) {
    const Property& p = properties[i];
    const std::string name = "\"" + quoted_text(p.name) + "\"";
    if (told == 0) return value(b_.text(from, name), p.terms, to);
    if (!members[i]) {
      members[i] = b_.rule();
      value(b_.text(b_.start(*members[i]), name), p.terms, b_.end(*members[i]));
    }
    b_.call(from, *members[i], to);
  };
  std::map<std::pair<std::size_t, std::int64_t>, State> made;
  std::vector<std::pair<std::size_t, std::int64_t>> todo;
  const auto state_of = [&](std::size_t i, std::int64_t count) {
    const auto [it, fresh] = made.try_emplace({i, count}, 0);
    if (fresh) {
      it->second = b_.state(open);
      todo.push_back(it->first);
    }
    return it->second;
  };
  // From the end of a member to the next one, or to the end.
  const auto go_on = [&](State after, std::size_t i, std::int64_t count) {
    count = std::min(count + 1, told);
    if (may_end[i] && count >= shape.least) b_.skip(json_.space(after), close);
    b_.skip(json_.comma(after), state_of(i, count));
  };
  b_.skip(open, state_of(0, 0));
  while (!todo.empty() && !b_.full() && !doc_.failed()) {
    const auto [i, count] = todo.back();
    todo.pop_back();
    const State before = made.at({i, count});
    const bool full = shape.most >= 0 && count == shape.most;
    if (i < n) {
      const Property& p = properties[i];
      if (!p.required) b_.skip(before, state_of(i + 1, count));
      if (full || SchemaShapes::never(p.terms)) continue;
      const State after = b_.state(open);
      member(before, i, after);
      go_on(after, i + 1, count);
      continue;
    }
    for (const OtherMember& other : others) {
      if (full) break;
      const State name = b_.state(open), after = b_.state(open);
      b_.call(before, other.name, name);
      b_.call(json_.space(b_.text(json_.space(name), ":")), other.value, after);
      go_on(after, n, count);
    }
  }
  b_.skip(b_.text(close, "}"), b_.end(at.rule));
}

}  // namespace lathe::grammar
