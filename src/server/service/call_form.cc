#include "server/service/call_form.h"

#include <string>

namespace lathe {

// Of the forms of a header that openai-harmony reads, the one with the recipient after the channel.
grammar::JsonCallForm harmony_call_form() {
  return {.begin = "<|channel|>commentary to=functions.",
          .after_name = " <|constrain|>json<|message|>",
          .avoided = {"<|start|>assistant ", "<|channel|>analysis to=", "<|channel|>final to="},
          .no_space = true};
}

std::optional<grammar::JsonCallForm> find_json_call_form(ToolFormat format,
                                                         std::string_view chat_template) {
  const auto has = [&](std::string_view mark) {
    return chat_template.find(mark) != std::string_view::npos;
  };
  if (format == ToolFormat::harmony) return harmony_call_form();
  const ToolMarks& marks = tool_marks(format);
  if (marks.calls.empty()) return std::nullopt;
  const CallMarks& first = marks.calls.front();
  grammar::JsonCallForm out{.begin = std::string(first.begin), .end = std::string(first.end)};
  if (format == ToolFormat::tag && !has("<function=") && !has("<arg_key>")) {
    out.wrapped = true;
    return out;
  }
  if (format == ToolFormat::mistral && has("[ARGS]")) {
    out.after_name = "[ARGS]";
    return out;
  }
  if (format != ToolFormat::deepseek) return std::nullopt;
  out.after_name = "<｜tool▁sep｜>";
  if (has("```json")) {  // V3 and R1
    out.before_name = "function" + out.after_name;
    out.after_name = "\n```json\n";
    out.end = "\n```" + out.end;
  }
  return out;
}

}  // namespace lathe
