// Jinja's tests, which follow "is".
#include <algorithm>

#include "io/template/jinja_runtime.h"
#include "io/text/python_text.h"
#include "io/text/quote.h"

namespace lathe {
namespace {

// Tests without arguments; nullopt if `name` is not such a test.
std::optional<bool> plain_test(JinjaRuntime& rt, std::string_view name, const JinjaValue& v) {
  if (name == "defined") return !v.is_undefined();
  if (name == "undefined") return v.is_undefined();
  if (name == "none") return v.is_none();
  if (name == "boolean") return v.is<bool>();
  if (name == "true") return v.is<bool>() && v.as_bool();
  if (name == "false") return v.is<bool>() && !v.as_bool();
  if (name == "string") return v.is_text();
  if (name == "mapping") return v.as_dict() != nullptr;
  if (name == "integer") return v.is<std::int64_t>();
  if (name == "float") return v.is_real();
  if (name == "number") return v.is_number();
  // In Jinja, undefined is an empty sequence.
  if (name == "sequence" || name == "iterable") {
    return v.is_undefined() || v.is_text() || v.as_list() != nullptr || v.as_dict() != nullptr ||
           (name == "iterable" && v.as_loop() != nullptr);
  }
  if (name == "callable") {
    return v.is_undefined() || v.as_function() != nullptr || v.as_macro() != nullptr;
  }
  if (name == "odd") return truthy(binary(rt, "%", v, JinjaValue(std::int64_t{2})));
  if (name == "even") return !truthy(binary(rt, "%", v, JinjaValue(std::int64_t{2})));
  if (name == "lower" || name == "upper") {
    // str.islower(): there are cased letters, and all are lower case.
    const std::string s = to_text(rt, v);
    const std::string low = to_lower(s), up = to_upper(s);
    return low != up && s == (name == "lower" ? low : up);
  }
  return std::nullopt;
}

// The operator of a test with one argument; empty if `name` is not such a test.
std::string_view operator_of(std::string_view name) {
  if (name == "eq" || name == "equalto" || name == "==") return "==";
  if (name == "ne" || name == "!=") return "!=";
  if (name == "lt" || name == "lessthan" || name == "<") return "<";
  if (name == "le" || name == "<=") return "<=";
  if (name == "gt" || name == "greaterthan" || name == ">") return ">";
  if (name == "ge" || name == ">=") return ">=";
  if (name == "in") return "in";
  return "";
}

}  // namespace

bool apply_test(JinjaRuntime& rt, const std::string& name, const JinjaValue& v,
                const JinjaArgs& args) {
  rt.charge(1);
  if (const auto result = plain_test(rt, name, v)) {
    bind_args(rt, name, args, {});
    return *result;
  }
  const auto op = operator_of(name);
  const bool known = !op.empty() || name == "divisibleby" || name == "sameas";
  if (!known) {
    rt.unsupported(
        "a test of defined, undefined, none, boolean, true, false, string, mapping, integer, "
        "float, number, sequence, iterable, callable, odd, even, lower, upper, eq, ne, lt, le, "
        "gt, ge, in, divisibleby, sameas",
        quote(name));
  }
  const auto a = bind_args(rt, name, args, {"other"}, 1);
  if (!op.empty()) return compare(rt, op, v, *a[0]);
  if (name == "divisibleby") return !truthy(binary(rt, "%", v, *a[0]));
  // Identity differs from equality in the type: True is not 1.
  return v.type_name() == a[0]->type_name() && equal(rt, v, *a[0]);
}

}  // namespace lathe
