#include "server/service/answer_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "server/grammar/think_budget.h"
#include "server/markup/answer_markup.h"
#include "server/markup/harmony_parts.h"
#include "server/service/call_form.h"

namespace lathe {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

// Whether the answer begins in reasoning, by the last mark in the prompt. An end of reasoning that
// text follows is of an earlier answer.
grammar::Thinking thinking_of(const ServedModel& model, const std::string& prompt) {
  if (model.reasoning == ReasoningFormat::none) return grammar::Thinking::none;
  if (ends_in_reasoning(model.reasoning, prompt)) return grammar::Thinking::inside;
  const ReasoningMarks marks = reasoning_marks(model.reasoning);
  const std::size_t shut = prompt.rfind(marks.end);
  if (shut == std::string::npos) return grammar::Thinking::possible;
  const bool last = prompt.find_first_not_of(kBlanks, shut + marks.end.size()) == std::string::npos;
  return last ? grammar::Thinking::none : grammar::Thinking::possible;
}

bool is_strict(const nlohmann::ordered_json& function) {
  return function.value("strict", nlohmann::ordered_json()) == true;
}

// The grammar of an answer that must be a call, or that may have calls whose arguments follow the
// schemas of strict tools. `must`: in the model's form, but an answer that must be a call.
grammar::Source calls_of(const ApiRequest& api, const grammar::CallForm* form, bool must = false) {
  grammar::Source out;
  out.kind = form == nullptr ? grammar::Source::Kind::calls : grammar::Source::Kind::text_and_calls;
  if (form != nullptr) out.form = *form;
  out.path = "tools";
  out.must_call = must;
  out.one_call = !api.parallel_tool_calls || api.tool_choice.is_object();
  for (std::size_t i = 0; i < api.tools.size(); ++i) {
    const auto& function = api.tools[i]["function"];
    if (!api.may_call(function["name"].get_ref<const std::string&>())) continue;
    auto schema = function.value("parameters", nlohmann::ordered_json());
    if (schema.is_null()) schema = {{"type", "object"}, {"additionalProperties", false}};
    if (form != nullptr && !must && !is_strict(function)) schema = nlohmann::ordered_json::object();
    out.tools.push_back({function["name"].get<std::string>(), std::move(schema),
                         fmt::format("tools[{}].function.parameters", i)});
  }
  return out;
}

// A mark's token. `shown`: also one that is no special token, which the answer's text has too.
std::optional<std::int32_t> mark_token(const ServedModel& model, std::string_view text,
                                       bool shown) {
  for (const auto& [token, mark] : model.marks) {
    if (mark == text) return token;
  }
  if (!shown || text.empty()) return std::nullopt;
  const auto tokens = model.tokenizer.encode(text);
  if (!tokens || tokens->size() != 1 || tokens->front() >= model.vocab) return std::nullopt;
  return tokens->front();
}

// The marks of reasoning as tokens, if its end is one.
std::optional<grammar::ThinkTokens> think_tokens(const ServedModel& model,
                                                 grammar::Thinking thinking, bool shown) {
  const ReasoningMarks marks = reasoning_marks(model.reasoning);
  const auto end = mark_token(model, marks.end, shown);
  if (!end) return std::nullopt;
  grammar::ThinkTokens out;
  out.end = *end;
  out.inside = thinking == grammar::Thinking::inside;
  const auto begin = mark_token(model, marks.token.empty() ? marks.begin : marks.token, shown);
  if (begin && !marks.token.empty()) {  // the rest of the mark follows its token
    const auto rest = marks.begin.substr(marks.token.size());
    auto tokens = model.tokenizer.encode(rest, /*add_special_tokens=*/false);
    if (tokens) out.header = std::move(*tokens);
  }
  if (!out.inside) out.begin = begin;
  return out;
}

// Sets where the reasoning ends, which constrained text follows, and that a budget limits. Its
// marks are tokens or text; a budget needs tokens. A grammar takes tokens that are no special ones
// for text.
void set_thinking(const ServedModel& model, grammar::Thinking thinking, PreparedRequest& out) {
  ApiRequest& api = out.api;
  if (thinking == grammar::Thinking::none) {
    if (api.thinking_budget) api.ignored.push_back("thinking.budget_tokens");
    return;
  }
  if (api.constraint) {
    const ReasoningMarks marks = reasoning_marks(model.reasoning);
    api.constraint->think_begin = marks.begin;
    api.constraint->think_end = marks.end;
    if (auto think = think_tokens(model, thinking, /*shown=*/false)) {
      out.think = std::move(*think);
    } else {
      api.constraint->thinking = thinking;
    }
  }
  if (!api.thinking_budget) return;
  if (auto think = think_tokens(model, thinking, /*shown=*/true)) {
    out.think_budget = api.thinking_budget;
    out.budget_think = std::move(*think);
  } else {
    api.ignored.push_back("thinking.budget_tokens");
  }
}

// The model's own calls, if they are constrained, need a grammar.
std::optional<ApiError> refuse_constrained_calls(const ServedModel& model, const ApiRequest& api) {
  if (model.grammars != nullptr || !api.constrains_calls()) return std::nullopt;
  if (!api.allowed_tools.empty()) {
    return ApiError{400, "unsupported_field",
                    "tool_choice: wanted all tools with --grammar-backend none, got some",
                    "tool_choice"};
  }
  std::size_t i = 0;
  while (!is_strict(api.tools[i]["function"])) ++i;
  const std::string path = fmt::format("tools[{}].function.strict", i);
  return ApiError{
      400, "unsupported_field",
      fmt::format("{}: wanted false, as --grammar-backend none follows no schema, got true", path),
      path};
}

// Tools are given, and the answer may have calls.
bool may_call(const ApiRequest& api) { return api.tools.is_array() && api.tool_choice != "none"; }

// The answer is text that the request constrains, or calls alone: what the model calls for is in
// the messages after it.
void allow_calls(const ApiRequest& api, const grammar::CallForm& form, grammar::Source& text) {
  grammar::Source calls = calls_of(api, &form);
  text.or_calls = true;
  text.form = std::move(calls.form);
  text.tools = std::move(calls.tools);
  text.one_call = calls.one_call;
}

// Tells marks from text: tokens arrive with a byte before them, and where marks are text, strings
// of arguments have none.
void separate_marks(bool by_id, grammar::Source& source) {
  source.form.escapes_less = !by_id;
  if (!by_id) return;
  source.mark_byte = kMarkByte;
  const auto add = [](std::string& text) {
    for (std::size_t at = 0; (at = text.find("<|", at)) != std::string::npos; at += 3) {
      text.insert(at, 1, kMarkByte);
    }
  };
  grammar::CallForm& form = source.form;
  for (std::string* text : {&source.think_begin, &source.think_end, &source.after_think,
                            &source.opening, &form.begin, &form.after_name}) {
    add(*text);
  }
  std::ranges::for_each(form.avoided, add);
}

// The constraint of an answer in channels: after the reasoning, in the final message or in a call.
void constrain_channels(bool begun, bool calls, ApiRequest& api) {
  const grammar::CallForm form = harmony_call_form();
  const bool constrained = api.constraint != nullptr;
  if (api.forces_call()) {
    api.constraint = std::make_shared<grammar::Source>(calls_of(api, &form, /*must=*/true));
  } else if (!constrained && api.constrains_calls()) {
    api.constraint = std::make_shared<grammar::Source>(calls_of(api, &form));
  } else if (constrained && calls && !begun) {
    allow_calls(api, form, *api.constraint);
    api.constraint->must_call = true;
  }
  if (!api.constraint) return;
  grammar::Source& source = *api.constraint;
  source.one_call = true;  // the mark after a call ends the answer
  if (begun || (!constrained && !api.forces_call())) return;
  const ReasoningMarks marks = reasoning_marks(ReasoningFormat::harmony);
  source.thinking = grammar::Thinking::possible;
  source.think_begin = marks.begin;
  source.think_end = marks.end;
  source.after_think = "<|start|>assistant";
  if (!api.forces_call()) source.opening = "<|channel|>final<|message|>";
}

// What marks mean in an answer in channels.
std::optional<ApiError> set_channels(const ServedModel& model, const std::string& prompt,
                                     PreparedRequest& out) {
  ApiRequest& api = out.api;
  HarmonyRules rules;
  rules.begun = begun_message(prompt);
  rules.marks_by_id = has_channel_marks(model.marks);
  rules.reasoning_stays = !api.separate_reasoning || model.reasoning != ReasoningFormat::harmony;
  rules.calls = may_call(api) && model.tools == ToolFormat::harmony;
  rules.one_call = !api.parallel_tool_calls || api.forces_call();
  if (rules.calls) rules.schemas = std::make_shared<const nlohmann::ordered_json>(api.tools);
  for (const auto& [token, text] : model.marks) {
    out.markup.tokens.emplace_back(token, rules.marks_by_id ? kMarkByte + text : text);
    // They end the answer, also where generation_config.json has only the first.
    if (text == "<|return|>" || text == "<|call|>") {
      if (!api.sampling.ignore_eos) api.sampling.stop_token_ids.push_back(token);
    }
  }
  if (auto wrong = refuse_constrained_calls(model, api)) return wrong;
  if (api.thinking_budget) api.ignored.push_back("thinking.budget_tokens");
  constrain_channels(rules.begun.find("<|message|>") != std::string::npos, rules.calls, api);
  if (api.constraint) separate_marks(rules.marks_by_id, *api.constraint);
  rules.prefixed = api.constraint != nullptr;  // the grammar follows no others
  rules.whole_analysis =
      api.constraint != nullptr && api.constraint->thinking != grammar::Thinking::none;
  out.markup.one_call = rules.one_call;
  out.markup.harmony = std::move(rules);
  return std::nullopt;
}

// The constraint of an answer that may have calls, or must be some.
std::optional<ApiError> constrain_calls(const ServedModel& model, PreparedRequest& out) {
  ApiRequest& api = out.api;
  if (api.forces_call()) api.constraint = std::make_shared<grammar::Source>(calls_of(api, nullptr));
  const bool own = may_call(api) && !api.forces_call() && model.tools != ToolFormat::none;
  if (!own || (!api.constraint && !api.constrains_calls())) return std::nullopt;
  if (auto wrong = refuse_constrained_calls(model, api)) return wrong;
  MarkupRules& rules = out.markup;
  if (api.constraint) {
    allow_calls(api, *model.call_form, *api.constraint);
    rules.text_or_calls = true;
  } else {
    api.constraint = std::make_shared<grammar::Source>(calls_of(api, &*model.call_form));
  }
  // The grammar follows no others.
  rules.bare_first = model.call_form->begins_answer;
  rules.no_bare = !rules.bare_first;
  return std::nullopt;
}

}  // namespace

