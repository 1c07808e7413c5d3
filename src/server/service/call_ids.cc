#include "server/service/call_ids.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/service/reply.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostBytes = 256;
constexpr std::size_t kMistralBytes = 9;

// Mistral's templates refuse ids other than nine letters and digits.
bool is_mistral_id(std::string_view id) {
  return id.size() == kMistralBytes && std::ranges::all_of(id, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
         });
}

}  // namespace

std::set<std::string> earlier_call_ids(ToolFormat format, const Json& messages) {
  std::set<std::string> out;
  if (format != ToolFormat::mistral && format != ToolFormat::kimi) return out;
  for (const Json& message : messages) {
    const auto calls = message.find("tool_calls");
    if (calls == message.end() || !calls->is_array()) continue;
    for (const Json& call : *calls) {
      if (!call.is_object()) continue;
      const auto id = call.find("id");
      if (id != call.end() && id->is_string()) out.insert(id->get<std::string>());
    }
  }
  return out;
}

std::string CallIds::add(const ToolCall& call, std::set<std::string>& given) {
  std::string id = call.id;
  const auto is_taken = [&] { return given.contains(id) || earlier_.contains(id); };
  if (format_ == ToolFormat::mistral) {
    while (!is_mistral_id(id) || is_taken()) id = random_hex(5).substr(0, kMistralBytes);
  } else if (format_ == ToolFormat::kimi && !id.empty() && id.size() <= kMostBytes) {
    // Its template shows functions.NAME:I to the model, with I counted over the conversation.
    for (std::size_t i = 0; is_taken(); ++i) {
      id = fmt::format("functions.{}:{}", call.name, i);
    }
  } else {
    id = "call_" + random_hex(12);
  }
  given.insert(id);
  return id;
}

}  // namespace lathe
