#include "server/grammar/grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/json.h"
#include "server/grammar/call_rules.h"
#include "server/grammar/schema/json_rules.h"
#include "server/grammar/schema/schema.h"
#include "server/grammar/text/grammar_text.h"
#include "server/grammar/text/regex.h"
#include "server/grammar/text/text_rules.h"
#include "server/grammar/text_search.h"

namespace lathe::grammar {
namespace {

constexpr std::size_t kMostSourceBytes = 256 << 10;

Result<State> add_source(Builder& b, const Source& source, State from,
                         std::vector<std::string>& ignored) {
  JsonRules json(b);
  const ToolRules tools{b, json, source.lenient, &ignored};
  const State to = b.state(from);
  switch (source.kind) {
    case Source::Kind::json_object:
      b.call(from, json.object(), to);
      return to;
    case Source::Kind::json_schema: {
      const auto rule = add_schema(b, json, source.schema, source.path, {.ignored = &ignored});
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
      std::int64_t work = 0;
      const auto dfa = TextDfa::make({&rule, 1}, work);
      b.spend(work);
      if (dfa) return dfa->add(b, from, 0, -1, Spelling::plain);
      return Error{ErrorCode::exhausted, source.path,
                   "texts that an automaton of 10,000 states follows", "a larger one", ""};
    }
    case Source::Kind::grammar: {
      const auto grammar = parse_grammar(source.grammar, source.path);
      if (!grammar) return grammar.error();
      return add_grammar(b, json, from, *grammar, ignored);
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
  const bool calls =
      source.kind == Source::Kind::calls || source.kind == Source::Kind::text_and_calls;
  switch (fault) {
    case Fault::too_slow:
      return too_much_work(source.path);
    case Fault::stopped:
      out.wanted = "a client that waits";
      out.offered = "one that has left";
      out.hint = "";
      break;
    case Fault::empty:
      // Of calls only arguments can be impossible, and then those of each tool are.
      if (calls && !source.tools.empty()) out.field = source.tools[0].path;
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
                        std::vector<std::string>& ignored, std::int64_t& work) {
  Builder b(limits, bytes);
  // The text is a message between marks.
  if (!source.opening.empty()) b.escapes_less = source.form.escapes_less;
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
  const auto to = add_source(b, source, b.text(from, source.opening), ignored);
  if (!to) return to.error();
  b.skip(*to, b.end(root));
  if (source.or_calls) {
    JsonRules json(b);
    const ToolRules tools{b, json, source.lenient, &ignored};
    const auto called = add_text_and_calls(tools, source, from);
    if (!called) return called.error();
    b.skip(*called, b.end(root));
  }
  Automaton out;
  work += b.work();
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

// The field that has a schema's path; null if that is `path` itself.
const std::string* field_of(const Source& source, std::size_t tool) {
  if (tool < source.tools.size()) return &source.tools[tool].path;
  return tool == source.tools.size() ? &source.path : nullptr;
}

// The paths without the source's fields, since another request with the same schemas has others.
std::vector<Grammar::SchemaPath> without_fields(const std::vector<std::string>& paths,
                                                const Source& source) {
  std::vector<Grammar::SchemaPath> out;
  for (const std::string& path : paths) {
    std::size_t tool = 0;
    for (; tool <= source.tools.size(); ++tool) {
      const std::string& field = *field_of(source, tool);
      const std::string_view rest =
          std::string_view(path).substr(std::min(field.size(), path.size()));
      if (path.starts_with(field) && (rest.starts_with('.') || rest.starts_with('['))) break;
    }
    const std::string* const field = field_of(source, tool);
    out.push_back({tool, field != nullptr ? path.substr(field->size()) : path});
  }
  return out;
}

}  // namespace

std::string CallForm::key() const {
  std::string out = fmt::format(" {}{}{}{}{}{}{}{}", wrapped, numbered, listed, begins_answer,
                                in_json_list, in_lines, with_ids, escapes_less);
  const auto add = [&](const std::string& part) {
    out += fmt::format(" {} {}", part.size(), part);
  };
  for (const std::string* part :
       {&begin, &arguments_name, &before_name, &before_number, &after_name, &end, &between,
        &list_end, &list_begin, &not_first}) {
    add(*part);
  }
  for (const auto* texts : {&avoided, &around}) {
    out += fmt::format(" {}", texts->size());
    for (const std::string& text : *texts) add(text);
  }
  if (!marked) return out;
  out += " marked";
  for (const std::string* part :
       {&marked->before_key, &marked->after_key, &marked->before_text, &marked->after_text,
        &marked->before_json, &marked->after_json, &marked->between}) {
    add(*part);
  }
  for (const std::string& text : marked->avoided) add(text);
  return out;
}

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
  if (or_calls) out += " or";
  if (mark_byte != 0) out += " marks";
  for (const std::string* part : {&think_begin, &think_end, &after_think, &opening}) {
    out += " " + *part;
  }
  out += form.key();
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
  std::bitset<256> bytes = vocabulary.bytes(source.tokens);
  // It is a part of tokens alone.
  if (source.mark_byte != 0) bytes.set(static_cast<std::uint8_t>(source.mark_byte));
  std::vector<std::string> ignored;
  std::int64_t work = 0;
  auto automaton = build(source, limits, ~std::bitset<256>(), ignored, work);
  if (!automaton) return automaton.error();
  std::optional<TokenGraph> graph;
  if (!automaton->is_written_in(bytes)) {
    graph = TokenGraph::make(*automaton, vocabulary, bits_of_all(source, vocabulary));
    if (graph && graph->empty()) return cannot_write(source);
    // Of too many texts to look at, those that tokens of one byte can write.
    if (!graph) {
      ignored.clear();
      Limits left = limits;
      left.work -= work;
      automaton = build(source, left, bytes, ignored, work);
    }
    if (!automaton) return cannot_write(source);
  }
  std::shared_ptr<Grammar> out(new Grammar(std::move(*automaton), vocabulary, source.tokens));
  out->work_ = work;
  out->graph_ = std::move(graph);
  out->ignored_ = without_fields(ignored, source);
  if (out->graph_) return out;
  const std::shared_ptr<Masks> masks = out->masks();
  if (const Masks::Next first = masks->at_start(); !first.any) {
    if (!first.may_end) return describe(Fault::empty, source, limits);
    return Error{ErrorCode::out_of_range, source.path, "a constraint that allows a text of a token",
                 "one that allows the empty text alone", ""};
  }
  if (masks->cost_too_much(limits.stop)) {
    return Error{ErrorCode::exhausted, source.path,
                 fmt::format("a constraint that can be read in at most {} ways within a token",
                             kMostMaskWork),
                 "one with more", "smaller bounds of repeats inside repeats"};
  }
  return out;
}

Error too_much_work(const std::string& path) {
  return {ErrorCode::exhausted, path,
          fmt::format("constraints that need at most {} steps to compile", Limits().work), "more",
          "simpler or fewer ones"};
}

std::vector<std::string> Grammar::ignored(const Source& source) const {
  std::vector<std::string> out;
  for (const SchemaPath& path : ignored_) {
    const std::string* const field = field_of(source, path.tool);
    out.push_back((field != nullptr ? *field : "") + path.rest);
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
