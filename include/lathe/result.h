// Result<T>: a value, or an Error that says which argument it was and the way out.
#pragma once

#include <lathe/lathe.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

// All of lathe's C++ is inline over lathe.h, in a namespace of its own inside `lathe`: a program
// may link the static library as well as the shared one.
namespace lathe {
inline namespace api {

/// What lathe_last_error() told, kept.
struct Error {
  lathe_status status = LATHE_INTERNAL;
  std::string text;  // one line of what follows
  std::string field, wanted, offered, hint;
};

/// Of the thread's last call that failed.
inline Error last_error(lathe_status status) {
  const lathe_error* e = lathe_last_error();
  if (e == nullptr) return {status, lathe_status_name(status), "", "", "", ""};
  return {status, e->text, e->field, e->wanted, e->offered, e->hint};
}

/// Thrown by Result::value(), and by nothing else here.
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
  /// Throws Failure where there is none.
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
  /// Of a call's status.
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
