// Automaton: which byte strings a constraint allows. Rules call each other, as in a grammar; each
// is a nondeterministic automaton over bytes.
#pragma once

#include <array>
#include <atomic>
#include <bitset>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lathe::grammar {

using State = std::uint32_t;
using Rule = std::uint32_t;

/// Longer tokens, of which vocabularies have few, are not used in constrained answers.
inline constexpr std::int64_t kLongestToken = 32;

struct ByteEdge {
  std::uint8_t first;  // first and last byte that it accepts
  std::uint8_t last;
  State to;
};
struct CallEdge {
  Rule rule;  // its text, then `to`
  State to;
};

/// What compiling a constraint may cost. Exceeding a limit is an error of the request.
struct Limits {
  std::int64_t states = 1'000'000;
  std::int64_t edges = 3'000'000;  // 12 bytes each
  std::int64_t rules = 10'000;
  std::int64_t work = 200'000'000;          // steps of some 10 ns
  const std::atomic<bool>* stop = nullptr;  // set: nobody needs the result
};

/// Immutable. Every state reaches the end of its rule by some text, and only the root accepts empty
/// text.
class Automaton {
 public:
  static constexpr Rule kRoot = 0;

  std::int64_t states() const { return std::ssize(rule_of_); }
  std::int64_t rules() const { return std::ssize(starts_); }
  State start(Rule rule) const { return starts_[rule]; }
  bool is_end(State s) const { return ends_[rule_of_[s]] == s; }
  std::span<const ByteEdge> bytes(State s) const { return edges_of(bytes_, first_byte_, s); }
  std::span<const CallEdge> calls(State s) const { return edges_of(calls_, first_call_, s); }
  /// States reached without consuming text (epsilon edges).
  std::span<const State> skips(State s) const { return edges_of(skips_, first_skip_, s); }
  /// A state that behaves like s for the next kLongestToken bytes. Repeat counts far from their
  /// bounds share one; usually it is s itself.
  State alias(State s) const { return aliases_[s]; }
  /// The class of a byte: all edges treat the bytes of a class alike.
  std::uint8_t byte_class(std::uint8_t byte) const { return classes_[byte]; }
  /// Memory held.
  std::int64_t memory() const {
    return 32 * states() + 12 * (std::ssize(bytes_) + std::ssize(calls_)) + 4 * std::ssize(skips_);
  }
  /// Whether all bytes that a text can have are in `bytes`.
  bool is_written_in(const std::bitset<256>& bytes) const;
  /// Position in a topological order: a rule comes before the rules that it can begin with.
  std::uint32_t order(Rule rule) const { return order_[rule]; }

 private:
  friend class Builder;
  template <class T>
  static std::span<const T> edges_of(const std::vector<T>& edges,
                                     const std::vector<std::uint32_t>& first, State s) {
    return std::span(edges).subspan(first[s], first[s + 1] - first[s]);
  }

  std::vector<State> starts_, ends_;  // [rules]
  std::vector<std::uint32_t> order_;  // [rules]
  std::vector<Rule> rule_of_;         // [states]
  std::vector<State> aliases_;        // [states]
  std::array<std::uint8_t, 256> classes_{};
  std::vector<ByteEdge> bytes_;
  std::vector<CallEdge> calls_;
  std::vector<State> skips_;
  std::vector<std::uint32_t> first_byte_, first_call_, first_skip_;  // [states + 1]
};

enum class Fault {
  none,       // compiled
  too_large,  // more states, edges or rules than the limits
  too_slow,   // more work than the limit
  stopped,    // by Limits::stop
  empty,      // no text is allowed
  circular,   // a rule begins with itself
};

/// Builds an automaton. Once a limit is reached nothing more is added and finish() reports it;
/// callers that add many edges poll full().
class Builder {
 public:
  /// Texts that need other bytes than `bytes` are not allowed.
  explicit Builder(const Limits& limits, const std::bitset<256>& bytes = ~std::bitset<256>());

  /// Adds a rule; the first is the root. Rules other than the root must not accept empty text.
  Rule rule();
  State start(Rule rule) const { return starts_[rule]; }
  State end(Rule rule) const { return ends_[rule]; }
  /// Adds a state to the rule of `near`.
  State state(State near);
  /// Says that s behaves like `first` for the next kLongestToken bytes.
  void set_alias(State s, State first) { aliases_[s] = first; }
  void bytes(State from, std::uint8_t first, std::uint8_t last, State to);
  void skip(State from, State to);
  void call(State from, Rule rule, State to);
  /// Adds the bytes of `text` after `from`; returns the state at their end.
  State text(State from, std::string_view text);
  /// Adds some texts from `from` to `to`, with one path for the bytes that several begin with: so
  /// few states are alive at a time, however many texts there are. None may be empty.
  void texts(State from, std::vector<std::string> texts, State to);
  /// Counts work, in Limits' steps. It depends on the constraint alone, so equal ones are accepted
  /// or refused alike, however busy the machine is.
  void spend(std::int64_t steps);
  std::int64_t work() const { return work_; }
  /// Adds `least` to `most` (-1: no bound) repeats after `from`; returns the state at their end.
  /// add(from, to) adds one repeat, which must consume at least one byte.
  template <class Add>
  State repeat(State from, std::int64_t least, std::int64_t most, const Add& add);

  /// Whether JSON strings have < as \u003c alone, so that they hold no mark of a call.
  bool escapes_less = false;

  bool full() const { return fault_ != Fault::none; }
  /// Must be the last call.
  Fault finish(Automaton& out);

 private:
  template <class T>
  struct From {
    State from;
    T edge;
  };
  bool takes_edge();
  template <class T>
  void drop_edges(std::vector<From<T>>& edges, const std::vector<bool>& keep);
  std::vector<bool> productive() const;
  bool sort_rules(Automaton& out) const;

  Limits limits_;
  std::bitset<256> alphabet_;
  Fault fault_ = Fault::none;
  std::int64_t edges_ = 0, work_ = 0;
  std::vector<State> starts_, ends_;
  std::vector<Rule> rule_of_;
  std::vector<State> aliases_;
  std::vector<From<ByteEdge>> bytes_;
  std::vector<From<CallEdge>> calls_;
  std::vector<From<State>> skips_;
};

template <class Add>
State Builder::repeat(State from, std::int64_t least, std::int64_t most, const Add& add) {
  // States more than a token's length away from the next bound behave alike.
  const auto next = [&](State s, State first, std::int64_t left) {
    if (left > kLongestToken) aliases_[s] = first;
    const State to = state(s);
    add(s, to);
    return to;
  };
  State s = state(from);
  skip(from, s);
  State first = s;
  for (std::int64_t i = 0; i < least && !full(); ++i) s = next(s, first, least - i);
  const State out = state(s);
  skip(s, out);
  if (most < 0) {
    add(s, s);
    return out;
  }
  first = s;
  for (std::int64_t i = least; i < most && !full(); ++i) {
    s = next(s, first, most - i);
    skip(s, out);
  }
  return out;
}

}  // namespace lathe::grammar
