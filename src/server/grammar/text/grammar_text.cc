#include "server/grammar/text/grammar_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "io/text/quote.h"
#include "server/grammar/schema/schema.h"
#include "server/grammar/text/regex_emitter.h"

namespace lathe::grammar {

// A rule's automaton over characters and calls, before it is one of bytes. It has the functions of
// Builder that Emitter uses. A state that has consumed nothing is fresh: rules must not accept the
// empty text, and calls from fresh states are where left recursion shows.
class RuleSketch {
 public:
  struct CharEdge {
    CharSet chars;
    State to;
  };
  struct RuleEdge {
    std::size_t rule;
    State to;
  };
  struct Node {
    std::vector<CharEdge> chars;
    std::vector<RuleEdge> calls;
    std::vector<State> skips;
  };
  static constexpr State kStart = 0;
  static constexpr std::size_t kMostStates = 200'000;

  RuleSketch() : nodes_(1) {}

  State state(State /*near*/) {
    if (full()) return kStart;
    nodes_.emplace_back();
    return static_cast<State>(nodes_.size() - 1);
  }
  bool full() const { return nodes_.size() >= kMostStates; }
  void skip(State from, State to) {
    if (from != to) nodes_[from].skips.push_back(to);
  }
  void chars(State from, const CharSet& set, State to) {
    if (!set.empty()) nodes_[from].chars.push_back({set, to});
  }
  void call(State from, std::size_t rule, State to) { nodes_[from].calls.push_back({rule, to}); }
  template <class Add>
  State repeat(State from, std::int64_t least, std::int64_t most, const Add& add);

  std::vector<Node>& nodes() { return nodes_; }
  const std::vector<Node>& nodes() const { return nodes_; }

  State end = kStart;

 private:
  std::vector<Node> nodes_;
};

template <class Add>
State RuleSketch::repeat(State from, std::int64_t least, std::int64_t most, const Add& add) {
  State s = state(from);
  skip(from, s);
  const auto next = [&] {
    const State to = state(s);
    add(s, to);
    s = to;
  };
  for (std::int64_t i = 0; i < least && !full(); ++i) next();
  const State out = state(s);
  skip(s, out);
  if (most < 0) add(s, s);
  for (std::int64_t i = least; i < most && !full(); ++i) {
    next();
    skip(s, out);
  }
  return out;
}

static void add_char(RuleSketch& sketch, State from, const CharSet& chars, Spelling /*as*/,
                     State to) {
  sketch.chars(from, chars, to);
}

class GrammarMaker {
 public:
  GrammarMaker(Builder& b, JsonRules& json, const GrammarText& grammar,
               std::vector<std::string>& ignored)
      : b_(b), json_(json), text_(grammar), ignored_(ignored) {}

  Result<State> add(State from) {
    sketch_rules();
    if (error_) return *error_;
    find_empty();
    split();
    remove_left_recursion();
    if (error_) return *error_;
    std::vector<Rule> rules;
    for (const std::optional<Rule>& schema : schema_of_) {
      rules.push_back(schema ? *schema : b_.rule());
    }
    for (std::size_t r = 0; r < sketches_.size() && !b_.full(); ++r) {
      if (!schema_of_[r]) emit(r, rules);
    }
    const State to = b_.state(from);
    b_.call(from, rules[0], to);
    if (empty_[0]) b_.skip(from, to);
    return to;
  }

 private:
  void fail(ErrorCode code, std::string wanted, const std::string& got, TextPosition at) {
    if (error_) return;
    error_ = Error{code, text_.path, std::move(wanted),
                   fmt::format("{} at line {}, column {}", got, at.line, at.column), ""};
  }

  // The number of a rule; those that the start rule needs come to have one.
  std::size_t number_of(const std::string& name, TextPosition at) {
    const auto [it, fresh] = numbers_.try_emplace(name, sketches_.size());
    if (!fresh) return it->second;
    const GrammarRule* rule = nullptr;
    for (const GrammarRule& r : text_.rules) {
      if (r.name != name) continue;
      if (rule != nullptr) {
        fail(ErrorCode::malformed, fmt::format("one rule {}", quote(name)), "another", r.at);
      }
      rule = &r;
    }
    if (rule == nullptr)
      fail(ErrorCode::malformed, fmt::format("a rule {}", quote(name)), "none", at);
    sketches_.emplace_back();
    schema_of_.emplace_back();
    todo_.emplace_back(it->second, rule);
    return it->second;
  }

  void sketch_rules() {
    number_of(text_.start, {});
    while (!todo_.empty() && !error_) {
      const auto [number, rule] = todo_.back();
      todo_.pop_back();
      RuleSketch sketch;
      sketch.end = add(sketch, RuleSketch::kStart, rule->body);
      if (sketch.full() || b_.full()) return too_large();
      sketches_[number] = std::move(sketch);
    }
  }

  void too_large() {
    if (error_) return;
    error_ = Error{ErrorCode::exhausted, text_.path,
                   fmt::format("rules of at most {} states", RuleSketch::kMostStates), "more",
                   "a simpler constraint"};
  }

