// JinjaRuntime: limits and state of one rendering, and Python's operations on values. Everything
// here throws JinjaFailure with the current line.
#pragma once

#include <cstdint>
#include <ctime>
#include <deque>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/template/jinja_failure.h"
#include "io/template/jinja_value.h"

namespace lathe {

/// Limits that turn a hostile template into an error. A step is one node of the template, one
/// element of a list, or 32 bytes of text made or read.
struct JinjaLimits {
  std::int64_t steps = 20'000'000;
  std::size_t text_bytes = std::size_t{16} << 20;  // of the output and of each string
};

struct JinjaArgs {
  std::vector<JinjaValue> positional;
  std::vector<std::pair<std::string, JinjaValue>> named;
};

class JinjaRuntime {
 public:
  JinjaRuntime(const JinjaLimits& limits, const std::tm& now) : limits_(limits), now_(now) {}
  JinjaRuntime(const JinjaRuntime&) = delete;
  JinjaRuntime& operator=(const JinjaRuntime&) = delete;

  int line = 1;
  const std::tm& now() const { return now_; }

  void charge(std::size_t steps);
  void charge_bytes(std::size_t bytes) { charge(bytes / 32); }
  /// Fails if a string of this size would exceed the limit; call it before making the string.
  void check_text(std::size_t bytes);

  /// Make values that count against the limits.
  JinjaValue text(std::string s);
  JinjaValue text(std::string_view s) { return text(std::string(s)); }
  JinjaValue list(std::vector<JinjaValue> items, bool tuple = false);
  JinjaValue dict(std::vector<std::pair<JinjaValue, JinjaValue>> items);
  JinjaValue texts(const std::vector<std::string_view>& parts);
  JinjaNamespace* new_namespace();

  [[noreturn]] void fail(std::string wanted, std::string offered) const {
    fail_jinja(ErrorCode::malformed, line, std::move(wanted), std::move(offered));
  }
  [[noreturn]] void unsupported(std::string wanted, std::string offered) const {
    fail_jinja(ErrorCode::unsupported, line, std::move(wanted), std::move(offered));
  }
  /// Fails with the value's type, or with the name of what is undefined.
  [[noreturn]] void fail_type(std::string wanted, const JinjaValue& v) const;

 private:
  JinjaLimits limits_;
  std::tm now_;
  std::int64_t steps_ = 0;
  std::deque<JinjaNamespace> namespaces_;
};

// --- conversions ---
/// str(v), appended.
void append_text(JinjaRuntime& rt, std::string& out, const JinjaValue& v);
std::string to_text(JinjaRuntime& rt, const JinjaValue& v);
/// json.dumps(v) with Hugging Face's defaults. `indent` below 0: one line.
struct JinjaJsonStyle {
  std::string indent;  // of one level; used with `lines`
  bool lines = false;
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
std::string to_json(JinjaRuntime& rt, const JinjaValue& v, const JinjaJsonStyle& style);

bool truthy(const JinjaValue& v);
bool equal(JinjaRuntime& rt, const JinjaValue& a, const JinjaValue& b);
/// a < b in Python's order; fails for types without an order.
bool less(JinjaRuntime& rt, const JinjaValue& a, const JinjaValue& b);
bool contains(JinjaRuntime& rt, const JinjaValue& container, const JinjaValue& v);
std::int64_t length(JinjaRuntime& rt, const JinjaValue& v);
/// list(v): a dict gives its keys, a string its characters, undefined nothing.
std::vector<JinjaValue> iterate(JinjaRuntime& rt, const JinjaValue& v);

// --- operators ---
JinjaValue get_attribute(JinjaRuntime& rt, const JinjaValue& v, const std::string& name);
JinjaValue get_item(JinjaRuntime& rt, const JinjaValue& v, const JinjaValue& key);
JinjaValue get_slice(JinjaRuntime& rt, const JinjaValue& v, const JinjaValue* begin,
                     const JinjaValue* end, const JinjaValue* step);
/// op: + - * / // % ** ~
JinjaValue binary(JinjaRuntime& rt, std::string_view op, const JinjaValue& a, const JinjaValue& b);
JinjaValue negated(JinjaRuntime& rt, const JinjaValue& v);
/// op: == != < <= > >= in "not in"
bool compare(JinjaRuntime& rt, std::string_view op, const JinjaValue& a, const JinjaValue& b);

// --- what templates call by name ---
JinjaValue apply_filter(JinjaRuntime& rt, const std::string& name, const JinjaValue& v,
                        const JinjaArgs& args);
bool apply_test(JinjaRuntime& rt, const std::string& name, const JinjaValue& v,
                const JinjaArgs& args);
/// Whether values of v's type have a method of this name in Python.
bool has_method(const JinjaValue& v, std::string_view name);
JinjaValue call_function(JinjaRuntime& rt, const JinjaFunction& f, const JinjaArgs& args);
bool is_global_function(std::string_view name);

/// Arguments by parameter, in the order of `names`; nullopt if not given. Fails for too many,
/// unknown or repeated arguments, and if one of the first `required` is missing.
std::vector<std::optional<JinjaValue>> bind_args(JinjaRuntime& rt, const std::string& what,
                                                 const JinjaArgs& args,
                                                 std::initializer_list<std::string_view> names,
                                                 std::size_t required = 0);
const std::string& expect_text(JinjaRuntime& rt, const std::string& what, const JinjaValue& v);
std::int64_t expect_integer(JinjaRuntime& rt, const std::string& what, const JinjaValue& v);

}  // namespace lathe
