#include "server/service/call_form.h"

#include <string>

namespace lathe {
namespace {

using grammar::CallForm;
using grammar::MarkedForm;

constexpr std::string_view kJsonFirst = " \t\r\n{[";

// Qwen3-Coder.
CallForm function_form() {
  const std::string end = "</function>", parameter = "<parameter=";
  return {.begin = "<tool_call>",
          .before_name = "\n<function=",
          .after_name = ">\n",
          .marked = MarkedForm{.before_key = parameter,
                               .after_key = ">",
                               .before_text = "\n",
                               .after_text = "\n</parameter>\n",
                               .before_json = "\n",
                               .after_json = "\n</parameter>\n",
                               .avoided = {end, parameter, "<function=", "</tool_call>"}},
          .end = end + "\n</tool_call>",
          .escapes_less = true};
}

// GLM.
CallForm pairs_form() {
  return {.begin = "<tool_call>",
          .after_name = "\n",
          .marked = MarkedForm{.before_key = "<arg_key>",
                               .after_key = "</arg_key>",
                               .before_text = "\n<arg_value>",
                               .after_text = "</arg_value>\n",
                               .before_json = "\n<arg_value>",
                               .after_json = "</arg_value>\n",
                               .avoided = {"</tool_call>", "<arg_key>"}},
          .end = "</tool_call>",
          .escapes_less = true};
}

CallForm deepseek_form(const CallForm& marks, bool fenced) {
  CallForm out = marks;
  out.after_name = "<｜tool▁sep｜>";
  if (fenced) {  // V3 and R1
    out.before_name = "function" + out.after_name;
    out.after_name = "\n```json\n";
    out.end = "\n```" + out.end;
  }
  return out;
}

CallForm dsml_form() {
  const std::string end = "</｜DSML｜parameter>\n", invoke = "</｜DSML｜invoke>";
  return {.begin = "<｜DSML｜invoke name=\"",
          .after_name = "\">\n",
          .marked = MarkedForm{.before_key = "<｜DSML｜parameter name=\"",
                               .after_key = "\"",
                               .before_text = " string=\"true\">",
                               .after_text = end,
                               .before_json = " string=\"false\">",
                               .after_json = end,
                               .avoided = {invoke, "<｜DSML｜parameter"}},
          .end = invoke,
          .escapes_less = true};
}

CallForm llama_form() {
  return {.begin = "<|python_tag|>",
          .wrapped = true,
          .arguments_name = "parameters",
          .listed = true,
          .between = ";",
          .begins_answer = true,
          .not_first = std::string(kJsonFirst)};
}

// `mark`, `end`: around a list; empty: a list begins the answer.
CallForm pythonic_form(std::string_view mark, std::string_view end) {
  CallForm out{.begin = std::string(mark),
               .after_name = "(",
               .marked = MarkedForm{.after_key = "=", .between = ", "},
               .end = ")",
               .listed = true,
               .list_begin = "[",
               .between = ",",
               .list_end = "]" + std::string(end)};
  if (!mark.empty()) return out;
  out.begins_answer = true;
  out.not_first = kJsonFirst;
  return out;
}

CallForm gemma_form(std::string_view begin, std::string_view end, std::string_view quote) {
  return {.begin = std::string(begin),
          .before_name = "call:",
          .after_name = "{",
          .marked = MarkedForm{.after_key = ":",
                               .before_text = std::string(quote),
                               .after_text = std::string(quote),
                               .between = ",",
                               .avoided = {std::string(end)}},
          .end = "}" + std::string(end),
          .escapes_less = true};
}

CallForm kimi_form(const CallForm& marks) {
  CallForm out = marks;
  out.before_name = "functions.";
  out.numbered = true;
  out.before_number = ":";
  out.after_name = "<|tool_call_argument_begin|>";
  return out;
}

// Mistral's older models.
CallForm json_list_form() {
  return {.begin = "[TOOL_CALLS]", .wrapped = true, .in_json_list = true, .with_ids = true};
}

// MiniMax M1, Hunyuan, Jamba.
CallForm json_lines_form() {
  return {.begin = "<tool_calls>",
          .wrapped = true,
          .list_end = "</tool_calls>",
          .in_json_list = true,
          .in_lines = true};
}

// MiniMax M2.
CallForm invoke_form() {
  const std::string end = "</parameter>\n", parameter = "<parameter name=\"";
  return {.begin = "<invoke name=\"",
          .after_name = "\">\n",
          .marked = MarkedForm{.before_key = parameter,
                               .after_key = "\">",
                               .after_text = end,
                               .after_json = end,
                               .avoided = {"</invoke>", parameter}},
          .end = "</invoke>",
          .escapes_less = true};
}

std::optional<CallForm> own_form(ToolFormat format, std::string_view chat_template) {
  const auto has = [&](std::string_view mark) {
    return chat_template.find(mark) != std::string_view::npos;
  };
  CallForm marks;  // the format's first ones
  if (const ToolMarks& all = tool_marks(format); !all.calls.empty()) {
    marks = {.begin = std::string(all.calls[0].begin), .end = std::string(all.calls[0].end)};
  }
  switch (format) {
    case ToolFormat::none:
      return std::nullopt;
    case ToolFormat::tag:
      if (has("<function=")) return function_form();
      if (has("<arg_key>")) return pairs_form();
      marks.wrapped = true;
      return marks;
    case ToolFormat::deepseek:
      return deepseek_form(marks, has("```json"));
    case ToolFormat::dsml:
      return dsml_form();
    case ToolFormat::harmony:
      return harmony_call_form();
    case ToolFormat::llama:
      return llama_form();
    case ToolFormat::pythonic:
      if (has("<|tool_call_start|>"))
        return pythonic_form("<|tool_call_start|>", "<|tool_call_end|>");
      if (has("<|python_start|>")) return pythonic_form("<|python_start|>", "<|python_end|>");
      return pythonic_form("", "");
    case ToolFormat::mistral:
      if (!has("[ARGS]")) return json_list_form();
      marks.after_name = "[ARGS]";
      return marks;
    case ToolFormat::gemma:
      if (has("<start_function_call>")) {
        return gemma_form("<start_function_call>", "<end_function_call>", "<escape>");
      }
      return gemma_form("<|tool_call>", "<tool_call|>", "<|\"|>");
    case ToolFormat::kimi:
      return kimi_form(marks);
    case ToolFormat::minimax:
      return has("<minimax:tool_call>") ? invoke_form() : json_lines_form();
  }
  return std::nullopt;
}

}  // namespace

// Of the forms of a header that openai-harmony reads, the one with the recipient after the channel.
grammar::CallForm harmony_call_form() {
  return {.begin = "<|channel|>commentary to=functions.",
          .after_name = " <|constrain|>json<|message|>",
          // Any header may have a recipient, also of a channel with another name.
          .avoided = {"<|start|>assistant ", "to=functions."},
          .not_first = " "};
}

// The format's other marks would begin a call in another form.
std::optional<grammar::CallForm> find_call_form(ToolFormat format, std::string_view chat_template) {
  auto out = own_form(format, chat_template);
  if (!out) return out;
  for (const CallMarks& marks : tool_marks(format).calls) {
    if (!out->begin.starts_with(marks.begin)) out->avoided.emplace_back(marks.begin);
  }
  const auto& around = tool_marks(format).around;
  out->around.assign(around.begin(), around.end());
  return out;
}

}  // namespace lathe
