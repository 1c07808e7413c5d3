#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lathe {

/// The bytes of padded base64 (RFC 4648), or nothing if it is empty or malformed.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace lathe
