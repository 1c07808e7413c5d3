// Text of answers with marks of reasoning and tool calls: the parts do not depend on how it was cut
// into pieces. The first byte is the format and flags, the second the pieces' length.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/check.h"
#include "server/markup/answer_parts.h"

namespace {

std::string parts(const lathe::MarkupRules& rules, std::string_view text, std::size_t piece,
                  bool whole) {
  lathe::AnswerParts machine(rules);
  lathe::TextParts out;
  for (std::size_t at = 0; at < text.size(); at += piece) machine.push(text.substr(at, piece), out);
  machine.finish(out, whole);
  std::string all = out.reasoning + "|" + out.content;
  for (const lathe::ToolCall& c : out.calls) all += "|" + c.name + c.arguments + c.id;
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  lathe::MarkupRules rules;
  const std::size_t format = (data[0] & 3u) + 4u * (data[0] >> 5 & 3u);
  const bool whole = (data[0] & 128) == 0;
  rules.tools = format < lathe::enum_count<lathe::ToolFormat>
                    ? static_cast<lathe::ToolFormat>(format)
                    : lathe::ToolFormat::harmony;
  rules.reasoning = (data[0] & 4) != 0;
  rules.starts_inside = (data[0] & 8) != 0;
  rules.one_call = (data[0] & 16) != 0;
  rules.text_or_calls = (data[1] & 128) != 0;
  static const auto kTools = nlohmann::ordered_json::parse(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}}])");
  rules.schemas = std::make_shared<const nlohmann::ordered_json>(kTools);
  if (rules.tools == lathe::ToolFormat::gemma) {
    rules.reasoning_format = lathe::ReasoningFormat::gemma;
  }
  if (rules.tools == lathe::ToolFormat::harmony) {
    rules.harmony =
        lathe::HarmonyRules{.marks_by_id = format >= lathe::enum_count<lathe::ToolFormat>,
                            .reasoning_stays = rules.starts_inside,
                            .calls = rules.reasoning,
                            .one_call = rules.one_call,
                            .schemas = rules.schemas};
  }
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  LATHE_CHECK(
      parts(rules, text, text.size() + 1, whole) == parts(rules, text, 1 + data[1] % 7u, whole),
      "a cut that shows");
  return 0;
}
