// Text of answers with marks of reasoning and tool calls: the parts do not depend on how it was cut
// into pieces.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/check.h"
#include "server/markup/answer_parts.h"

namespace {

std::string parts(const lathe::MarkupRules& rules, std::string_view text, std::size_t piece) {
  lathe::AnswerParts machine(rules);
  lathe::TextParts out;
  for (std::size_t at = 0; at < text.size(); at += piece) machine.push(text.substr(at, piece), out);
  machine.finish(out);
  std::string all = out.reasoning + "|" + out.content;
  for (const lathe::ToolCall& c : out.calls) all += "|" + c.name + c.arguments;
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  lathe::MarkupRules rules;
  rules.tools = static_cast<lathe::ToolFormat>(data[0] % 4);
  rules.reasoning = (data[0] & 4) != 0;
  rules.starts_inside = (data[0] & 8) != 0;
  rules.one_call = (data[0] & 16) != 0;
  static const auto kTools = nlohmann::ordered_json::parse(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}}])");
  rules.schemas = std::make_shared<const nlohmann::ordered_json>(kTools);
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  LATHE_CHECK(parts(rules, text, text.size() + 1) == parts(rules, text, 1 + data[1] % 7u),
              "a cut that shows");
  return 0;
}