std::optional<ApiError> set_markup(const ServedModel& model, const std::string& prompt,
                                   PreparedRequest& out) {
  if (model.harmony()) return set_channels(model, prompt, out);
  ApiRequest& api = out.api;
  MarkupRules& rules = out.markup;
  const grammar::Thinking thinking = thinking_of(model, prompt);
  rules.reasoning = model.reasoning != ReasoningFormat::none;
  rules.reasoning_format = model.reasoning;
  rules.reasoning_stays = !api.separate_reasoning;
  rules.starts_inside = rules.reasoning && thinking == grammar::Thinking::inside;
  rules.list_of_calls = api.forces_call();
  if (auto wrong = constrain_calls(model, out)) return wrong;
  rules.constrained = api.constraint != nullptr;
  if (api.constraint || api.thinking_budget) set_thinking(model, thinking, out);
  const ReasoningMarks think = reasoning_marks(model.reasoning);
  for (const auto& [token, text] : model.marks) {
    const bool reasons = text == think.begin || text == think.end || text == think.token;
    if (reasons || may_call(api)) rules.tokens.emplace_back(token, text);
  }
  if (!may_call(api)) return std::nullopt;
  if (model.tools == ToolFormat::none && !api.forces_call()) {
    return ApiError{400, "unsupported_field",
                    "tools: wanted none, as this model's chat template has no known format of tool "
                    "calls, got some; tool_choice \"required\" or a function, or "
                    "--tool-call-parser",
                    "tools"};
  }
  rules.tools = model.tools;
  rules.schemas = std::make_shared<const nlohmann::ordered_json>(api.tools);
  rules.one_call = !api.parallel_tool_calls;
  return std::nullopt;
}

}  // namespace lathe
