#include "server/grammar/text/text_rules.h"

#include <algorithm>
#include <map>
#include <utility>

#include "server/grammar/text/regex_emitter.h"

namespace lathe::grammar {

// The sets of characters that edges have, each once.
class CharSets {
 public:
  std::size_t number_of(const CharSet& set) {
    std::vector<char32_t> key;
    for (const CharRange& r : set.ranges()) key.insert(key.end(), {r.first, r.last});
    const auto [it, fresh] = numbers_.try_emplace(std::move(key), sets_.size());
    if (fresh) sets_.push_back(set);
    return it->second;
  }
  const std::vector<CharSet>& sets() const { return sets_; }

 private:
  std::map<std::vector<char32_t>, std::size_t> numbers_;
  std::vector<CharSet> sets_;
};

// A nondeterministic automaton over characters. It has the functions of Builder that Emitter uses.
class TextNfa {
 public:
  struct CharEdge {
    std::size_t set;
    State to;
  };
  static constexpr State kStart = 0;

  explicit TextNfa(CharSets& sets) : sets_(&sets) { state(kStart); }

  State state(State /*near*/) {
    if (full()) return kStart;
    chars_.emplace_back();
    skips_.emplace_back();
    return static_cast<State>(chars_.size() - 1);
  }
  bool full() const { return std::ssize(chars_) >= kMostStates; }
  void skip(State from, State to) { skips_[from].push_back(to); }
  void add(State from, const CharSet& set, State to) {
    if (!set.empty()) chars_[from].push_back({sets_->number_of(set), to});
  }
  template <class Add>
  State repeat(State from, std::int64_t least, std::int64_t most, const Add& add_one);

  std::size_t size() const { return chars_.size(); }
  const std::vector<CharEdge>& chars(State s) const { return chars_[s]; }
  const std::vector<State>& skips(State s) const { return skips_[s]; }

  State end = kStart;
  // As a part of a rule:
  bool negated = false;  // it must not match
  bool last = false;
  bool complement = false;  // the rule must not hold

 private:
  static constexpr std::int64_t kMostStates = 50'000;

  CharSets* sets_;
  std::vector<std::vector<CharEdge>> chars_;
  std::vector<std::vector<State>> skips_;
};

template <class Add>
State TextNfa::repeat(State from, std::int64_t least, std::int64_t most, const Add& add_one) {
  State s = state(from);
  skip(from, s);
  const auto next = [&] {
    const State to = state(s);
    add_one(s, to);
    s = to;
  };
  for (std::int64_t i = 0; i < least && !full(); ++i) next();
  const State out = state(s);
  skip(s, out);
  if (most < 0) add_one(s, s);
  for (std::int64_t i = least; i < most && !full(); ++i) {
    next();
    skip(s, out);
  }
  return out;
}

static void add_char(TextNfa& nfa, State from, const CharSet& chars, Spelling /*as*/, State to) {
  nfa.add(from, chars, to);
}

// Makes the automaton of all rules at once: its states are sets of states of each rule's parts. A
// rule's parts are its expression and the looks of that.
class TextDfa::Maker {
 public:
  bool make(std::span<const TextRule> rules, TextDfa& out) {
    for (const TextRule& rule : rules) {
      add(rule);
      const bool full = std::any_of(nfas_.begin(), nfas_.end(), [](auto& n) { return n.full(); });
      if (std::ssize(nfas_) > kMostParts || full) return false;
    }
    make_classes();
    std::vector<State> start;
    for (std::size_t i = 0; i < nfas_.size(); ++i) close(i, {TextNfa::kStart}, start);
    state_of(std::move(start));
    for (std::size_t s = 0; s < keys_.size(); ++s) {
      if (!visit(s, out)) return false;
    }
    return true;
  }
  std::int64_t work() const { return work_; }

 private:
  static constexpr std::size_t kMostStates = 10'000;
  static constexpr std::int64_t kMostWork = 20'000'000;  // edges looked at, some 0.2 s
  static constexpr std::int64_t kMostParts = 64;
  static constexpr State kNext = ~State{0};  // after the set of each part in a key

  void add(const TextRule& rule) {
    const auto add_part = [&](const Regex& regex, RegexMatch match, bool negated) {
      TextNfa& nfa = nfas_.emplace_back(sets_);
      nfa.negated = negated;
      nfa.end =
          Emitter<TextNfa>(nfa, match, Spelling::plain).emit(regex, TextNfa::kStart, true, true);
    };
    const std::size_t first = nfas_.size();
    if (rule.regex == nullptr) {
      TextNfa& nfa = nfas_.emplace_back(sets_);
      nfa.end = nfa.state(TextNfa::kStart);
      for (const std::string& text : rule.texts) {
        State s = TextNfa::kStart;
        for (const char32_t c : decode_utf8(text)) {
          const State to = nfa.state(s);
          nfa.add(s, {{c, c}}, to);
          s = to;
        }
        nfa.skip(s, nfa.end);
      }
    } else {
      add_part(*rule.regex, rule.match, false);
      for (const Regex::Look& look : rule.regex->looks) {
        add_part(look.regex, RegexMatch::anywhere, look.negated);
      }
    }
    for (std::size_t i = first; i < nfas_.size(); ++i) nfas_[i].complement = rule.negated;
    nfas_.back().last = true;
  }

