#include "server/responses/reasoning_text.h"

#include <algorithm>
#include <cstdint>

#include "io/text/base64.h"

namespace lathe::responses_api {
namespace {

constexpr std::string_view kPrefix = "lathe:";
constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::string encode_reasoning(std::string_view text) {
  std::string out(kPrefix);
  for (std::size_t i = 0; i < text.size(); i += 3) {
    const std::size_t bytes = std::min<std::size_t>(3, text.size() - i);
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      group = group << 8 | (k < bytes ? static_cast<std::uint8_t>(text[i + k]) : 0u);
    }
    for (std::size_t k = 0; k < 4; ++k) {
      out += k <= bytes ? kDigits[group >> (18 - 6 * k) & 63] : '=';
    }
  }
  return out;
}

std::optional<std::string> decode_reasoning(std::string_view encoded) {
  if (!encoded.starts_with(kPrefix)) return std::nullopt;
  return decode_base64(encoded.substr(kPrefix.size()));
}

}  // namespace lathe::responses_api
