// LATHE_CHECK: an invariant of the program itself. It prints file, line, condition and text, then
// aborts; it is never the answer to a user's input (that is a Result, result.h). It stays on in
// release builds, so it belongs outside inner loops.
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
