#include "server/service/call_form.h"

#include <string>

namespace lathe {

std::optional<grammar::JsonCallForm> find_json_call_form(ToolFormat format,
                                                         std::string_view chat_template) {
  const auto has = [&](std::string_view mark) {
    return chat_template.find(mark) != std::string_view::npos;
  };
  const ToolMarks marks = tool_marks(format);
  grammar::JsonCallForm out{.begin = std::string(marks.begin), .end = std::string(marks.end)};
  if (format == ToolFormat::tag && !has("<function=") && !has("<arg_key>")) {
    out.wrapped = true;
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
