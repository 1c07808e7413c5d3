// A scripted model that says a text, for tests of the protocols' routes.
#pragma once

#include <cstdint>
#include <string>

#include "server/scripted/scripted_server.h"

namespace lathe::protocol_test {

// A model that repeats `text` after a one-byte prompt, `step` bytes per event.
inline ScriptedOptions speaks(const std::string& text, std::int32_t step) {
  ScriptedOptions options;
  options.template_prefix = "{# </think> <tool_call> #}";
  options.server.stream_interval = step;
  options.next = [text](std::int32_t, std::int32_t position) {
    return std::int32_t{
        static_cast<unsigned char>(text[static_cast<std::size_t>(position) % text.size()])};
  };
  return options;
}

inline constexpr const char* kSaid =
    "<think>why</think>ok <tool_call>{\"name\": \"f\", \"arguments\": {\"x\": [1, \"é\"]}}"
    "</tool_call> and <tool_call><function=f><parameter=x>1</parameter></function></tool_call>";

}  // namespace lathe::protocol_test
