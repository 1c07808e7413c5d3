// is_name_byte(): the bytes of names in calls that a model writes as literals.
#pragma once

namespace lathe {

/// ASCII letters and digits, _ . and -, and the bytes of all other characters in UTF-8.
constexpr bool is_name_byte(char c) {
  return c == '_' || c == '.' || c == '-' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
         (c >= 'A' && c <= 'Z') || static_cast<unsigned char>(c) >= 0x80;
}

}  // namespace lathe
