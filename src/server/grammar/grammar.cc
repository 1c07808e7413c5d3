#include "server/grammar/grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "server/grammar/grammar_text.h"
#include "server/grammar/json_rules.h"
#include "server/grammar/regex.h"
#include "server/grammar/schema.h"
#include "server/grammar/text_rules.h"

namespace lathe::grammar {
namespace {

constexpr std::size_t kMostSourceBytes = 256 << 10;

// Where reading goes on after each text that is a beginning of a pattern (Aho and Corasick 1975).
struct Searcher {
  struct Node {
    std::array<std::uint16_t, 256> next{};
    std::uint16_t shorter = 0;  // the longest end of its text that is a node
    int pattern = -1;           // that its text, or an end of it, is
  };
  std::vector<Node> nodes = std::vector<Node>(1);

  explicit Searcher(std::span<const std::string> patterns) {
    for (std::size_t p = 0; p < patterns.size(); ++p) {
      std::uint16_t at = 0;
      for (const char c : patterns[p]) {
        const auto byte = static_cast<std::uint8_t>(c);
        if (nodes[at].next[byte] == 0) {
          nodes[at].next[byte] = static_cast<std::uint16_t>(nodes.size());
          nodes.emplace_back();
        }
        at = nodes[at].next[byte];
      }
      nodes[at].pattern = static_cast<int>(p);
    }
    std::vector<std::uint16_t> queue = {0};  // breadth first
    for (std::size_t i = 0; i < queue.size(); ++i) {
      const std::uint16_t at = queue[i];
      for (std::size_t byte = 0; byte < 256; ++byte) {
        const std::uint16_t to = nodes[at].next[byte];
        const std::uint16_t other = at == 0 ? 0 : nodes[nodes[at].shorter].next[byte];
        if (to == 0) {
          nodes[at].next[byte] = other;
          continue;
        }
        nodes[to].shorter = other;
        if (nodes[to].pattern < 0) nodes[to].pattern = nodes[other].pattern;
        queue.push_back(to);
      }
    }
  }
};

// Adds any text that ends with its first occurrence of `mark`, without any of `avoided`. `stop`, if
// any, is the state after a text without the mark. `no_space`: the text does not begin with a
// space.
State add_until(Builder& b, State from, std::string_view mark,
                std::optional<State> stop = std::nullopt,
                const std::vector<std::string>& avoided = {}, bool no_space = false) {
  std::vector<std::string> patterns = {std::string(mark)};
  patterns.insert(patterns.end(), avoided.begin(), avoided.end());
  const Searcher searcher(patterns);
  const State found = b.state(from);
  std::vector<State> states = {b.state(from)};  // [nodes]
  for (std::size_t i = 1; i < searcher.nodes.size(); ++i) states.push_back(b.state(from));
  const auto add = [&](State state, const Searcher::Node& node, bool skips_space) {
    if (stop) b.skip(state, *stop);
    for (int first = 0; first < 256;) {
      const std::uint16_t to = node.next[static_cast<std::size_t>(first)];
      int last = first;
      while (last < 255 && node.next[static_cast<std::size_t>(last + 1)] == to &&
             !(skips_space && (last == ' ' || last + 1 == ' '))) {
        ++last;
      }
      const int pattern = searcher.nodes[to].pattern;
      if (pattern <= 0 && !(skips_space && first == ' ')) {
        b.bytes(state, static_cast<std::uint8_t>(first), static_cast<std::uint8_t>(last),
                pattern == 0 ? found : states[to]);
      }
      first = last + 1;
    }
  };
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (searcher.nodes[i].pattern < 0) add(states[i], searcher.nodes[i], false);
  }
  if (!no_space) {
    b.skip(from, states[0]);
    return found;
  }
  const State first = b.state(from);
  b.skip(from, first);
  add(first, searcher.nodes[0], true);
  return found;
}

// What schemas of tools share.
struct ToolRules {
  Builder& b;
  JsonRules& json;
  std::vector<std::string>* ignored;  // null: all constraints must be followed
};

// Arguments are an object, whatever the schema says.
Result<State> add_arguments(const ToolRules& rules, const Tool& tool, State from) {
  Builder& b = rules.b;
  JsonRules& json = rules.json;
  Rule arguments = json.object();
  if (!tool.schema.empty()) {
    const auto rule = add_schema(b, json, tool.schema, tool.path, {true, rules.ignored});
    if (!rule) return rule.error();
    arguments = *rule;
  }
  const State to = b.state(from);
  b.call(from, arguments, to);
  return to;
}

// {"name", "parameters"}; the second name is `arguments`.
Result<State> add_call(const ToolRules& rules, const Tool& tool, const char* arguments,
                       State from) {
  Builder& b = rules.b;
  JsonRules& json = rules.json;
  const auto member = [&](State s, const char* name) {
    return json.space(b.text(json.space(b.text(s, name)), ":"));
  };
  const State s = member(json.space(b.text(from, "{")), "\"name\"");
  const auto end =
      add_arguments(rules, tool, member(json.comma(json.literal(s, tool.name)), arguments));
  if (!end) return end.error();
  return b.text(json.space(*end), "}");
}

// Any text, and calls in the form of the model.
Result<State> add_text_and_calls(const ToolRules& rules, const Source& source, State from) {
  Builder& b = rules.b;
  JsonRules& json = rules.json;
  const JsonCallForm& form = source.form;
  const State text = b.state(from), to = b.state(from);
  b.skip(from, text);
  const State call = source.must_call
                         ? b.text(text, form.begin)
                         : add_until(b, text, form.begin, to, form.avoided, form.no_space);
  for (const Tool& tool : source.tools) {
    if (form.wrapped) {
      const auto end = add_call(rules, tool, "\"arguments\"", json.space(call));
      if (!end) return end.error();
      b.skip(b.text(json.space(*end), form.end), source.one_call ? to : text);
      continue;
    }
    const State name = b.text(b.text(call, form.before_name), tool.name);
    const auto end = add_arguments(rules, tool, b.text(name, form.after_name));
    if (!end) return end.error();
    b.skip(b.text(*end, form.end), source.one_call ? to : text);
  }
  return to;
}

// A list of {"name", "parameters"}.
Result<State> add_calls(const ToolRules& rules, const Source& source, State from) {
  Builder& b = rules.b;
  JsonRules& json = rules.json;
  const State open = json.space(b.text(from, "["));
  const State call = b.state(from), after = b.state(from);
  b.skip(open, call);
  for (const Tool& tool : source.tools) {
    const auto end = add_call(rules, tool, "\"parameters\"", call);
    if (!end) return end.error();
    b.skip(*end, after);
  }
  if (!source.one_call) b.skip(json.comma(after), call);
  return b.text(json.space(after), "]");
}

Result<State> add_source(Builder& b, const Source& source, State from,
                         std::vector<std::string>& ignored) {
  JsonRules json(b);
  const ToolRules tools{b, json, source.lenient ? &ignored : nullptr};
  const State to = b.state(from);
  switch (source.kind) {
    case Source::Kind::json_object:
      b.call(from, json.object(), to);
      return to;
    case Source::Kind::json_schema: {
      const auto rule = add_schema(b, json, source.schema, source.path);
      if (!rule) return rule.error();
      b.call(from, *rule, to);
      return to;
    }
    case Source::Kind::regex: {
      const auto regex = parse_regex(source.regex, source.path);
      if (!regex) return regex.error();
      if (regex->looks.empty()) {
        return add_regex(b, from, *regex, RegexMatch::whole, Spelling::plain);
      }
      const TextRule rule{&*regex, RegexMatch::whole};
      const auto dfa = TextDfa::make({&rule, 1});
      if (dfa) return dfa->add(b, from, 0, -1, Spelling::plain);
      return Error{ErrorCode::exhausted, source.path,
                   "texts that an automaton of 10,000 states follows", "a larger one", ""};
    }
    case Source::Kind::grammar: {
      const auto grammar = parse_grammar(source.grammar, source.path);
      if (!grammar) return grammar.error();
      return add_grammar(b, json, from, *grammar);
    }
    case Source::Kind::calls:
      return add_calls(tools, source, from);
    case Source::Kind::text_and_calls:
      return add_text_and_calls(tools, source, from);
    case Source::Kind::choice:
      b.texts(from, source.choices, to);
      return to;
  }
  return to;
}

Error describe(Fault fault, const Source& source, const Limits& limits) {
  Error out{ErrorCode::exhausted, source.path, "", "", "a simpler constraint"};
  switch (fault) {
    case Fault::too_slow:
      out.wanted = fmt::format("a constraint that compiles in {} ms", limits.time.count());
      out.offered = "a slower one";
      break;
    case Fault::stopped:
      out.wanted = "a client that waits";
      out.offered = "one that has left";
      out.hint = "";
      break;
    case Fault::empty:
      out.code = ErrorCode::out_of_range;
      out.wanted = "a constraint that allows some text";
      out.offered = "one that allows none";
      out.hint = "";
      break;
    case Fault::circular:
      out.code = ErrorCode::unsupported;
      out.wanted = "references that resolve to a value";
      out.offered = "one that refers to itself";
      out.hint = "";
      break;
    default:
      out.wanted = fmt::format("an automaton of at most {} states, {} edges and {} rules",
                               limits.states, limits.edges, limits.rules);
      out.offered = "a larger one";
      break;
  }
  return out;
}

Result<Automaton> build(const Source& source, const Limits& limits, const std::bitset<256>& bytes,
                        std::vector<std::string>& ignored) {
  Builder b(limits, bytes);
  const Rule root = b.rule();
  State from = b.start(root);
  if (source.thinking != Thinking::none) {
    const State after = b.state(from);
    if (source.thinking == Thinking::possible) {
      b.skip(from, after);
      from = b.text(from, source.think_begin);
    }
    b.skip(b.text(add_until(b, from, source.think_end), source.after_think), after);
    from = after;
  }
  from = b.text(from, source.opening);
  const auto to = add_source(b, source, from, ignored);
  if (!to) return to.error();
  b.skip(*to, b.end(root));
  Automaton out;
  if (const Fault fault = b.finish(out); fault != Fault::none) {
    return describe(fault, source, limits);
  }
  return out;
}

std::vector<std::uint32_t> bits_of_all(const Source& source, const Vocabulary& vocabulary) {
  if (!source.tokens.empty()) return source.tokens;
  return std::vector<std::uint32_t>(static_cast<std::size_t>((vocabulary.size() + 31) / 32), ~0u);
}

Error cannot_write(const Source& source) {
  if (source.tokens.empty()) {
    return {ErrorCode::out_of_range, source.path, "a text that the model's tokens can write",
            "a constraint that allows none", ""};
  }
  return {ErrorCode::out_of_range, source.tokens_path,
          fmt::format("tokens that can write a text that {} allows", source.path),
          "tokens that write none", ""};
}

}  // namespace

