// LATHE_CHECK: checks an invariant of the program. If it fails it prints file, line, condition and
// text, then aborts. Do not use it for user input; return an Error (result.h) instead. It stays on
// in release builds, so keep it out of inner loops.
#pragma once

#include <string_view>

namespace lathe {

[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               std::string_view text);

}  // namespace lathe

#define LATHE_CHECK(condition, text)                               \
  do {                                                             \
    if (!(condition)) [[unlikely]] {                               \
      ::lathe::check_failed(__FILE__, __LINE__, #condition, text); \
    }                                                              \
  } while (false)
