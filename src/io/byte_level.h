// The byte-level alphabet of GPT-2: every byte has a printable character that stands for it in the
// token strings of a tokenizer.json. Printable bytes of Latin-1 stand for themselves, the other 68
// for U+0100 onwards in the order of their value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lathe {

char32_t byte_level_char(std::uint8_t byte);

/// The bytes that `token` stands for; empty if a character lies outside the alphabet.
std::optional<std::string> byte_level_bytes(std::string_view token);

}  // namespace lathe
