// Calls in models' own forms: whatever the grammar of a strict tool allows, the reader finds its
// calls, and no arguments that the schema forbids. The first byte is the form, the second how bytes
// that the grammar forbids are replaced.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "server/grammar/matcher.h"
#include "server/markup/answer_parts.h"
#include "server/service/call_form.h"

namespace {

using Json = nlohmann::ordered_json;

struct Form {
  lathe::ToolFormat format;
  const char* chat_template;
};

constexpr Form kForms[] = {
    {lathe::ToolFormat::kimi, ""},
    {lathe::ToolFormat::llama, ""},
    {lathe::ToolFormat::pythonic, ""},
    {lathe::ToolFormat::pythonic, "<|python_start|>"},
    {lathe::ToolFormat::gemma, ""},
    {lathe::ToolFormat::minimax, "<minimax:tool_call>"},
    {lathe::ToolFormat::tag, ""},
    {lathe::ToolFormat::tag, "<function="},
    {lathe::ToolFormat::tag, "<arg_key>"},
    {lathe::ToolFormat::dsml, ""},
    {lathe::ToolFormat::deepseek, ""},
    {lathe::ToolFormat::mistral, "[ARGS]"},
    {lathe::ToolFormat::mistral, ""},
    {lathe::ToolFormat::minimax, ""},
    {lathe::ToolFormat::gemma, "<start_function_call>"},
    {lathe::ToolFormat::pythonic, "<|tool_call_start|>"},
    {lathe::ToolFormat::deepseek, "```json"},
    {lathe::ToolFormat::harmony, ""},
};

const Json& schema() {
  static const Json out = Json::parse(R"({"type": "object", "additionalProperties": false,
      "required": ["a"], "properties": {"a": {"type": "string"}, "n": {"type": "integer",
      "minimum": 1, "maximum": 9}, "e": {"enum": ["x", null]},
      "l": {"type": "array", "items": {"type": "string"}}}})");
  return out;
}

const lathe::grammar::Vocabulary& call_vocabulary() {
  static const lathe::grammar::Vocabulary out = [] {
    std::vector<std::string> texts;
    for (int b = 0; b < 256; ++b) texts.emplace_back(1, static_cast<char>(b));
    return lathe::grammar::Vocabulary(std::move(texts));
  }();
  return out;
}

std::shared_ptr<lathe::grammar::Grammar> grammar_of(const lathe::grammar::CallForm& form) {
  lathe::grammar::Source source;
  source.kind = lathe::grammar::Source::Kind::text_and_calls;
  source.path = "tools";
  source.form = form;
  source.tools = {{"f", schema(), "tools"}};
  const auto out = lathe::grammar::Grammar::compile(source, call_vocabulary());
  LATHE_CHECK(out, "a form that does not compile");
  return *out;
}

lathe::TextParts read(const lathe::MarkupRules& rules, std::string_view text, std::size_t piece) {
  lathe::AnswerParts machine(rules);
  lathe::TextParts out;
  for (std::size_t at = 0; at < text.size(); at += piece) machine.push(text.substr(at, piece), out);
  machine.finish(out);
  return out;
}

// Whether the content has the mark in one piece: texts before and after a call may make one.
bool has_mark(const lathe::TextParts& out, std::string_view mark) {
  std::vector<std::size_t> ends;  // of pieces
  for (const lathe::PartRun& run : out.order) {
    const std::size_t before = ends.empty() ? 0 : ends.back();
    if (run.kind == lathe::PartKind::content) ends.push_back(before + run.size);
  }
  for (std::size_t at = 0; (at = out.content.find(mark, at)) != std::string::npos; ++at) {
    const bool pieces = std::ranges::any_of(
        ends, [&](std::size_t end) { return end > at && end < at + mark.size(); });
    if (!pieces) return true;
  }
  return false;
}

void check(const std::string& arguments) {
  const Json value = Json::parse(arguments);
  LATHE_CHECK(value.is_object() && value.contains("a"), "arguments without the required one");
  for (const auto& [name, v] : value.items()) {
    const bool right =
        name == "a"   ? v.is_string()
        : name == "n" ? v.is_number_integer() && v >= 1 && v <= 9
        : name == "e" ? v == "x" || v.is_null()
                      : name == "l" && v.is_array() &&
                            std::ranges::all_of(v, [](const Json& s) { return s.is_string(); });
    LATHE_CHECK(right, "an argument that the schema forbids");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 3) return 0;
  const Form& f = kForms[data[0] % std::size(kForms)];
  static std::array<std::shared_ptr<lathe::grammar::Grammar>, std::size(kForms)> grammars;
  const auto form = lathe::find_call_form(f.format, f.chat_template);
  LATHE_CHECK(form, "a form that is missing");
  auto& grammar = grammars[data[0] % std::size(kForms)];
  if (grammar == nullptr) grammar = grammar_of(*form);
  lathe::grammar::Matcher matcher(grammar, {});
  std::string text;
  for (std::size_t i = 2; i < size; ++i) {
    std::vector<std::uint32_t> bits(8);
    LATHE_CHECK(matcher.allowed(bits), "a mask that fails");
    std::uint8_t byte = data[i];
    for (int tries = 0; tries < 256 && (bits[byte / 32] >> (byte % 32) & 1u) == 0; ++tries) {
      byte = static_cast<std::uint8_t>(byte + 1 + data[1] % 7 * 2);
    }
    if ((bits[byte / 32] >> (byte % 32) & 1u) == 0) break;
    LATHE_CHECK(matcher.accept(byte), "an allowed byte that is not accepted");
    text += static_cast<char>(byte);
  }
  std::vector<std::uint32_t> bits(8);
  const auto ends = matcher.allowed(bits);
  if (!ends || !*ends) return 0;
  lathe::MarkupRules rules;
  rules.tools = f.format;
  rules.bare_first = form->begins_answer;
  rules.no_bare = !form->begins_answer;
  rules.schemas = std::make_shared<const Json>(Json::array(
      {{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", schema()}}}}}));
  if (f.format == lathe::ToolFormat::harmony) {
    rules.harmony = lathe::HarmonyRules{.calls = true, .prefixed = true, .schemas = rules.schemas};
  }
  const lathe::TextParts out = read(rules, text, text.size() + 1);
  const lathe::TextParts cut = read(rules, text, 1 + data[1] / 7);
  LATHE_CHECK(out.content == cut.content && out.calls.size() == cut.calls.size(),
              "a cut that shows");
  // In channels a mark counts only where a message begins.
  const bool marked = f.format != lathe::ToolFormat::harmony && !form->begin.empty();
  LATHE_CHECK(!marked || !has_mark(out, form->begin), "a call that is lost");
  for (const lathe::ToolCall& call : out.calls) {
    LATHE_CHECK(call.name == "f", "a call of another function");
    check(call.arguments);
  }
  return 0;
}
