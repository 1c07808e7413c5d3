// Reasoning as the text that a client keeps and sends back without reading it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lathe::responses_api {

/// "lathe:" and the text in base64. It is not encrypted: the client has the text anyway.
std::string encode_reasoning(std::string_view text);
/// nullopt: another server's.
std::optional<std::string> decode_reasoning(std::string_view encoded);

}  // namespace lathe::responses_api