  State add(RuleSketch& s, State from, const Expression& e) {
    if (s.full() || error_) return from;
    switch (e.kind) {
      case Expression::Kind::join:
        for (const Expression& part : e.parts) from = add(s, from, part);
        return from;
      case Expression::Kind::choice: {
        const State out = s.state(from);
        for (const Expression& part : e.parts) s.skip(add(s, from, part), out);
        return out;
      }
      case Expression::Kind::repeat: {
        const Expression& body = e.parts[0];
        for (std::int64_t i = 0; i < e.least && !s.full(); ++i) from = add(s, from, body);
        State at = s.state(from);
        s.skip(from, at);
        const State out = s.state(from);
        s.skip(at, out);
        if (e.most < 0) s.skip(add(s, at, body), at);
        for (std::int64_t i = e.least; i < e.most && !s.full(); ++i) {
          at = add(s, at, body);
          s.skip(at, out);
        }
        return out;
      }
      case Expression::Kind::regex:
        return Emitter<RuleSketch>(s, RegexMatch::whole, Spelling::plain)
            .emit(e.regex, from, true, true);
      case Expression::Kind::rule: {
        const State to = s.state(from);
        s.call(from, number_of(e.name, e.at), to);
        return to;
      }
      case Expression::Kind::json: {
        const auto rule = add_schema(b_, json_, e.schema, text_.path, {.ignored = &ignored_});
        if (!rule && !error_) error_ = rule.error();
        const State to = s.state(from);
        s.call(from, sketches_.size(), to);
        sketches_.emplace_back();
        schema_of_.emplace_back(rule ? std::optional(*rule) : std::nullopt);
        return to;
      }
    }
    return from;
  }

  // Which rules allow the empty text.
  void find_empty() {
    empty_.assign(sketches_.size(), false);
    for (bool more = true; more;) {
      more = false;
      for (std::size_t r = 0; r < sketches_.size(); ++r) {
        if (empty_[r] || schema_of_[r] || !reaches_end(sketches_[r])) continue;
        empty_[r] = more = true;
      }
    }
  }

  bool reaches_end(const RuleSketch& s) const {
    std::vector<bool> met(s.nodes().size());
    std::vector<State> todo = {RuleSketch::kStart};
    met[RuleSketch::kStart] = true;
    const auto reach = [&](State to) {
      if (!met[to]) todo.push_back(to);
      met[to] = true;
    };
    while (!todo.empty()) {
      const RuleSketch::Node& node = s.nodes()[todo.back()];
      todo.pop_back();
      for (const State to : node.skips) reach(to);
      for (const auto& c : node.calls) {
        if (empty_[c.rule]) reach(c.to);
      }
    }
    return met[s.end];
  }

  // Doubles the states of each rule: 2 s is s with nothing consumed, 2 s + 1 with something. The
  // rule ends in the second one alone.
  void split() {
    for (std::size_t r = 0; r < sketches_.size(); ++r) {
      if (schema_of_[r]) continue;
      const RuleSketch& old = sketches_[r];
      RuleSketch made;
      made.nodes().resize(2 * old.nodes().size());
      for (State s = 0; s < old.nodes().size(); ++s) {
        const RuleSketch::Node& node = old.nodes()[s];
        for (const State layer : {State{0}, State{1}}) {
          const State from = 2 * s + layer;
          for (const auto& e : node.chars) made.chars(from, e.chars, 2 * e.to + 1);
          for (const State to : node.skips) made.skip(from, 2 * to + layer);
          for (const auto& c : node.calls) {
            made.call(from, c.rule, 2 * c.to + 1);
            if (empty_[c.rule]) made.skip(from, 2 * c.to + layer);
          }
        }
      }
      made.end = 2 * old.end + 1;
      sketches_[r] = std::move(made);
      fresh_.resize(r + 1);
    }
    fresh_.resize(sketches_.size());
    for (std::size_t r = 0; r < sketches_.size(); ++r) {
      fresh_[r].assign(sketches_[r].nodes().size(), false);
      for (State s = 0; s < fresh_[r].size() && !schema_of_[r]; s += 2) fresh_[r][s] = true;
    }
  }

  // Calls to rules with which rule r begins.
  std::set<std::size_t> begins(std::size_t r) const {
    std::set<std::size_t> out;
    std::vector<bool> met(sketches_[r].nodes().size());
    std::vector<State> todo = {RuleSketch::kStart};
    met[RuleSketch::kStart] = true;
    while (!todo.empty()) {
      const RuleSketch::Node& node = sketches_[r].nodes()[todo.back()];
      todo.pop_back();
      for (const auto& c : node.calls) out.insert(c.rule);
      for (const State to : node.skips) {
        if (!met[to]) todo.push_back(to);
        met[to] = true;
      }
    }
    return out;
  }

