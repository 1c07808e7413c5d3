#include "server/markup/answer_markup.h"

#include <algorithm>

#include "server/markup/harmony_parts.h"

namespace lathe {
namespace {

std::vector<std::string_view> marks_of(const AnswerMarkup& markup) {
  std::vector<std::string_view> out;
  const ReasoningMarks think = reasoning_marks(markup.reasoning);
  if (markup.reasoning != ReasoningFormat::harmony) out = {think.begin, think.end, think.token};
  const ToolMarks& tool = tool_marks(markup.harmony() ? ToolFormat::harmony : markup.tools);
  for (const CallMarks& call : tool.calls) {
    out.push_back(call.begin);
    out.push_back(call.end);
  }
  out.insert(out.end(), tool.around.begin(), tool.around.end());
  out.insert(out.end(), tool.inner.begin(), tool.inner.end());
  return out;
}

}  // namespace

AnswerMarkup find_answer_markup(std::string_view chat_template, const Tokenizer& tokenizer,
                                std::optional<ReasoningFormat> reasoning,
                                std::optional<ToolFormat> tools) {
  AnswerMarkup out;
  out.reasoning = reasoning ? *reasoning : find_reasoning_format(chat_template);
  out.tools = tools ? *tools : find_tool_format(chat_template);
  // The channels are one format: reasoning cannot be read without calls, nor calls without it.
  if (out.reasoning == ReasoningFormat::harmony && !tools) out.tools = ToolFormat::harmony;
  if (out.tools == ToolFormat::harmony && !reasoning) out.reasoning = ReasoningFormat::harmony;
  for (const std::string_view text : marks_of(out)) {
    const auto id = text.empty() ? std::nullopt : tokenizer.id_of(text);
    if (id && tokenizer.is_special(*id)) out.marks.emplace_back(*id, text);
  }
  return out;
}

bool ends_in_reasoning(ReasoningFormat format, std::string_view prompt) {
  if (format == ReasoningFormat::none) return false;
  const ReasoningMarks marks = reasoning_marks(format);
  const std::size_t open = prompt.rfind(marks.begin);
  const std::size_t shut = prompt.rfind(marks.end);
  return open != std::string_view::npos && (shut == std::string_view::npos || shut < open);
}

bool has_channel_marks(const MarkTokens& marks) {
  // The other two only end answers, and their tokens do that by themselves.
  constexpr std::string_view kNeeded[] = {"<|start|>", "<|channel|>", "<|constrain|>",
                                          "<|message|>", "<|end|>"};
  return std::ranges::all_of(kNeeded, [&](std::string_view text) {
    return std::ranges::any_of(marks, [&](const auto& mark) { return mark.second == text; });
  });
}

std::string begun_message(std::string_view prompt) {
  constexpr std::string_view kStart = "<|start|>";
  const std::size_t start = prompt.rfind(kStart);
  if (start == std::string_view::npos) return HarmonyRules().begun;
  return std::string(prompt.substr(start + kStart.size()));
}

}  // namespace lathe
