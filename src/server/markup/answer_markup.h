// AnswerMarkup: how a model marks up its answers, and where an answer begins.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/tokenizer/tokenizer.h"
#include "server/markup/reasoning_format.h"
#include "server/markup/tool_format.h"

namespace lathe {

struct AnswerMarkup {
  ReasoningFormat reasoning = ReasoningFormat::none;
  ToolFormat tools = ToolFormat::none;
  // Marks that are special tokens, which detokenising would skip.
  std::vector<std::pair<std::int32_t, std::string>> marks = {};

  /// Answers are messages in channels.
  bool harmony() const {
    return tools == ToolFormat::harmony || reasoning == ReasoningFormat::harmony;
  }
};

/// The markup that a chat template asks for, or the formats that are given.
AnswerMarkup find_answer_markup(std::string_view chat_template, const Tokenizer& tokenizer,
                                std::optional<ReasoningFormat> reasoning = std::nullopt,
                                std::optional<ToolFormat> tools = std::nullopt);

/// Whether an answer to the prompt begins inside reasoning. Not of channels.
bool ends_in_reasoning(ReasoningFormat format, std::string_view prompt);

/// HarmonyRules::begun of the answer to a prompt.
std::string begun_message(std::string_view prompt);

}  // namespace lathe
