// The byte-level alphabet of GPT-2: every byte is represented by a printable character in the token
// strings of a tokenizer.json. Printable Latin-1 bytes represent themselves; the other 68 map to
// U+0100 onwards, in ascending order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lathe {

char32_t byte_level_char(std::uint8_t byte);

/// The bytes that `token` represents; nullopt if a character is outside the alphabet.
std::optional<std::string> byte_level_bytes(std::string_view token);

}  // namespace lathe
