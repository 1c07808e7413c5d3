// Throws an Error of the library as a Python exception.
#pragma once

#include "base/result.h"

namespace lathe::python {

/// Throws lathe.LatheError for `error`, its field in the words of a Python caller ("--page-size" is
/// page_size, "main.indices" is indices).
[[noreturn]] void raise(const Error& error);

/// Throws a TypeError with the message: the argument is not an array, string or number at all.
[[noreturn]] void raise_type_error(const Error& error);

template <class T>
T value_or_raise(Result<T> result) {
  if (!result) raise(result.error());
  return *std::move(result);
}
inline void value_or_raise(const Result<void>& result) {
  if (!result) raise(result.error());
}

/// parse_enum with an error that names the argument and lists the known names.
template <class E>
E enum_arg(const char* argument, const std::string& text) {
  if (const auto e = parse_enum<E>(text)) return *e;
  raise(
      {ErrorCode::invalid_argument, argument, "one of " + known_names<E>(), '"' + text + '"', ""});
}

}  // namespace lathe::python
