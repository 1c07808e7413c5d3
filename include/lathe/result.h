// Result<T>: a value, or an Error that names the wrong argument and a way out.
#pragma once

#include <lathe/lathe.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

// The C++ interface is inline code over lathe.h, in an inline namespace of `lathe`. Its symbols
// therefore cannot clash with the library's own, so that a program may link the static library.
namespace lathe {
inline namespace api {

/// A copy of lathe_last_error().
struct Error {
  lathe_status status = LATHE_INTERNAL;
  std::string text;  // the fields below in one line
  std::string field, wanted, offered, hint;
};

/// The error of the thread's last failed call.
inline Error last_error(lathe_status status) {
  const lathe_error* e = lathe_last_error();
  if (e == nullptr) return {status, lathe_status_name(status), "", "", "", ""};
  return {status, e->text, e->field, e->wanted, e->offered, e->hint};
}

/// Thrown by Result::value() alone.
class Failure : public std::runtime_error {
 public:
  explicit Failure(Error error) : std::runtime_error(error.text), error_(std::move(error)) {}
  const Error& error() const { return error_; }

 private:
  Error error_;
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  /// Precondition: !ok().
  const Error& error() const { return std::get<1>(state_); }
  /// Throws Failure if !ok().
  T& value() & { return check(), std::get<0>(state_); }
  const T& value() const& { return check(), std::get<0>(state_); }
  T&& value() && { return check(), std::get<0>(std::move(state_)); }
  // Precondition: ok().
  T& operator*() { return std::get<0>(state_); }
  const T& operator*() const { return std::get<0>(state_); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }

 private:
  void check() const {
    if (!ok()) throw Failure(error());
  }
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)), ok_(false) {}
  /// From a call's status; an error is the thread's last_error().
  explicit Result(lathe_status status) : ok_(status == LATHE_OK) {
    if (!ok_) error_ = last_error(status);
  }

  bool ok() const { return ok_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const { return error_; }
  void value() const {
    if (!ok_) throw Failure(error_);
  }

 private:
  Error error_;
  bool ok_ = true;
};

}  // namespace api
}  // namespace lathe