std::string Source::key() const {
  std::string out = fmt::format("{} {} ", static_cast<int>(kind), static_cast<int>(thinking));
  if (kind == Kind::json_schema) out += json_text(schema);
  if (kind == Kind::regex) out += regex;
  if (kind == Kind::grammar) out += grammar;
  if (kind == Kind::choice) out += json_text(choices);
  for (const Tool& tool : tools) out += json_text(tool.name) + json_text(tool.schema);
  if (one_call) out += " 1";
  if (lenient) out += " lenient";
  if (must_call) out += " must";
  for (const std::string* part : {&think_begin, &think_end, &after_think, &opening}) {
    out += " " + *part;
  }
  for (const std::string* part : {&form.begin, &form.before_name, &form.after_name, &form.end}) {
    out += " " + *part;
  }
  for (const std::string& text : form.avoided) out += " " + text;
  if (form.no_space) out += " no space";
  out.append(reinterpret_cast<const char*>(tokens.data()), 4 * tokens.size());
  return out;
}

Result<std::shared_ptr<Grammar>> Grammar::compile(const Source& source,
                                                  const Vocabulary& vocabulary,
                                                  const Limits& limits) {
  const std::size_t size = source.key().size() - 4 * source.tokens.size();
  if (size > kMostSourceBytes) {
    return Error{ErrorCode::exhausted, source.path,
                 fmt::format("at most {} bytes", kMostSourceBytes), fmt::format("{}", size), ""};
  }
  const std::bitset<256> bytes = vocabulary.bytes(source.tokens);
  std::vector<std::string> ignored;
  auto automaton = build(source, limits, ~std::bitset<256>(), ignored);
  if (!automaton) return automaton.error();
  std::optional<TokenGraph> graph;
  if (!automaton->is_written_in(bytes)) {
    graph = TokenGraph::make(*automaton, vocabulary, bits_of_all(source, vocabulary));
    if (graph && graph->empty()) return cannot_write(source);
    // Of too many texts to look at, those that tokens of one byte can write.
    if (!graph) automaton = build(source, limits, bytes, ignored);
    if (!automaton) return cannot_write(source);
  }
  std::shared_ptr<Grammar> out(new Grammar(std::move(*automaton), vocabulary, source.tokens));
  out->graph_ = std::move(graph);
  out->ignored_ = std::move(ignored);
  if (out->graph_) return out;
  const std::shared_ptr<Masks> masks = out->masks();
  if (!masks->any_at_start()) return describe(Fault::empty, source, limits);
  if (masks->cost_too_much(limits.stop)) {
    return Error{ErrorCode::exhausted, source.path,
                 fmt::format("a constraint that can be read in at most {} ways within a token",
                             kMostMaskWork),
                 "one with more", "smaller bounds of repeats inside repeats"};
  }
  return out;
}

std::int64_t Grammar::bytes() {
  const std::lock_guard lock(mutex_);
  return automaton_.memory() + 4 * std::ssize(usable_) + (masks_ ? masks_->bytes() : 0) +
         (graph_ ? graph_->bytes() : 0);
}

std::shared_ptr<Masks> Grammar::masks(const Masks* full) {
  const std::lock_guard lock(mutex_);
  if (masks_ == nullptr || masks_.get() == full) {
    masks_ = std::make_shared<Masks>(automaton_, vocabulary_);
  }
  return masks_;
}

}  // namespace lathe::grammar
