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

/// Special tokens and their texts.
using MarkTokens = std::vector<std::pair<std::int32_t, std::string>>;

struct AnswerMarkup {
  ReasoningFormat reasoning = ReasoningFormat::none;
  ToolFormat tools = ToolFormat::none;
  // Marks that are special tokens, which detokenising would skip.
  MarkTokens marks = {};

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

/// HarmonyRules::marks_by_id: whether each mark of channels is one of these tokens. Where one is
/// missing, marks are text, those of tokens too.
bool has_channel_marks(const MarkTokens& marks);

/// HarmonyRules::begun of the answer to a prompt.
std::string begun_message(std::string_view prompt);

}  // namespace lathe
