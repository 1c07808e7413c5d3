// Result<T>: a value, or an Error that the user can act on. Return an Error for a user's mistake;
// for a bug in the program use LATHE_CHECK (check.h).
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/enum.h"

namespace lathe {

#define LATHE_ERROR_CODES(X) \
  X(invalid_argument)        \
  X(out_of_range)            \
  X(unsupported)             \
  X(exhausted)               \
  X(malformed)               \
  X(io)                      \
  X(device)
LATHE_ENUM(ErrorCode, LATHE_ERROR_CODES)

/// What went wrong, in the caller's terms: the flag or argument, what it accepts, what it got, and
/// what to do.
struct Error {
  ErrorCode code = ErrorCode::invalid_argument;
  std::string field;    // flag, argument or index in error ("page_size", "slots[3]")
  std::string wanted;   // what would have been accepted
  std::string offered;  // what was given
  std::string hint;     // what to do; may be empty

  /// "page_size: wanted 1 to 65536, got 0; try 64"
  std::string message() const {
    std::string out = field + ": wanted " + wanted + ", got " + offered;
    if (!hint.empty()) out += "; " + hint;
    return out;
  }
};

template <class T, class E = Error>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(E error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  const T& value() const& {
    LATHE_CHECK(ok(), "value() of a failed Result");
    return std::get<0>(state_);
  }
  T& value() & {
    LATHE_CHECK(ok(), "value() of a failed Result");
    return std::get<0>(state_);
  }
  T&& value() && {
    LATHE_CHECK(ok(), "value() of a failed Result");
    return std::get<0>(std::move(state_));
  }
  const E& error() const {
    LATHE_CHECK(!ok(), "error() of a successful Result");
    return std::get<1>(state_);
  }

  const T& operator*() const& { return value(); }
  T& operator*() & { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  const T* operator->() const { return &value(); }
  T* operator->() { return &value(); }

 private:
  std::variant<T, E> state_;
};

template <class E>
class [[nodiscard]] Result<void, E> {
 public:
  Result() = default;
  Result(E error) : error_(std::move(error)) {}

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const E& error() const {
    LATHE_CHECK(!ok(), "error() of a successful Result");
    return *error_;
  }

 private:
  std::optional<E> error_;
};

}  // namespace lathe
