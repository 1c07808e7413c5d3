#include "server/grammar/automaton.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace lathe::grammar {
namespace {

constexpr std::int64_t kEdgesPerLook = 4096;
constexpr std::int64_t kStepsOfAnEdge = 20;  // finish()'s included

// Sorts edges by source state: the edges of s are [first[s], first[s + 1]).
template <class From, class T>
void by_state(const std::vector<From>& edges, std::size_t states, std::vector<T>& out,
              std::vector<std::uint32_t>& first) {
  first.assign(states + 1, 0);
  for (const From& e : edges) ++first[e.from + 1];
  for (std::size_t s = 0; s < states; ++s) first[s + 1] += first[s];
  std::vector<std::uint32_t> at(first.begin(), first.end() - 1);
  out.resize(edges.size());
  for (const From& e : edges) out[at[e.from]++] = e.edge;
}

}  // namespace

bool Automaton::is_written_in(const std::bitset<256>& bytes) const {
  return bytes.all() || std::ranges::all_of(bytes_, [&](const ByteEdge& e) {
           for (int b = e.first; b <= e.last; ++b) {
             if (!bytes[static_cast<std::size_t>(b)]) return false;
           }
           return true;
         });
}

Builder::Builder(const Limits& limits, const std::bitset<256>& bytes)
    : limits_(limits), alphabet_(bytes) {}

Rule Builder::rule() {
  if (full() || std::ssize(starts_) >= limits_.rules) {
    LATHE_CHECK(!starts_.empty(), "room for the root");
    if (!full()) fault_ = Fault::too_large;
    return Automaton::kRoot;
  }
  const auto out = static_cast<Rule>(starts_.size());
  for (std::vector<State>* ends : {&starts_, &ends_}) {
    ends->push_back(static_cast<State>(rule_of_.size()));
    rule_of_.push_back(out);
    aliases_.push_back(ends->back());
  }
  return out;
}

State Builder::state(State near) {
  if (std::ssize(rule_of_) >= limits_.states && !full()) fault_ = Fault::too_large;
  if (full()) return near;
  aliases_.push_back(static_cast<State>(rule_of_.size()));
  rule_of_.push_back(rule_of_[near]);
  return aliases_.back();
}

bool Builder::takes_edge() {
  if (full()) return false;
  if (++edges_ > limits_.edges) fault_ = Fault::too_large;
  spend(kStepsOfAnEdge);
  const bool looks = limits_.stop != nullptr && edges_ % kEdgesPerLook == 0;
  if (looks && *limits_.stop) fault_ = Fault::stopped;
  return !full();
}

void Builder::spend(std::int64_t steps) {
  work_ += steps;
  if (work_ > limits_.work && !full()) fault_ = Fault::too_slow;
}

void Builder::bytes(State from, std::uint8_t first, std::uint8_t last, State to) {
  if (alphabet_.all()) {
    if (takes_edge()) bytes_.push_back({from, {first, last, to}});
    return;
  }
  for (int b = first; b <= last; ++b) {  // runs of bytes of the alphabet
    const int begin = b;
    while (b <= last && alphabet_[static_cast<std::size_t>(b)]) ++b;
    if (b == begin || !takes_edge()) continue;
    bytes_.push_back(
        {from, {static_cast<std::uint8_t>(begin), static_cast<std::uint8_t>(b - 1), to}});
  }
}

void Builder::skip(State from, State to) {
  if (from != to && takes_edge()) skips_.push_back({from, to});
}

void Builder::call(State from, Rule rule, State to) {
  if (takes_edge()) calls_.push_back({from, {rule, to}});
}

void Builder::texts(State from, std::vector<std::string> texts, State to) {
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  std::vector<State> path = {from};  // after each byte of the last text
  std::string_view last;
  for (const std::string& t : texts) {
    const auto differ = std::mismatch(t.begin(), t.end(), last.begin(), last.end());
    path.resize(static_cast<std::size_t>(differ.first - t.begin()) + 1);
    for (std::size_t i = path.size() - 1; i < t.size(); ++i) {
      path.push_back(text(path.back(), std::string_view(t).substr(i, 1)));
    }
    skip(path.back(), to);
    last = t;
  }
}

State Builder::text(State from, std::string_view text) {
  for (const char c : text) {
    const State to = state(from);
    bytes(from, static_cast<std::uint8_t>(c), static_cast<std::uint8_t>(c), to);
    from = to;
  }
  return from;
}

