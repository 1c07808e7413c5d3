// JinjaValue: a template's values, modelled on Python's types.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"

namespace lathe {

class JinjaValue;

struct JinjaUndefined {
  std::shared_ptr<const std::string> what;  // "'x' is undefined"; may be null
};
struct JinjaNone {};
/// A number that prints as the digits it came with.
struct JinjaDigits {
  double value = 0;
  std::shared_ptr<const std::string> digits;
};
struct JinjaList;
struct JinjaDict;
struct JinjaNamespace;
struct JinjaMacro;
struct JinjaLoop;
struct JinjaFunction;
using JinjaText = std::shared_ptr<const std::string>;

class JinjaValue {
 public:
  JinjaValue() = default;  // undefined
  explicit JinjaValue(bool v) : state_(v) {}
  explicit JinjaValue(std::int64_t v) : state_(v) {}
  explicit JinjaValue(double v) : state_(v) {}
  explicit JinjaValue(JinjaDigits v) : state_(std::move(v)) {}
  explicit JinjaValue(std::string v) : state_(std::make_shared<const std::string>(std::move(v))) {}
  template <class T>
  explicit JinjaValue(std::shared_ptr<const T> v) : state_(std::move(v)) {}
  explicit JinjaValue(std::shared_ptr<JinjaLoop> v) : state_(std::move(v)) {}
  explicit JinjaValue(JinjaNamespace* v) : state_(v) {}
  explicit JinjaValue(const JinjaMacro* v) : state_(v) {}
  JinjaValue(const char*) = delete;  // would be a bool

  static JinjaValue none() { return JinjaValue(State(JinjaNone{})); }
  /// `what`: the error message when the value is used.
  static JinjaValue undefined(std::string what) {
    return JinjaValue(State(JinjaUndefined{std::make_shared<const std::string>(std::move(what))}));
  }
  static JinjaValue list(std::vector<JinjaValue> items, bool tuple = false);
  static JinjaValue dict(std::vector<std::pair<JinjaValue, JinjaValue>> items);
  static JinjaValue function(std::string name);
  /// `v`; a text is marked as needing no escapes (Python's Markup).
  static JinjaValue safe(JinjaValue v) {
    v.safe_ = v.is_text();
    return v;
  }
  static JinjaValue method(const JinjaValue& self, std::string name);

  /// Converts from JSON, in which numbers may have digits (base/json_digits.h). `path` is the
  /// value's. Errors: nesting deeper than kMaxJinjaDepth, with the path of the value there.
  static Result<JinjaValue> from_json(const nlohmann::ordered_json& json, const std::string& path);

  template <class T>
  bool is() const {
    return std::holds_alternative<T>(state_);
  }
  bool is_undefined() const { return is<JinjaUndefined>(); }
  bool is_none() const { return is<JinjaNone>(); }
  bool is_text() const { return is<JinjaText>(); }
  bool is_safe() const { return safe_; }
  bool is_integer() const { return is<std::int64_t>() || is<bool>(); }  // bool is an int in Python
  bool is_real() const { return is<double>() || is<JinjaDigits>(); }
  bool is_number() const { return is_integer() || is_real(); }

  bool as_bool() const { return std::get<bool>(state_); }
  std::int64_t as_integer() const {
    return is<bool>() ? std::int64_t{as_bool()} : std::get<std::int64_t>(state_);
  }
  double as_real() const {
    if (is<JinjaDigits>()) return std::get<JinjaDigits>(state_).value;
    return is<double>() ? std::get<double>(state_) : static_cast<double>(as_integer());
  }
  /// Null: the number has no digits of its own.
  const std::string* digits() const {
    const auto* d = std::get_if<JinjaDigits>(&state_);
    return d != nullptr ? d->digits.get() : nullptr;
  }
  const std::string& as_text() const { return *std::get<JinjaText>(state_); }
  /// Null if the value is of another type.
  const JinjaList* as_list() const { return shared<JinjaList>(); }
  std::shared_ptr<const JinjaList> shared_list() const {
    return std::get<std::shared_ptr<const JinjaList>>(state_);
  }
  const JinjaDict* as_dict() const { return shared<JinjaDict>(); }
  const JinjaFunction* as_function() const { return shared<JinjaFunction>(); }
  JinjaNamespace* as_namespace() const { return pointer<JinjaNamespace*>(); }
  const JinjaMacro* as_macro() const { return pointer<const JinjaMacro*>(); }
  const JinjaLoop* as_loop() const {
    const auto* p = std::get_if<std::shared_ptr<JinjaLoop>>(&state_);
    return p != nullptr ? p->get() : nullptr;
  }
  std::string undefined_message() const {
    const auto& what = std::get<JinjaUndefined>(state_).what;
    return what ? *what : "an undefined value";
  }

  /// Levels of nesting: 0 for a scalar, 1 + the deepest item of a list or dict.
  int depth() const;
  /// Rough size in bytes of the value itself, without its items' contents.
  std::size_t size_hint() const;
  /// Python's name of the type: "dict object", "None".
  std::string type_name() const;
  /// A dict's value of this key, or null.
  const JinjaValue* find(std::string_view key) const;

 private:
  using State = std::variant<JinjaUndefined, JinjaNone, bool, std::int64_t, double, JinjaDigits,
                             JinjaText, std::shared_ptr<const JinjaList>,
                             std::shared_ptr<const JinjaDict>, std::shared_ptr<const JinjaFunction>,
                             std::shared_ptr<JinjaLoop>, JinjaNamespace*, const JinjaMacro*>;
  explicit JinjaValue(State state) : state_(std::move(state)) {}
  template <class T>
  const T* shared() const {
    const auto* p = std::get_if<std::shared_ptr<const T>>(&state_);
    return p != nullptr ? p->get() : nullptr;
  }
  template <class P>
  P pointer() const {
    const auto* p = std::get_if<P>(&state_);
    return p != nullptr ? *p : nullptr;
  }

  State state_;
  bool safe_ = false;  // of a text only
};

inline constexpr int kMaxJinjaDepth = 200;

struct JinjaList {
  std::vector<JinjaValue> items;
  bool tuple = false;
  int depth = 1;  // nesting; bounded, because destruction and printing recurse
};
struct JinjaDict {
  std::vector<std::pair<JinjaValue, JinjaValue>> items;  // in order of insertion
  int depth = 1;
};
/// namespace(): the only mutable value. A rendering owns its namespaces and macros; values only
/// point to them, so cycles cannot leak.
struct JinjaNamespace {
  std::vector<std::pair<std::string, JinjaValue>> attributes;
};
/// The `loop` variable.
struct JinjaLoop {
  std::shared_ptr<const JinjaList> items;
  std::size_t index = 0;
};
/// A method of `self`, or a global function if `self` is undefined.
struct JinjaFunction {
  JinjaValue self;
  std::string name;
  int depth = 1;
};

}  // namespace lathe