  // Paull's algorithm: with rules in an order, a rule first gets copies of the earlier ones that it
  // begins with. Then it only begins with itself or later ones, and `r: r x | y` is `y x*`.
  void remove_left_recursion() {
    const std::vector<bool> circular = find_circular();
    for (std::size_t r = 0; r < sketches_.size() && !error_; ++r) {
      if (!circular[r]) continue;
      for (std::size_t earlier = 0; earlier < r && !error_; ++earlier) {
        if (circular[earlier]) copy_into(r, earlier);
      }
      loop(r);
    }
  }

  // Rules that can begin with themselves, after some steps.
  std::vector<bool> find_circular() const {
    const std::size_t n = sketches_.size();
    std::vector<std::set<std::size_t>> next;
    for (std::size_t r = 0; r < n; ++r) next.push_back(begins(r));
    std::vector<bool> out(n);
    for (std::size_t r = 0; r < n; ++r) {
      std::vector<bool> met(n);
      std::vector<std::size_t> todo(next[r].begin(), next[r].end());
      while (!todo.empty() && !out[r]) {
        const std::size_t at = todo.back();
        todo.pop_back();
        out[r] = at == r;
        if (met[at]) continue;
        met[at] = true;
        todo.insert(todo.end(), next[at].begin(), next[at].end());
      }
    }
    return out;
  }

  // Replaces the calls to `other` from fresh states of r by copies of it.
  void copy_into(std::size_t r, std::size_t other) {
    for (State s = 0; s < sketches_[r].nodes().size(); ++s) {
      if (!fresh_[r][s]) continue;
      std::vector<State> after;
      std::erase_if(sketches_[r].nodes()[s].calls, [&](const auto& c) {
        if (c.rule == other) after.push_back(c.to);
        return c.rule == other;
      });
      if (after.empty()) continue;
      const RuleSketch copied = sketches_[other];
      const auto base = static_cast<State>(sketches_[r].nodes().size());
      copied_states_ += copied.nodes().size();
      if (copied_states_ > RuleSketch::kMostStates) return too_large();
      for (State c = 0; c < copied.nodes().size(); ++c) {
        RuleSketch::Node node = copied.nodes()[c];
        for (auto& e : node.chars) e.to += base;
        for (auto& e : node.calls) e.to += base;
        for (State& to : node.skips) to += base;
        sketches_[r].nodes().push_back(std::move(node));
        fresh_[r].push_back(fresh_[other][c]);
      }
      sketches_[r].skip(s, base + RuleSketch::kStart);
      for (const State to : after) sketches_[r].skip(base + copied.end, to);
    }
  }

  void loop(std::size_t r) {
    RuleSketch& s = sketches_[r];
    std::vector<State> after;
    for (State at = 0; at < s.nodes().size(); ++at) {
      if (!fresh_[r][at]) continue;
      std::erase_if(s.nodes()[at].calls, [&](const auto& c) {
        if (c.rule == r) after.push_back(c.to);
        return c.rule == r;
      });
    }
    if (after.empty()) return;
    const State last = s.state(s.end);
    if (s.full()) return too_large();
    fresh_[r].push_back(false);
    for (const State to : after) s.skip(s.end, to);
    s.skip(s.end, last);
    s.end = last;
  }

  void emit(std::size_t r, const std::vector<Rule>& rules) {
    const RuleSketch& sketch = sketches_[r];
    const State start = b_.start(rules[r]), end = b_.end(rules[r]);
    // Only states that something leads to.
    std::map<State, State> made = {{RuleSketch::kStart, start}};
    std::vector<State> todo = {RuleSketch::kStart};
    const auto state_of = [&](State s) {
      const auto [it, fresh] = made.try_emplace(s, 0);
      if (fresh) {
        it->second = b_.state(start);
        todo.push_back(s);
      }
      return it->second;
    };
    while (!todo.empty() && !b_.full()) {
      const State s = todo.back();
      todo.pop_back();
      const State from = made.at(s);
      const RuleSketch::Node& node = sketch.nodes()[s];
      if (s == sketch.end) b_.skip(from, end);
      for (const auto& e : node.chars) add_char(b_, from, e.chars, Spelling::plain, state_of(e.to));
      for (const auto& c : node.calls) b_.call(from, rules[c.rule], state_of(c.to));
      for (const State to : node.skips) b_.skip(from, state_of(to));
    }
  }

  Builder& b_;
  JsonRules& json_;
  const GrammarText& text_;
  std::vector<std::string>& ignored_;
  std::optional<Error> error_;
  std::map<std::string, std::size_t> numbers_;
  std::vector<std::pair<std::size_t, const GrammarRule*>> todo_;
  std::vector<RuleSketch> sketches_;            // [rules] the first is the start rule
  std::vector<std::optional<Rule>> schema_of_;  // [rules] of a rule that is a schema
  std::vector<bool> empty_;                     // [rules]
  std::vector<std::vector<bool>> fresh_;        // [rules, states]
  std::size_t copied_states_ = 0;
};

Result<State> add_grammar(Builder& b, JsonRules& json, State from, const GrammarText& grammar,
                          std::vector<std::string>& ignored) {
  return GrammarMaker(b, json, grammar, ignored).add(from);
}

}  // namespace lathe::grammar