  // Characters that all sets treat alike are a class.
  void make_classes() {
    std::vector<char32_t> cuts = {0, 0xE000};  // surrogates are in no set
    for (const CharSet& set : sets_.sets()) {
      for (const CharRange& r : set.ranges()) cuts.insert(cuts.end(), {r.first, r.last + 1});
    }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    std::map<std::vector<bool>, std::size_t> numbers;
    std::vector<std::vector<CharRange>> ranges;
    for (std::size_t i = 0; i < cuts.size(); ++i) {
      const char32_t last = i + 1 < cuts.size() ? cuts[i + 1] - 1 : 0x10FFFF;
      if (cuts[i] > 0x10FFFF) break;
      std::vector<bool> in;
      for (const CharSet& set : sets_.sets()) in.push_back(set.contains(cuts[i]));
      const auto [it, fresh] = numbers.try_emplace(std::move(in), ranges.size());
      if (fresh) ranges.emplace_back();
      ranges[it->second].push_back({cuts[i], last});
    }
    in_class_.resize(ranges.size());
    for (const auto& [in, number] : numbers) in_class_[number] = in;
    for (auto& r : ranges) classes_.emplace_back(std::move(r));
  }

  // Appends the closure of some states of a part to a key.
  void close(std::size_t part, std::vector<State> todo, std::vector<State>& key) {
    const TextNfa& nfa = nfas_[part];
    met_.assign(nfa.size(), false);
    const std::size_t begin = key.size();
    for (const State s : todo) met_[s] = true;
    while (!todo.empty()) {
      const State s = todo.back();
      todo.pop_back();
      key.push_back(s);
      for (const State to : nfa.skips(s)) {
        if (!met_[to]) todo.push_back(to);
        met_[to] = true;
      }
    }
    work_ += std::ssize(key) + std::ssize(met_) / 64;
    std::sort(key.begin() + static_cast<std::ptrdiff_t>(begin), key.end());
    key.push_back(kNext);
  }

  std::uint32_t state_of(std::vector<State> key) {
    const auto [it, fresh] =
        numbers_.try_emplace(std::move(key), static_cast<std::uint32_t>(keys_.size()));
    if (fresh) keys_.push_back(&it->first);
    return it->second;
  }

  bool visit(std::size_t number, TextDfa& out) {
    const std::vector<State>& key = *keys_[number];
    Node node;
    node.end = true;
    std::size_t part = 0;
    bool holds = true;  // the rule, by its parts so far
    bool at_end = false;
    for (const State s : key) {
      if (s != kNext) {
        at_end = at_end || s == nfas_[part].end;
        continue;
      }
      const TextNfa& nfa = nfas_[part++];
      holds = holds && at_end != nfa.negated;
      at_end = false;
      if (!nfa.last) continue;
      node.end = node.end && holds != nfa.complement;
      holds = true;
    }
    std::map<std::uint32_t, CharSet> edges;
    for (std::size_t c = 0; c < classes_.size(); ++c) {
      if (classes_[c].empty()) continue;  // surrogates
      auto next = step(key, c);
      if (work_ > kMostWork || keys_.size() > kMostStates) return false;
      if (!next) continue;
      CharSet& chars = edges[state_of(std::move(*next))];
      chars = chars | classes_[c];
    }
    for (auto& [to, chars] : edges) node.edges.push_back({std::move(chars), to});
    out.states_.push_back(std::move(node));
    return true;
  }

  // nullopt: a part that must hold cannot any more.
  std::optional<std::vector<State>> step(const std::vector<State>& key, std::size_t c) {
    std::vector<State> out, todo;
    std::size_t part = 0;
    for (const State s : key) {
      if (s != kNext) {
        for (const TextNfa::CharEdge& e : nfas_[part].chars(s)) {
          ++work_;
          if (in_class_[c][e.set]) todo.push_back(e.to);
        }
        continue;
      }
      std::sort(todo.begin(), todo.end());
      todo.erase(std::unique(todo.begin(), todo.end()), todo.end());
      const bool must_hold = !nfas_[part].negated && !nfas_[part].complement;
      if (todo.empty() && must_hold) return std::nullopt;
      close(part, std::exchange(todo, {}), out);
      ++part;
    }
    return out;
  }