// [states] Whether some text leads from there to the end of the rule.
std::vector<bool> Builder::productive() const {
  // A reversed edge: its source state and, for a call, the called rule.
  struct Back {
    State before;
    std::int64_t rule;  // -1: none
  };
  std::vector<From<Back>> edges;
  for (const auto& e : bytes_) edges.push_back({e.edge.to, {e.from, -1}});
  for (const auto& e : skips_) edges.push_back({e.edge, {e.from, -1}});
  for (const auto& e : calls_) edges.push_back({e.edge.to, {e.from, e.edge.rule}});
  std::vector<Back> back;
  std::vector<std::uint32_t> first;
  by_state(edges, rule_of_.size(), back, first);
  std::vector<std::vector<State>> waiting(starts_.size());  // states that wait for a rule they call

  std::vector<bool> out(rule_of_.size());
  std::vector<State> todo;
  const auto reach = [&](State s) {
    if (out[s]) return;
    out[s] = true;
    todo.push_back(s);
  };
  for (const State end : ends_) reach(end);
  while (!todo.empty()) {
    const State s = todo.back();
    todo.pop_back();
    for (std::uint32_t i = first[s]; i < first[s + 1]; ++i) {
      const Back& b = back[i];
      if (b.rule < 0 || out[starts_[static_cast<std::size_t>(b.rule)]]) {
        reach(b.before);
      } else {
        waiting[static_cast<std::size_t>(b.rule)].push_back(b.before);
      }
    }
    const Rule rule = rule_of_[s];
    if (starts_[rule] != s) continue;
    for (const State before : std::exchange(waiting[rule], {})) reach(before);
  }
  return out;
}

template <class T>
void Builder::drop_edges(std::vector<From<T>>& edges, const std::vector<bool>& keep) {
  std::erase_if(edges, [&](const From<T>& e) {
    if constexpr (std::is_same_v<T, State>) {
      return !keep[e.from] || !keep[e.edge];
    } else if constexpr (std::is_same_v<T, CallEdge>) {
      return !keep[e.from] || !keep[e.edge.to] || !keep[starts_[e.edge.rule]];
    } else {
      return !keep[e.from] || !keep[e.edge.to];
    }
  });
}

// Returns false if a rule is left-recursive. Depth-first over the rules that a rule can begin with.
bool Builder::sort_rules(Automaton& out) const {
  enum class Mark : std::uint8_t { fresh, open, done };
  std::vector<Mark> marks(starts_.size(), Mark::fresh);
  std::vector<std::vector<Rule>> begins(starts_.size());
  std::vector<bool> seen(rule_of_.size());
  for (Rule r = 0; r < starts_.size(); ++r) {
    std::vector<State> todo = {starts_[r]};
    while (!todo.empty()) {
      const State s = todo.back();
      todo.pop_back();
      if (seen[s]) continue;
      seen[s] = true;
      LATHE_CHECK(r == Automaton::kRoot || s != ends_[r], "a rule that takes empty text");
      for (const CallEdge& c : out.calls(s)) begins[r].push_back(c.rule);
      for (const State to : out.skips(s)) todo.push_back(to);
    }
  }
  auto next = static_cast<std::uint32_t>(starts_.size());
  out.order_.assign(starts_.size(), 0);
  struct Visit {
    Rule rule;
    std::size_t at = 0;
  };
  for (Rule r = 0; r < starts_.size(); ++r) {
    if (marks[r] != Mark::fresh) continue;
    std::vector<Visit> path = {{r}};
    marks[r] = Mark::open;
    while (!path.empty()) {
      Visit& v = path.back();
      if (v.at == begins[v.rule].size()) {
        marks[v.rule] = Mark::done;
        out.order_[v.rule] = --next;
        path.pop_back();
        continue;
      }
      const Rule callee = begins[v.rule][v.at++];
      if (marks[callee] == Mark::open) return false;
      if (marks[callee] == Mark::done) continue;
      marks[callee] = Mark::open;
      path.push_back({callee});
    }
  }
  return true;
}

Fault Builder::finish(Automaton& out) {
  if (full()) return fault_;
  const std::vector<bool> keep = productive();
  if (!keep[starts_[Automaton::kRoot]]) return Fault::empty;
  drop_edges(bytes_, keep);
  drop_edges(calls_, keep);
  drop_edges(skips_, keep);
  by_state(bytes_, rule_of_.size(), out.bytes_, out.first_byte_);
  by_state(calls_, rule_of_.size(), out.calls_, out.first_call_);
  by_state(skips_, rule_of_.size(), out.skips_, out.first_skip_);
  out.starts_ = starts_;
  out.ends_ = ends_;
  out.rule_of_ = rule_of_;
  out.aliases_ = aliases_;
  std::array<bool, 257> begins{};
  for (const From<ByteEdge>& e : bytes_) begins[e.edge.first] = begins[e.edge.last + 1u] = true;
  for (std::size_t b = 1; b < 256; ++b) {
    out.classes_[b] = static_cast<std::uint8_t>(out.classes_[b - 1] + (begins[b] ? 1 : 0));
  }
  return sort_rules(out) ? Fault::none : Fault::circular;
}

}  // namespace lathe::grammar
