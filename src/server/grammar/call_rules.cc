#include "server/grammar/call_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/grammar/marked_arguments.h"
#include "server/grammar/schema/schema.h"
#include "server/grammar/text_search.h"

namespace lathe::grammar {
namespace {

// Arguments are an object, whatever the schema says.
Result<State> add_arguments(const ToolRules& rules, const Tool& tool, State from) {
  Builder& b = rules.b;
  Rule arguments = rules.json.object();
  if (!tool.schema.empty()) {
    const auto rule =
        add_schema(b, rules.json, tool.schema, tool.path, {true, rules.lenient, rules.ignored});
    if (!rule) return rule.error();
    arguments = *rule;
  }
  const State to = b.state(from);
  b.call(from, arguments, to);
  return to;
}

// Nine letters and digits in quotes.
State add_id(Builder& b, State from) {
  const State end = b.repeat(b.text(from, "\""), 9, 9, [&](State s, State to) {
    b.bytes(s, '0', '9', to);
    b.bytes(s, 'A', 'Z', to);
    b.bytes(s, 'a', 'z', to);
  });
  return b.text(end, "\"");
}

// {"name", `arguments`, and, if with_id, perhaps "id"}
Result<State> add_call(const ToolRules& rules, const Tool& tool, const std::string& arguments,
                       State from, bool with_id = false) {
  Builder& b = rules.b;
  JsonRules& json = rules.json;
  const auto member = [&](State s, const std::string& name) {
    return json.space(b.text(json.space(b.text(s, "\"" + name + "\"")), ":"));
  };
  const State s = member(json.space(b.text(from, "{")), "name");
  const auto end =
      add_arguments(rules, tool, member(json.comma(json.literal(s, tool.name)), arguments));
  if (!end) return end.error();
  const State close = b.state(*end);
  b.skip(json.space(*end), close);
  if (with_id) b.skip(json.space(add_id(b, member(json.comma(*end), "id"))), close);
  return b.text(close, "}");
}

State add_number(Builder& b, State from) {
  return b.repeat(from, 1, 4, [&](State s, State to) { b.bytes(s, '0', '9', to); });
}

// A call from its begin mark to its end mark.
Result<State> add_model_call(const ToolRules& rules, const Tool& tool, const CallForm& form,
                             State from) {
  Builder& b = rules.b;
  if (form.wrapped) {
    const auto end = add_call(rules, tool, form.arguments_name, rules.json.space(from));
    if (!end) return end.error();
    return form.end.empty() ? *end : b.text(rules.json.space(*end), form.end);
  }
  State s = add_mark(b, b.text(add_mark(b, from, form.before_name), tool.name), form.before_number);
  if (form.numbered) s = add_number(b, s);
  s = add_mark(b, s, form.after_name);
  auto end =
      form.marked ? add_marked_arguments(rules, tool, form, s) : add_arguments(rules, tool, s);
  if (!end) return end.error();
  return add_mark(b, *end, form.end);
}

// Calls after the begin mark of a form with a JSON list or lines.
Result<State> add_call_list(const ToolRules& rules, const Source& source, State from) {
  Builder& b = rules.b;
  JsonRules& json = rules.json;
  const CallForm& form = source.form;
  const Rule one = b.rule();
  for (const Tool& tool : source.tools) {
    const auto end = add_call(rules, tool, form.arguments_name, b.start(one), form.with_ids);
    if (!end) return end.error();
    b.skip(*end, b.end(one));
  }
  const auto add_several = [&](State first, std::string_view between) {
    const State call = b.state(from), after = b.state(from);
    b.skip(first, call);
    b.call(call, one, after);
    const State end = json.space(after);
    if (!source.one_call) {
      b.skip(between.empty() ? end : json.space(b.text(end, between)), call);
    }
    return end;
  };
  const State open = json.space(from), close = b.state(from);
  b.skip(b.text(add_several(json.space(b.text(open, "[")), ","), "]"), close);
  if (form.in_lines) b.skip(add_several(open, ""), close);
  return form.list_end.empty() ? close : b.text(json.space(close), form.list_end);
}

// The mark before a section of calls and white space after it, or nothing: white space alone would
// only lead to calls, and models begin any text with it.
State add_section(const ToolRules& rules, const CallForm& form, State from) {
  Builder& b = rules.b;
  const State to = b.state(from);
  b.skip(from, to);
  for (std::size_t i = 0; i < form.around.size(); i += 2) {
    b.skip(rules.json.space(b.text(from, form.around[i])), to);
  }
  return to;
}

// What follows calls that are complete at `after`: other text or calls at `text`, or the end.
void add_end_of_calls(const ToolRules& rules, const Source& source, State after, State text,
                      State to) {
  Builder& b = rules.b;
  const CallForm& form = source.form;
  const bool last = source.one_call || form.begins_answer;
  if (!source.must_call && !source.or_calls) {
    b.skip(after, last ? to : text);
    return;
  }
  if (!last) b.skip(rules.json.space(after), text);
  b.skip(after, to);
  for (std::size_t i = 1; i < form.around.size(); i += 2) {
    b.skip(b.text(rules.json.space(after), form.around[i]), to);
  }
}

}  // namespace

Result<State> add_text_and_calls(const ToolRules& rules, const Source& source, State from) {
  Builder& b = rules.b;
  const CallForm& form = source.form;
  b.escapes_less = form.escapes_less;
  const bool alone = source.must_call || source.or_calls;
  const State text = b.state(from), to = b.state(from), open = b.state(from);
  if (form.begins_answer) b.skip(from, open);
  if (alone) {
    b.skip(source.must_call ? from : add_section(rules, form, from), text);
    if (!form.begin.empty()) b.skip(b.text(text, form.begin), open);
  } else {
    b.skip(from, text);
    b.skip(add_until(b, text, form.begin,
                     {.stop = to, .avoided = form.avoided, .not_first = form.not_first}),
           open);
  }
  const State call = b.state(from);
  b.skip(b.text(open, form.list_begin), call);
  State after = b.state(from);
  if (form.in_json_list) {
    const auto end = add_call_list(rules, source, call);
    if (!end) return end.error();
    add_end_of_calls(rules, source, *end, text, to);
    return to;
  }
  for (const Tool& tool : source.tools) {
    const auto end = add_model_call(rules, tool, form, call);
    if (!end) return end.error();
    b.skip(*end, after);
  }
  if (form.listed) {
    if (!source.one_call) b.skip(rules.json.space(b.text(after, form.between)), call);
    after = b.text(after, form.list_end);
  }
  add_end_of_calls(rules, source, after, text, to);
  return to;
}

Result<State> add_calls(const ToolRules& rules, const Source& source, State from) {
  Builder& b = rules.b;
  JsonRules& json = rules.json;
  const State open = json.space(b.text(from, "["));
  const State call = b.state(from), after = b.state(from);
  b.skip(open, call);
  for (const Tool& tool : source.tools) {
    const auto end = add_call(rules, tool, "parameters", call);
    if (!end) return end.error();
    b.skip(*end, after);
  }
  if (!source.one_call) b.skip(json.comma(after), call);
  return b.text(json.space(after), "]");
}

}  // namespace lathe::grammar
