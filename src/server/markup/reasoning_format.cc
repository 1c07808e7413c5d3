#include "server/markup/reasoning_format.h"

#include <algorithm>
#include <array>

namespace lathe {
namespace {

struct ReasoningRow {
  ReasoningFormat format;
  ReasoningMarks marks;
  std::vector<std::string_view> names;
};

// In order of ReasoningFormat.
const std::array<ReasoningRow, enum_count<ReasoningFormat>>& reasoning_rows() {
  static const std::array<ReasoningRow, enum_count<ReasoningFormat>> out = {{
      {ReasoningFormat::none, {}, {}},
      {ReasoningFormat::think,
       {"<think>", "</think>", ""},
       {"deepseek_r1", "deepseek-r1",    "deepseek_v3", "deepseek-v3", "deepseek_v4", "deepseek-v4",
        "qwen3",       "qwen3-thinking", "glm45",       "glm47",       "kimi_k2",     "minimax",
        "minimax_m2",  "step3",          "step3p5",     "interns1",    "ernie45",     "holo2",
        "nano_v3",     "nemotron_v3",    "olmo3",       "mimo"}},
      {ReasoningFormat::mistral, {"[THINK]", "[/THINK]", ""}, {}},
      {ReasoningFormat::gemma, {"<|channel>thought\n", "<channel|>", "<|channel>"}, {"gemma4"}},
      {ReasoningFormat::seed, {"<seed:think>", "</seed:think>", ""}, {"seed_oss"}},
      {ReasoningFormat::kimi, {"◁think▷", "◁/think▷", ""}, {}},
      {ReasoningFormat::harmony,
       {"<|channel|>analysis<|message|>", "<|end|>", ""},
       {"openai_gptoss", "gpt-oss", "gpt_oss"}},
  }};
  return out;
}

const ReasoningRow& row_of(ReasoningFormat format) {
  return reasoning_rows()[static_cast<std::size_t>(format)];
}

}  // namespace

ReasoningMarks reasoning_marks(ReasoningFormat format) { return row_of(format).marks; }

ReasoningFormat find_reasoning_format(std::string_view chat_template) {
  const auto has = [&](std::string_view mark) {
    return chat_template.find(mark) != std::string_view::npos;
  };
  if (has("<|channel|>")) return ReasoningFormat::harmony;
  for (const ReasoningRow& row : reasoning_rows()) {
    if (row.format == ReasoningFormat::none || row.format == ReasoningFormat::harmony) continue;
    if (has(row.marks.end)) return row.format;
  }
  return ReasoningFormat::none;
}

const std::vector<std::string_view>& other_names(ReasoningFormat format) {
  return row_of(format).names;
}

std::optional<ReasoningFormat> find_named_reasoning_format(std::string_view name) {
  if (const auto own = parse_enum<ReasoningFormat>(name)) return own;
  for (const ReasoningRow& row : reasoning_rows()) {
    if (std::ranges::find(row.names, name) != row.names.end()) return row.format;
  }
  return std::nullopt;
}

}  // namespace lathe
