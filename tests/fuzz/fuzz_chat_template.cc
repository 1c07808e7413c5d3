// Chat templates: any text is a template or an error; a template renders a conversation to text or
// an error, the same both times.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/check.h"
#include "io/template/chat_template.h"

namespace {

const nlohmann::ordered_json& conversation() {
  static const auto kConversation = nlohmann::ordered_json::parse(R"({
    "messages": [
      {"role": "system", "content": " Be  terse.\n"},
      {"role": "user", "content": [{"type": "text", "text": "Grüße, 世界"}]},
      {"role": "assistant", "content": null, "reasoning_content": "<think>hm</think>",
       "tool_calls": [{"id": "abc123XYZ", "type": "function",
                       "function": {"name": "f", "arguments": {"x": [1, 2.5, null, true]}}}]},
      {"role": "tool", "content": "{\"t\": 21}"},
      {"role": "user", "content": "thanks"}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"required": ["x"]}}}],
    "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": true, "n": 7, "x": -2.5,
    "s": "Hello, Wörld", "l": [3, 1, 2], "d": {"b": 1, "a": [1, {"k": "v"}], "items": 2}, "none_": null
  })");
  return kConversation;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto t = lathe::ChatTemplate::parse({reinterpret_cast<const char*>(data), size});
  if (!t) {
    LATHE_CHECK(!t.error().message().empty(), "an error without words");
    return 0;
  }
  lathe::RenderOptions options;
  options.now = std::tm{};
  options.limits = {200'000, std::size_t{1} << 20};
  const auto text = t->render(conversation(), options);
  const auto again = t->render(conversation(), options);
  LATHE_CHECK(text.ok() == again.ok(), "a template that fails at times");
  if (text) {
    LATHE_CHECK(text->size() <= options.limits.text_bytes && *text == *again, "unlike texts");
  } else {
    LATHE_CHECK(text.error().message() == again.error().message(), "unlike errors");
  }
  return 0;
}
