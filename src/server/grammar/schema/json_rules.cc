#include "server/grammar/schema/json_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>

#include "base/json.h"
#include "server/grammar/schema/number_rules.h"
#include "server/grammar/text/characters.h"

namespace lathe::grammar {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostExponent = 2;

void add_byte(Builder& b, State from, char byte, State to) {
  b.bytes(from, static_cast<std::uint8_t>(byte), static_cast<std::uint8_t>(byte), to);
}

// Adds one to `most` digits.
State add_any_digits(Builder& b, State from, int most) {
  const State to = b.state(from);
  for (int i = 0; i < most; ++i) {
    const State next = b.state(from);
    b.bytes(from, '0', '9', next);
    b.skip(next, to);
    from = next;
  }
  return to;
}

}  // namespace

State JsonRules::space(State from) {
  if (!shared_.space) {
    const Rule rule = b_.rule();
    shared_.space = rule;
    State s = b_.start(rule);
    for (int i = 0; i < kMostSpace; ++i) {
      const State next = b_.state(s);
      for (const char c : {' ', '\t', '\n', '\r'}) add_byte(b_, s, c, next);
      b_.skip(next, b_.end(rule));
      s = next;
    }
  }
  const State to = b_.state(from);
  b_.skip(from, to);
  b_.call(from, *shared_.space, to);
  return to;
}

State JsonRules::comma(State from) { return space(b_.text(space(from), ",")); }

std::string JsonRules::scalar(const Json& value) const {
  if (!value.is_string()) return json_text(value);
  return "\"" + quoted_text(value.get_ref<const std::string&>(), b_.escapes_less) + "\"";
}

State JsonRules::literal(State from, const Json& value) {
  if (!value.is_structured()) return b_.text(from, scalar(value));
  const bool object = value.is_object();
  from = space(b_.text(from, object ? "{" : "["));
  bool first = true;
  for (const auto& item : value.items()) {
    if (b_.full()) break;
    if (!first) from = comma(from);
    first = false;
    if (object) {
      from = space(b_.text(space(literal(from, Json(item.key()))), ":"));
    }
    from = literal(from, item.value());
  }
  return b_.text(first ? from : space(from), object ? "}" : "]");
}

Rule JsonRules::value() {
  if (shared_.value) return *shared_.value;
  const Rule rule = b_.rule();
  shared_.value = rule;
  const State start = b_.start(rule), end = b_.end(rule);
  for (const char* word : {"true", "false", "null"}) b_.skip(b_.text(start, word), end);
  for (const Rule r : {string(), number(), object(), array()}) b_.call(start, r, end);
  return rule;
}

Rule JsonRules::object() {
  if (shared_.object) return *shared_.object;
  const Rule rule = b_.rule();
  shared_.object = rule;
  const State open = space(b_.text(b_.start(rule), "{"));
  const auto member = [&](State from, State to) {
    const State name = b_.state(from);
    b_.call(from, string(), name);
    b_.call(space(b_.text(space(name), ":")), value(), to);
  };
  const State after = b_.state(open);
  member(open, after);
  member(comma(after), after);
  for (const State s : {open, space(after)}) b_.skip(b_.text(s, "}"), b_.end(rule));
  return rule;
}

Rule JsonRules::array() {
  if (shared_.array) return *shared_.array;
  const Rule rule = b_.rule();
  shared_.array = rule;
  const State open = space(b_.text(b_.start(rule), "["));
  const State after = b_.state(open);
  b_.call(open, value(), after);
  b_.call(comma(after), value(), after);
  for (const State s : {open, space(after)}) b_.skip(b_.text(s, "]"), b_.end(rule));
  return rule;
}

Rule JsonRules::string() {
  if (!shared_.string) shared_.string = string(0, -1);
  return *shared_.string;
}

Rule JsonRules::string(std::int64_t least, std::int64_t most) {
  const Rule rule = b_.rule();
  const State open = b_.text(b_.start(rule), "\"");
  const State close = b_.repeat(open, least, most,
                                [&](State from, State to) { add_any_quoted_char(b_, from, to); });
  add_byte(b_, close, '"', b_.end(rule));
  return rule;
}

Rule JsonRules::number() {
  if (shared_.number) return *shared_.number;
  const Rule rule = b_.rule();
  shared_.number = rule;
  const State start = b_.start(rule), end = b_.end(rule);
  const State sign = b_.state(start);
  b_.skip(start, sign);
  add_byte(b_, start, '-', sign);
  const State whole = b_.state(start);
  const State zero = b_.text(sign, "0");
  b_.skip(zero, whole);
  State digits = b_.state(start);
  b_.bytes(sign, '1', '9', digits);
  b_.skip(digits, whole);
  for (std::size_t i = 1; i < kMostDigits; ++i) {
    const State next = b_.state(start);
    b_.bytes(digits, '0', '9', next);
    b_.skip(next, whole);
    digits = next;
  }
  b_.skip(whole, end);
  const State fraction = add_any_digits(b_, b_.text(whole, "."), static_cast<int>(kMostFraction));
  b_.skip(fraction, end);
  const State e = b_.state(start);
  for (const State s : {whole, fraction}) {
    for (const char c : {'e', 'E'}) add_byte(b_, s, c, e);
  }
  const State signed_e = b_.state(start);
  b_.skip(e, signed_e);
  for (const char c : {'+', '-'}) add_byte(b_, e, c, signed_e);
  b_.skip(add_any_digits(b_, signed_e, kMostExponent), end);
  return rule;
}

Rule JsonRules::integer() {
  if (shared_.integer) return *shared_.integer;
  const Rule rule = b_.rule();
  shared_.integer = rule;
  Numbers integers;
  integers.kind = Numbers::Kind::integer;
  add_numbers(b_, b_.start(rule), integers, b_.end(rule));
  return rule;
}

// A trie of the excluded names; text that leaves it is another name.
Rule JsonRules::name_except(const std::vector<std::string>& names) {
  const Rule rule = b_.rule();
  const State begin = b_.text(b_.start(rule), "\"");
  const State close = b_.state(begin);  // where a name may end
  add_byte(b_, close, '"', b_.end(rule));
  const State other = b_.state(begin);
  b_.skip(other, close);
  add_char(b_, other, CharSet::all(), Spelling::quoted, other);
  struct Node {
    State state;
    bool is_name = false;
    std::map<char32_t, std::size_t> next;
  };
  std::vector<Node> trie = {{begin, false, {}}};
  for (const std::string& name : names) {
    std::size_t at = 0;
    for (const char32_t c : decode_utf8(name)) {
      const auto [it, fresh] = trie[at].next.try_emplace(c, trie.size());
      at = it->second;
      if (fresh) trie.push_back({b_.state(begin), false, {}});
    }
    trie[at].is_name = true;
  }
  for (const Node& node : trie) {
    if (!node.is_name) b_.skip(node.state, close);
    std::vector<CharRange> taken;
    for (const auto& [c, to] : node.next) {
      taken.push_back({c, c});
      add_char(b_, node.state, {{c, c}}, Spelling::quoted, trie[to].state);
    }
    add_char(b_, node.state, ~CharSet(std::move(taken)), Spelling::quoted, other);
  }
  return rule;
}

}  // namespace lathe::grammar
