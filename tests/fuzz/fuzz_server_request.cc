// Bodies of the server's generating routes: any bytes are a request or an error with words, twice
// alike; a chat's messages are rendered or refused.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "server/service/protocol.h"
#include "server/service/render_chat.h"

namespace {

const lathe::ChatTemplateFile& chat() {
  static const lathe::ChatTemplateFile kChat{
      *lathe::ChatTemplate::parse(
          "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}"
          "{{ c.function.arguments | tojson }}{% endfor %}\n{% endfor %}{{ tools | tojson if tools "
          "else '' }}"),
      "<s>", "</s>"};
  return kChat;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto route = static_cast<lathe::ApiRoute>(data[0] % 5);
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto request = lathe::read_request(route, body, {});
  const auto again = lathe::read_request(route, body, {});
  LATHE_CHECK(request.ok() == again.ok(), "a body that is refused at times");
  if (!request) {
    LATHE_CHECK(request.error().status == 400 && !request.error().message.empty(),
                "an error without words");
    LATHE_CHECK(request.error().message == again.error().message, "unlike errors");
    return 0;
  }
  if (!request->is_chat()) return 0;
  const auto prompt = lathe::render_chat(*request, nlohmann::ordered_json::object(), chat());
  LATHE_CHECK(prompt.ok() || prompt.error().status == 400,
              "messages that are the server's mistake");
  // Translated messages are as chat's checks want them: only the template may refuse them.
  LATHE_CHECK(
      route == lathe::ApiRoute::chat || prompt.ok() || prompt.error().code != "invalid_value",
      "messages that were translated wrongly");
  return 0;
}
