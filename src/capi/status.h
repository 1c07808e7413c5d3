// Turns a Result or an exception into a lathe_status and the thread's last error.
#pragma once

#include <lathe/lathe.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include "base/memory.h"
#include "base/result.h"
#include "plan/reason.h"

namespace lathe::capi {

/// Thrown when the caller's callback asks to stop.
class Aborted : public std::exception {
 public:
  const char* what() const noexcept override { return "stopped by the caller's callback"; }
};

/// Keeps the error for lathe_last_error() and returns its status. If there is no memory to keep it,
/// the error becomes LATHE_OUT_OF_MEMORY with a fixed text.
lathe_status fail(const Error& error) noexcept;
lathe_status fail(lathe_status status, const Error& error) noexcept;
lathe_status fail(const Refusal& refusal) noexcept;

inline lathe_status status_of(const Result<void>& result) noexcept {
  return result.ok() ? LATHE_OK : fail(result.error());
}

/// Runs `body`, which returns a Result<void> or a lathe_status; turns exceptions into a status.
template <class Body>
lathe_status guard(Body&& body) noexcept {
  try {
    if constexpr (std::same_as<std::invoke_result_t<Body>, lathe_status>) {
      return body();
    } else {
      return status_of(body());
    }
  } catch (const OutOfMemory& e) {
    return fail(LATHE_OUT_OF_MEMORY, {ErrorCode::exhausted, "memory", "room for the call", e.what(),
                                      "fewer or shorter requests, or a smaller cache"});
  } catch (const std::bad_alloc&) {
    return fail(LATHE_OUT_OF_MEMORY, {ErrorCode::exhausted, "memory", "room for the call", "none",
                                      "fewer or shorter requests, or a smaller cache"});
  } catch (const Aborted& e) {
    return fail(LATHE_ABORTED,
                {ErrorCode::invalid_argument, "progress", "0 from the callback", e.what(), ""});
  } catch (const std::exception& e) {
    return fail(LATHE_INTERNAL,
                {ErrorCode::invalid_argument, "lathe", "no exception", e.what(), "report it"});
  } catch (...) {
    return fail(LATHE_INTERNAL, {ErrorCode::invalid_argument, "lathe", "no exception",
                                 "one of an unknown type", "report it"});
  }
}

/// Errors: a null pointer.
inline Result<void> need(const void* pointer, const char* argument) {
  if (pointer != nullptr) return {};
  return Error{ErrorCode::invalid_argument, argument, "a pointer", "NULL", ""};
}

/// Errors: the first null pointer, named by the entry of `arguments` at its index.
template <std::size_t N>
Result<void> need_all(const std::pair<const void*, const char*> (&arguments)[N]) {
  for (const auto& [pointer, argument] : arguments) {
    if (auto ok = need(pointer, argument); !ok) return ok;
  }
  return {};
}

/// Bytes of a caller's struct that this build knows. Errors: NULL; a size below that of the size
/// field.
Result<std::size_t> known_size(const std::int64_t* size, std::size_t known, const char* argument);

/// Copies a caller's struct. Fields that the caller's header lacks are zero. Fields that this build
/// lacks are ignored if they are zero. Errors: known_size()'s; such a field is not zero.
template <class T>
Result<T> read_struct(const T* from, const char* argument) {
  const auto bytes = known_size(from == nullptr ? nullptr : &from->size, sizeof(T), argument);
  if (!bytes) return bytes.error();
  const auto* all = reinterpret_cast<const unsigned char*>(from);
  for (std::size_t at = *bytes; at < static_cast<std::size_t>(from->size); ++at) {
    if (all[at] == 0) continue;
    return Error{ErrorCode::unsupported, std::string(argument) + ".size",
                 "a field of this version of the library", "one of a later version",
                 "lathe_version() tells which this is"};
  }
  T out{};
  std::memcpy(&out, from, *bytes);
  return out;
}

/// Writes the fields of `from` that the caller's struct has. Errors: known_size()'s.
template <class T>
Result<void> write_struct(T from, T* to, const char* argument) {
  const auto bytes = known_size(to == nullptr ? nullptr : &to->size, sizeof(T), argument);
  if (!bytes) return bytes.error();
  from.size = to->size;
  std::memcpy(to, &from, *bytes);
  return {};
}

}  // namespace lathe::capi