  CharSets sets_;
  std::vector<TextNfa> nfas_;  // [parts]
  std::vector<CharSet> classes_;
  std::vector<std::vector<bool>> in_class_;  // [classes, sets]
  std::map<std::vector<State>, std::uint32_t> numbers_;
  std::vector<const std::vector<State>*> keys_;
  std::vector<bool> met_;
  std::int64_t work_ = 0;
};

std::optional<TextDfa> TextDfa::make(std::span<const TextRule> rules, std::int64_t& work) {
  TextDfa out;
  Maker maker;
  const bool made = maker.make(rules, out);
  work += maker.work();
  if (!made) return std::nullopt;
  out.drop_dead_ends();
  return out;
}

// Also measures the ways to the ends.
void TextDfa::drop_dead_ends() {
  constexpr std::int64_t kNone = -1;
  std::vector<std::vector<std::uint32_t>> before(states_.size());
  std::vector<std::int64_t> way(states_.size(), kNone);  // characters to the nearest end
  std::vector<std::uint32_t> todo;
  for (std::uint32_t s = 0; s < states_.size(); ++s) {
    for (const Edge& e : states_[s].edges) before[e.to].push_back(s);
    if (states_[s].end) todo.push_back(s), way[s] = 0;
  }
  for (std::size_t i = 0; i < todo.size(); ++i) {
    for (const std::uint32_t s : before[todo[i]]) {
      if (way[s] == kNone) todo.push_back(s), way[s] = way[todo[i]] + 1;
    }
  }
  if (states_.empty() || way[0] == kNone) {
    states_.clear();
    return;
  }
  longest_way_ = *std::max_element(way.begin(), way.end());
  // States without endless ways: those that remain when states without a live successor go.
  std::vector<std::size_t> live(states_.size());
  for (std::uint32_t s = 0; s < states_.size(); ++s) {
    std::erase_if(states_[s].edges, [&](const Edge& e) { return way[e.to] == kNone; });
    live[s] = states_[s].edges.size();
  }
  endless_ = true;
  for (std::uint32_t s = 0; s < states_.size(); ++s) {
    if (way[s] != kNone && live[s] == 0) endless_ = false;
  }
}

bool TextDfa::allows(std::u32string_view text) const {
  if (empty()) return false;
  std::uint32_t s = 0;
  for (const char32_t c : text) {
    const auto& edges = states_[s].edges;
    const auto edge = std::find_if(edges.begin(), edges.end(),
                                   [&](const Edge& e) { return e.chars.contains(c); });
    if (edge == edges.end()) return false;
    s = edge->to;
  }
  return states_[s].end;
}

State TextDfa::add(Builder& b, State from, std::int64_t least, std::int64_t most,
                   Spelling spelling) const {
  const State out = b.state(from);
  if (empty()) return out;
  constexpr State kNone = ~State{0};
  // The builder's states after `count` characters, and after one more, by state of this automaton.
  std::vector<State> made(states_.size(), kNone), next = made;
  std::vector<std::uint32_t> todo = {0}, later;  // those that have one
  std::vector<State> free = made;                // the first one far from the bounds
  const std::int64_t margin = kLongestToken + longest_way_;
  const auto make = [&](std::uint32_t s, std::int64_t count) {
    const State state = b.state(from);
    const bool far = count >= least ? most >= 0 && most - count > margin
                                    : most < 0 && endless_ && least - count > margin;
    if (far && free[s] == kNone) {
      free[s] = state;
    } else if (far) {
      b.set_alias(state, free[s]);
    }
    return state;
  };
  made[0] = make(0, 0);
  b.skip(from, made[0]);
  for (std::int64_t count = 0; !todo.empty() && !b.full(); ++count) {
    // Without a most, numbers from `least` on are alike.
    const bool stays = most < 0 && count == least;
    std::vector<State>& after = stays ? made : next;
    for (std::size_t i = 0; i < todo.size() && !b.full(); ++i) {
      const std::uint32_t s = todo[i];
      if (states_[s].end && count >= least) b.skip(made[s], out);
      if (most >= 0 && count == most) continue;
      for (const Edge& e : states_[s].edges) {
        if (after[e.to] == kNone) {
          after[e.to] = make(e.to, stays ? count : count + 1);
          (stays ? todo : later).push_back(e.to);
        }
        add_char(b, made[s], e.chars, spelling, after[e.to]);
      }
    }
    for (const std::uint32_t s : todo) made[s] = kNone;
    todo.clear();
    std::swap(made, next);
    std::swap(todo, later);
  }
  return out;
}

}  // namespace lathe::grammar
