// Arrays of schemas as rules.
#include <fmt/format.h>

#include <algorithm>

#include "server/grammar/schema/schema_rules.h"

namespace lathe::grammar {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostContains = 3;
// Distinct values of items that must differ. All orders of them are followed where this needs at
// most kMostSubsets states, else the order in which the schema has them.
constexpr std::size_t kMostUniqueValues = 64;
constexpr std::size_t kMostSubsets = 4096;

std::size_t first_items(const Shape& shape) {
  std::size_t out = 0;
  for (const auto& part : shape.arrays) out = std::max(out, part->first.size());
  return out;
}

}  // namespace

void SchemaRules::add_array(const Todo& at, Shape shape) {
  for (const Json* v : shape.except) {
    if (v->empty()) {
      shape.least = std::max<std::int64_t>(shape.least, 1);
    } else {
      doc_.cannot_follow(path_of(at, "not"), "values without items", "others");
    }
  }
  std::erase_if(shape.contains, [](const Contains& c) { return c.least == 0 && c.most < 0; });
  if (shape.contains.size() > kMostContains) {
    doc_.cannot_follow(path_of(at, "contains"), fmt::format("at most {} at once", kMostContains),
                       "more");
    shape.contains.resize(kMostContains);
  }
  if (doc_.failed() || (shape.most >= 0 && shape.least > shape.most)) return;
  if (shape.unique && shape.most != 0 && shape.most != 1 && add_unique(at, shape)) return;

  // A state for each number of items, as far as it matters, and of items that each `contains` has
  // counted.
  const auto first = static_cast<std::int64_t>(first_items(shape));
  const std::int64_t told = shape.most >= 0 ? shape.most : std::max(shape.least, first);
  using Counts = std::vector<std::int64_t>;
  std::map<std::pair<std::int64_t, Counts>, State> made;
  std::vector<std::pair<std::int64_t, Counts>> todo;
  const State open = json_.space(b_.text(b_.start(at.rule), "["));
  const State close = b_.state(open);  // before ]
  const auto state_of = [&](std::int64_t i, const Counts& counts) {
    const auto [it, fresh] = made.try_emplace({i, counts}, 0);
    if (fresh) {
      it->second = b_.state(open);
      todo.push_back(it->first);
    }
    return it->second;
  };
  const auto may_close = [&](std::int64_t i, const Counts& counts) {
    for (std::size_t c = 0; c < counts.size(); ++c) {
      if (counts[c] < shape.contains[c].least) return false;
    }
    return i >= shape.least;
  };
  const Counts none(shape.contains.size());
  if (may_close(0, none)) b_.skip(open, close);
  b_.skip(open, state_of(0, none));
  while (!todo.empty() && !b_.full() && !doc_.failed()) {
    const auto [i, counts] = std::move(todo.back());
    todo.pop_back();
    if (i == shape.most) continue;
    const State before = made.at({i, counts});
    const auto choices = SchemaShapes::item_choices(shape, static_cast<std::size_t>(i));
    const std::size_t sets = std::size_t{1} << counts.size();
    for (std::size_t way = 0; way < sets * choices.size(); ++way) {
      const std::size_t set = way % sets;
      SchemaTerms terms = choices[way / sets];
      Counts next = counts;
      bool possible = true;
      for (std::size_t c = 0; c < counts.size(); ++c) {
        const Contains& contains = shape.contains[c];
        if ((set >> c & 1) != 0) {
          SchemaShapes::add_term(terms, contains.item);
          ++next[c];
          possible = possible && (contains.most < 0 || next[c] <= contains.most);
          if (contains.most < 0) next[c] = std::min(next[c], contains.least);
        } else if (contains.most >= 0) {
          SchemaTerm other = contains.item;
          other.negated = !other.negated;
          SchemaShapes::add_term(terms, other);
          possible = possible && !SchemaShapes::never({other});
        }
      }
      if (!possible || SchemaShapes::never(terms)) continue;
      const State after = b_.state(open);
      b_.call(before, rule_of(terms, at.level + 1), after);
      const std::int64_t n = std::min(i + 1, told);
      if (may_close(n, next)) b_.skip(json_.space(after), close);
      if (n != shape.most) b_.skip(json_.comma(after), state_of(n, next));
    }
  }
  b_.skip(b_.text(close, "]"), b_.end(at.rule));
}

