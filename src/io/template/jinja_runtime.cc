#include "io/template/jinja_runtime.h"

#include <algorithm>

#include "io/text/quote.h"

namespace lathe {

void JinjaRuntime::charge(std::size_t steps) {
  steps_ += static_cast<std::int64_t>(steps);
  if (steps_ > limits_.steps) {
    fail_jinja(ErrorCode::exhausted, line,
               "at most " + std::to_string(limits_.steps) + " steps for one render", "more",
               "a loop or a string grows without end");
  }
}

void JinjaRuntime::check_text(std::size_t bytes) {
  if (bytes > limits_.text_bytes) {
    fail_jinja(ErrorCode::exhausted, line,
               "text of at most " + std::to_string(limits_.text_bytes) + " bytes", "more");
  }
}

JinjaValue JinjaRuntime::text(std::string s) {
  check_text(s.size());
  charge_bytes(s.size());
  return JinjaValue(std::move(s));
}

JinjaValue JinjaRuntime::list(std::vector<JinjaValue> items, bool tuple) {
  charge(4 * items.size());  // an item is far larger than a step of text
  JinjaValue v = JinjaValue::list(std::move(items), tuple);
  if (v.depth() > kMaxJinjaDepth) {
    unsupported("at most " + std::to_string(kMaxJinjaDepth) + " levels of nesting", "more");
  }
  return v;
}

JinjaValue JinjaRuntime::dict(std::vector<std::pair<JinjaValue, JinjaValue>> items) {
  charge(items.size());
  JinjaValue v = JinjaValue::dict(std::move(items));
  if (v.depth() > kMaxJinjaDepth) {
    unsupported("at most " + std::to_string(kMaxJinjaDepth) + " levels of nesting", "more");
  }
  return v;
}

JinjaValue JinjaRuntime::texts(const std::vector<std::string_view>& parts) {
  charge(8 * parts.size());  // small strings cost far more than their bytes
  std::vector<JinjaValue> items;
  items.reserve(parts.size());
  for (const std::string_view p : parts) items.push_back(text(p));
  return list(std::move(items));
}

JinjaNamespace* JinjaRuntime::new_namespace() {
  charge(8);
  return &namespaces_.emplace_back();
}

void JinjaRuntime::fail_type(std::string wanted, const JinjaValue& v) const {
  if (v.is_undefined()) fail("a defined value", v.undefined_message());
  fail(std::move(wanted), v.type_name());
}

std::vector<std::optional<JinjaValue>> bind_args(JinjaRuntime& rt, const std::string& what,
                                                 const JinjaArgs& args,
                                                 std::initializer_list<std::string_view> names,
                                                 std::size_t required) {
  std::vector<std::optional<JinjaValue>> out(names.size());
  if (args.positional.size() > names.size()) {
    rt.fail(what + " with at most " + std::to_string(names.size()) + " arguments",
            std::to_string(args.positional.size()));
  }
  for (std::size_t i = 0; i < args.positional.size(); ++i) out[i] = args.positional[i];
  for (const auto& [key, value] : args.named) {
    const auto it = std::ranges::find(names, std::string_view(key));
    if (it == names.end()) rt.fail("an argument that " + what + " knows", quote(key));
    auto& place = out[static_cast<std::size_t>(it - names.begin())];
    if (place) rt.fail(what + " with each argument once", quote(key) + " twice");
    place = value;
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (!out[i]) rt.fail(what + " with " + quote(names.begin()[i]), "none");
  }
  return out;
}

const std::string& expect_text(JinjaRuntime& rt, const std::string& what, const JinjaValue& v) {
  if (!v.is_text()) rt.fail_type("a string for " + what, v);
  rt.charge_bytes(v.as_text().size());
  return v.as_text();
}

std::int64_t expect_integer(JinjaRuntime& rt, const std::string& what, const JinjaValue& v) {
  if (!v.is_integer()) rt.fail_type("an integer for " + what, v);
  return v.as_integer();
}

}  // namespace lathe
