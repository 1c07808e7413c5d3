#include "server/grammar/grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "server/grammar/json_rules.h"
#include "server/grammar/regex.h"
#include "server/grammar/schema.h"

namespace lathe::grammar {
namespace {

constexpr std::string_view kThink = "<think>";
constexpr std::string_view kEndThink = "</think>";
constexpr std::size_t kMostSourceBytes = 256 << 10;

// Adds any text that ends with its first occurrence of `mark`. A failed match falls back to at most
// one matched byte, since no longer prefix of such a mark occurs elsewhere in it.
State add_until(Builder& b, State from, std::string_view mark) {
  std::vector<State> matched = {b.state(from)};  // [bytes of the mark]
  b.skip(from, matched[0]);
  const auto front = static_cast<std::uint8_t>(mark[0]);
  for (std::size_t i = 0; i < mark.size(); ++i) matched.push_back(b.state(from));
  for (std::size_t i = 0; i < mark.size(); ++i) {
    const auto next = static_cast<std::uint8_t>(mark[i]);
    b.bytes(matched[i], next, next, matched[i + 1]);
    if (i > 0) b.bytes(matched[i], front, front, matched[1]);
    int begin = 0;
    for (const int skipped : {std::min(front, next), std::max(front, next), std::uint8_t{255}}) {
      const int end = skipped == 255 ? 255 : skipped - 1;
      if (begin <= end) {
        b.bytes(matched[i], static_cast<std::uint8_t>(begin), static_cast<std::uint8_t>(end),
                matched[0]);
      }
      begin = skipped + 1;
    }
  }
  return matched.back();
}

// A list of {"name", "parameters"}.
Result<State> add_calls(Builder& b, JsonRules& json, const Source& source, State from) {
  const State open = json.space(b.text(from, "["));
  const State call = b.state(from), after = b.state(from);
  b.skip(open, call);
  for (const Tool& tool : source.tools) {
    Rule arguments = json.object();
    if (!tool.schema.empty()) {
      const auto rule = add_schema(b, json, tool.schema, tool.path);
      if (!rule) return rule.error();
      arguments = *rule;
    }
    const auto member = [&](State s, const char* name) {
      return json.space(b.text(json.space(b.text(s, name)), ":"));
    };
    State s = member(json.space(b.text(call, "{")), "\"name\"");
    s = member(json.comma(json.literal(s, tool.name)), "\"parameters\"");
    const State end = b.state(from);
    b.call(s, arguments, end);
    b.skip(b.text(json.space(end), "}"), after);
  }
  if (!source.one_call) b.skip(json.comma(after), call);
  return b.text(json.space(after), "]");
}

Result<State> add_source(Builder& b, const Source& source, State from) {
  JsonRules json(b);
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
      return add_regex(b, from, *regex, RegexMatch::whole, Spelling::plain);
    }
    case Source::Kind::calls:
      return add_calls(b, json, source, from);
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

}  // namespace

std::string Source::key() const {
  std::string out = fmt::format("{} {} ", static_cast<int>(kind), static_cast<int>(thinking));
  if (kind == Kind::json_schema) out += json_text(schema);
  if (kind == Kind::regex) out += regex;
  if (kind == Kind::choice) out += json_text(choices);
  for (const Tool& tool : tools) out += json_text(tool.name) + json_text(tool.schema);
  if (one_call) out += " 1";
  return out;
}

Result<std::shared_ptr<Grammar>> Grammar::compile(const Source& source,
                                                  const Vocabulary& vocabulary,
                                                  const Limits& limits) {
  if (const std::size_t bytes = source.key().size(); bytes > kMostSourceBytes) {
    return Error{ErrorCode::exhausted, source.path,
                 fmt::format("at most {} bytes", kMostSourceBytes), fmt::format("{}", bytes), ""};
  }
  Builder b(limits);
  const Rule root = b.rule();
  State from = b.start(root);
  if (source.thinking != Thinking::none) {
    const State after = b.state(from);
    if (source.thinking == Thinking::possible) {
      b.skip(from, after);
      from = b.text(from, kThink);
    }
    b.skip(add_until(b, from, kEndThink), after);
    from = after;
  }
  const auto to = add_source(b, source, from);
  if (!to) return to.error();
  b.skip(*to, b.end(root));
  Automaton automaton;
  if (const Fault fault = b.finish(automaton); fault != Fault::none) {
    return describe(fault, source, limits);
  }
  std::shared_ptr<Grammar> out(new Grammar(std::move(automaton), vocabulary));
  Masks::Next next;
  std::vector<std::uint32_t> bits(static_cast<std::size_t>((vocabulary.size() + 31) / 32));
  const std::shared_ptr<Masks> masks = out->masks();
  masks->fill(masks->start(), bits, next);
  if (!next.any) return describe(Fault::empty, source, limits);
  return out;
}

std::shared_ptr<Masks> Grammar::masks(const Masks* full) {
  const std::lock_guard lock(mutex_);
  if (masks_ == nullptr || masks_.get() == full) {
    masks_ = std::make_shared<Masks>(automaton_, vocabulary_);
  }
  return masks_;
}

}  // namespace lathe::grammar