// Returns false if the items may be alike after all.
bool SchemaRules::add_unique(const Todo& at, const Shape& shape) {
  // Values of each item; the last list is of all others.
  std::vector<std::vector<Json>> values;
  std::size_t total = 0;
  bool few =
      shape.contains.empty() && std::all_of(shape.arrays.begin(), shape.arrays.end(),
                                            [](const auto& part) { return part->instead.empty(); });
  for (std::size_t i = 0; i <= first_items(shape) && few && !doc_.failed(); ++i) {
    if (shape.most >= 0 && static_cast<std::int64_t>(i) >= shape.most) {
      values.emplace_back();
      break;
    }
    auto own = shapes_.values_of(SchemaShapes::item_terms(shape, i), kMostUniqueValues);
    few = own.has_value();
    if (few) total += own->size();
    if (few) values.push_back(std::move(*own));
  }
  if (doc_.failed()) return true;
  if (few && total <= kMostUniqueValues) {
    add_unique_items(at, shape, values);
    return true;
  }
  doc_.cannot_follow(path_of(at, "uniqueItems"),
                     fmt::format("items of at most {} values", kMostUniqueValues), "others");
  return doc_.failed();
}

void SchemaRules::add_unique_items(const Todo& at, const Shape& shape,
                                   const std::vector<std::vector<Json>>& values) {
  std::vector<Json> all;
  std::vector<std::vector<std::size_t>> numbers;  // [items] in `all`
  for (const auto& list : values) {
    auto& own = numbers.emplace_back();
    for (const Json& v : list) {
      const auto same =
          std::find_if(all.begin(), all.end(), [&](const Json& a) { return same_value(a, v); });
      own.push_back(static_cast<std::size_t>(same - all.begin()));
      if (same == all.end()) all.push_back(v);
    }
  }
  std::vector<Rule> rules;
  for (const Json& v : all) {
    rules.push_back(b_.rule());
    b_.skip(json_.literal(b_.start(rules.back()), v), b_.end(rules.back()));
  }
  const std::int64_t most =
      shape.most >= 0 ? std::min(shape.most, std::ssize(all)) : std::ssize(all);
  // Subsets of `all` of at most `most` values.
  double subsets = 0, of_size = 1;
  for (std::int64_t k = 0; k <= most; ++k) {
    subsets += of_size;
    of_size *= static_cast<double>(std::ssize(all) - k) / static_cast<double>(k + 1);
  }
  const bool any_order = subsets <= static_cast<double>(kMostSubsets);
  // By the number of items and the values used: in a fixed order, also those passed over.
  std::map<std::pair<std::int64_t, std::uint64_t>, State> made;
  std::vector<std::pair<std::int64_t, std::uint64_t>> todo;
  const State open = json_.space(b_.text(b_.start(at.rule), "["));
  const State close = b_.state(open);
  const auto state_of = [&](std::int64_t i, std::uint64_t used) {
    const auto [it, fresh] = made.try_emplace({i, used}, 0);
    if (fresh) {
      it->second = b_.state(open);
      todo.push_back(it->first);
    }
    return it->second;
  };
  if (shape.least == 0) b_.skip(open, close);
  b_.skip(open, state_of(0, 0));
  while (!todo.empty() && !b_.full()) {
    const auto [i, used] = todo.back();
    todo.pop_back();
    if (i == most) continue;
    const State before = made.at({i, used});
    for (const std::size_t v : numbers[std::min(static_cast<std::size_t>(i), numbers.size() - 1)]) {
      if ((used >> v & 1) != 0) continue;
      const std::uint64_t bit = std::uint64_t{1} << v;
      const std::uint64_t next = any_order ? used | bit : bit | (bit - 1);
      const State after = b_.state(open);
      b_.call(before, rules[v], after);
      if (i + 1 >= shape.least) b_.skip(json_.space(after), close);
      if (i + 1 < most) b_.skip(json_.comma(after), state_of(i + 1, next));
    }
  }
  b_.skip(b_.text(close, "]"), b_.end(at.rule));
}

}  // namespace lathe::grammar
