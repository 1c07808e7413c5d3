// The values that schemas allow.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/json_digits.h"
#include "server/grammar/schema/schema_shapes.h"

namespace lathe::grammar {
namespace {

using Json = nlohmann::ordered_json;

bool count_fits(const Shape& shape, std::size_t n) {
  const auto count = static_cast<std::int64_t>(n);
  return count >= shape.least && (shape.most < 0 || count <= shape.most);
}

// Values inside a value, itself included.
std::size_t count_values(const Json& value) {
  std::size_t out = 1;
  if (value.is_structured()) {
    for (const Json& inner : value) out += count_values(inner);
  }
  return out;
}

// What same_value() may cost, in comparisons of two names.
std::size_t cost_of_same(const Json& a, const Json& b) {
  constexpr std::size_t kCostOfDecimals = 64;  // two are made from texts
  if (a.is_structured() && b.is_structured()) {
    if (a.type() != b.type() || a.size() != b.size()) return 1;
    if (a.is_object()) return 1 + count_values(a) * count_values(b) / 4;  // each name is looked for
    std::size_t out = 1;
    for (std::size_t i = 0; i < a.size(); ++i) out += cost_of_same(a[i], b[i]);
    return out;
  }
  const bool integers = a.is_number_integer() && b.is_number_integer();
  const bool doubles = a.is_number_float() && b.is_number_float();
  const bool numbers = is_json_number(a) && is_json_number(b);
  return numbers && !integers && !doubles ? kCostOfDecimals : 1;
}

}  // namespace

bool has_value(const std::vector<const Json*>& list, const Json& value) {
  return std::any_of(list.begin(), list.end(),
                     [&](const Json* v) { return same_value(*v, value); });
}

bool SchemaShapes::may_compare(std::size_t values) {
  constexpr std::int64_t kValuesOfAStep = 128;
  compared_ += static_cast<std::int64_t>(values);
  work_ += compared_ / kValuesOfAStep;
  compared_ %= kValuesOfAStep;
  if (work_ > kMostShapeWork && !doc_.failed()) {
    doc_.fail(
        {ErrorCode::exhausted, doc_.path_of(open_.empty() ? doc_.root() : *open_.back().schema),
         "lists of values that are compared in a second", fmt::format("one of {}", values), ""});
  }
  return !doc_.failed();
}

bool SchemaShapes::finds(const std::vector<const Json*>& list, const Json& value) {
  std::size_t cost = 0;
  for (const Json* v : list) cost += cost_of_same(*v, value);
  return may_compare(cost) && has_value(list, value);
}

bool SchemaShapes::all_differ(const Json& list) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    std::size_t cost = 0;
    for (std::size_t j = 0; j < i; ++j) cost += cost_of_same(list[j], list[i]);
    if (!may_compare(cost)) return false;
    for (std::size_t j = 0; j < i; ++j) {
      if (same_value(list[i], list[j])) return false;
    }
  }
  return true;
}

bool SchemaShapes::allow(const SchemaTerms& terms, const Json& value) {
  if (terms.empty()) return true;
  if (never(terms) || doc_.failed()) return false;
  // A value can be read in exponentially many ways.
  if (++work_ > kMostShapeWork) {
    doc_.fail({ErrorCode::exhausted, doc_.path_of(*terms[0].schema),
               "values that are checked in a second", "slower ones", ""});
    return false;
  }
  const Shapes shapes = shapes_of(terms);
  return std::any_of(shapes.begin(), shapes.end(),
                     [&](const Shape& s) { return allows(s, value); });
}

bool SchemaShapes::allows(const Shape& shape, const Json& value) {
  if (type_of(value) != shape.type || doc_.failed()) return false;
  return (!shape.values || finds(*shape.values, value)) && allows_listed(shape, value);
}

bool SchemaShapes::allows_listed(const Shape& shape, const Json& value) {
  if (type_of(value) != shape.type || doc_.failed()) return false;
  if (finds(shape.except, value) || doc_.failed()) return false;
  if (is_json_number(value)) {
    const auto number = decimal_of(value);
    constexpr std::size_t kCostOfADecimal = 8;
    return number && may_compare(kCostOfADecimal * shape.numbers.except.size()) &&
           shape.numbers.allow(*number);
  }
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    return count_fits(shape, decode_utf8(text).size()) &&
           std::all_of(shape.texts.begin(), shape.texts.end(),
                       [&](const TextRule& rule) { return follows(rule, text); });
  }
  if (value.is_array()) {
    if (!count_fits(shape, value.size()) || (shape.unique && !all_differ(value))) return false;
    for (std::size_t i = 0; i < value.size(); ++i) {
      const auto choices = item_choices(shape, i);
      const bool any = std::any_of(choices.begin(), choices.end(), [&](const SchemaTerms& terms) {
        return allow(terms, value[i]);
      });
      if (!any) return false;
    }
    return std::all_of(shape.contains.begin(), shape.contains.end(), [&](const Contains& c) {
      const auto n = std::count_if(value.begin(), value.end(),
                                   [&](const Json& item) { return allow({c.item}, item); });
      return n >= c.least && (c.most < 0 || n <= c.most);
    });
  }
  if (!value.is_object()) return true;
  if (!count_fits(shape, value.size())) return false;
  for (const std::string& name : shape.required) {
    if (!value.contains(name)) return false;
  }
  const auto members = value.items();
  for (const SomeMember& some : shape.some) {
    const bool found = std::any_of(members.begin(), members.end(), [&](const auto& member) {
      return names_it(some, member.key()) && allow(some.value, member.value());
    });
    if (!found) return false;
  }
  return std::all_of(members.begin(), members.end(), [&](const auto& member) {
    return allow(shape.names, Json(member.key())) &&
           allow(member_terms(shape, member.key()), member.value());
  });
}

std::optional<std::vector<Json>> SchemaShapes::values_of(const SchemaTerms& terms,
                                                         std::size_t most) {
  std::vector<Json> out;
  if (never(terms)) return out;
  for (const Shape& shape : shapes_of(terms)) {
    std::vector<Json> own;
    if (shape.values) {
      for (const Json* v : *shape.values) own.push_back(*v);
    } else if (shape.type == Shape::Type::null) {
      own.emplace_back(nullptr);
    } else if (shape.type == Shape::Type::boolean) {
      own = {false, true};
    } else if (shape.type == Shape::Type::number) {
      const Numbers& n = shape.numbers;
      const bool few = n.kind == Numbers::Kind::integer && n.least && n.most &&
                       n.least->whole.size() < 10 && n.most->whole.size() < 10;
      if (!few) return std::nullopt;
      const auto bound = [](const Decimal& d) {
        const std::int64_t size = d.whole.empty() ? 0 : std::stoll(d.whole);
        return d.negative ? -size : size;
      };
      if (bound(*n.most) - bound(*n.least) > 4 * static_cast<std::int64_t>(most))
        return std::nullopt;
      for (std::int64_t i = bound(*n.least) - 1; i <= bound(*n.most) + 1; ++i) own.emplace_back(i);
    } else if (shape.most == 0) {
      own.push_back(shape.type == Shape::Type::string  ? Json("")
                    : shape.type == Shape::Type::array ? Json::array()
                                                       : Json::object());
    } else {
      return std::nullopt;
    }
    for (Json& v : own) {
      const bool known =
          std::any_of(out.begin(), out.end(), [&](const Json& o) { return same_value(o, v); });
      if (!known && allows(shape, v)) out.push_back(std::move(v));
      if (out.size() > most) return std::nullopt;
    }
  }
  return out;
}

}  // namespace lathe::grammar
