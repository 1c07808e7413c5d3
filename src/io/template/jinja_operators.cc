// Python's operators on values: comparison, containment, indexing, arithmetic.
#include <algorithm>
#include <cmath>
#include <limits>

#include "io/template/jinja_runtime.h"
#include "io/text/python_text.h"
#include "io/text/quote.h"

namespace lathe {
namespace {

JinjaValue integer_arithmetic(JinjaRuntime& rt, std::string_view op, std::int64_t a,
                              std::int64_t b) {
  std::int64_t r = 0;
  bool wraps = false;
  if (op == "+") {
    wraps = __builtin_add_overflow(a, b, &r);
  } else if (op == "-") {
    wraps = __builtin_sub_overflow(a, b, &r);
  } else if (op == "*") {
    wraps = __builtin_mul_overflow(a, b, &r);
  } else if (op == "**") {
    if (b < 0) return binary(rt, op, JinjaValue(static_cast<double>(a)), JinjaValue(b));
    // |a| > 1 overflows 64 bits within 64 steps; other values repeat.
    r = 1;
    const std::int64_t steps = a >= -1 && a <= 1 ? std::min<std::int64_t>(b, 2 - b % 2) : b;
    for (std::int64_t i = 0; i < steps && !wraps; ++i) wraps = __builtin_mul_overflow(r, a, &r);
  } else {
    if (b == 0) rt.fail("a divisor other than 0", "0");
    wraps = a == std::numeric_limits<std::int64_t>::min() && b == -1;
    if (!wraps) {
      // Rounds towards minus infinity, so that a remainder has the divisor's sign.
      const std::int64_t rest = a % b;
      const bool adjust = rest != 0 && (rest < 0) != (b < 0);
      r = op == "//" ? a / b - (adjust ? 1 : 0) : rest + (adjust ? b : 0);
    }
  }
  if (wraps) rt.unsupported("integers of 64 bits", "a larger one");
  return JinjaValue(r);
}

JinjaValue real_arithmetic(JinjaRuntime& rt, std::string_view op, double a, double b) {
  if (op == "+") return JinjaValue(a + b);
  if (op == "-") return JinjaValue(a - b);
  if (op == "*") return JinjaValue(a * b);
  if (op == "**") {
    if (a == 0 && b < 0) rt.fail("a base other than 0", "0 to a negative power");
    if (a < 0 && b != std::floor(b)) rt.unsupported("a real power", "a complex one");
    const double r = std::pow(a, b);
    if (std::isinf(r) && std::isfinite(a) && std::isfinite(b)) {
      rt.fail("a power below 1.8e308", "a larger one");
    }
    return JinjaValue(r);
  }
  if (b == 0) rt.fail("a divisor other than 0", "0");
  if (op == "/") return JinjaValue(a / b);
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (op == "%") return JinjaValue(rest == 0 ? std::copysign(0.0, b) : rest);
  const double quotient = (a - rest) / b;
  double whole = std::floor(quotient);
  if (quotient - whole > 0.5) whole += 1;
  return JinjaValue(quotient == 0 ? std::copysign(0.0, a / b) : whole);
}

JinjaValue repeat(JinjaRuntime& rt, const JinjaValue& v, std::int64_t count) {
  const auto n = static_cast<std::size_t>(std::max<std::int64_t>(count, 0));
  if (v.is_text()) {
    const std::string& s = v.as_text();
    if (s.empty() || n == 0) return rt.text(std::string());
    if (n > std::numeric_limits<std::size_t>::max() / s.size()) rt.check_text(SIZE_MAX);
    rt.check_text(s.size() * n);
    std::string out;
    out.reserve(s.size() * n);
    for (std::size_t i = 0; i < n; ++i) out += s;
    return rt.text(std::move(out));
  }
  const JinjaList& l = *v.as_list();
  std::vector<JinjaValue> out;
  for (std::size_t i = 0; i < n && !l.items.empty(); ++i) {
    rt.charge(4 * l.items.size());
    out.insert(out.end(), l.items.begin(), l.items.end());
  }
  return rt.list(std::move(out), l.tuple);
}

// `text`, marked as safe if its source `v` is.
JinjaValue like(const JinjaValue& v, JinjaValue text) {
  return v.is_safe() ? JinjaValue::safe(std::move(text)) : text;
}

JinjaValue escaped(JinjaRuntime& rt, const JinjaValue& v) {
  std::string out;
  rt.check_text(v.as_text().size());
  for (const char c : v.as_text()) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return JinjaValue::safe(rt.text(std::move(out)));
}

bool is_sequence(const JinjaValue& v) { return v.is_text() || v.as_list() != nullptr; }

// Resolves an index, negative ones from the end; nullopt if outside.
std::optional<std::size_t> place(std::int64_t index, std::size_t size) {
  const auto n = static_cast<std::int64_t>(size);
  if (index < 0) index += n;
  if (index < 0 || index >= n) return std::nullopt;
  return static_cast<std::size_t>(index);
}

JinjaValue loop_attribute(const JinjaLoop& loop, const std::string& name) {
  const auto integer = [](std::size_t v) { return JinjaValue(static_cast<std::int64_t>(v)); };
  const auto& items = loop.items->items;
  const std::size_t i = loop.index, n = items.size();
  if (name == "index") return integer(i + 1);
  if (name == "index0") return integer(i);
  if (name == "revindex") return integer(n - i);
  if (name == "revindex0") return integer(n - i - 1);
  if (name == "first") return JinjaValue(i == 0);
  if (name == "last") return JinjaValue(i + 1 == n);
  if (name == "length") return integer(n);
  if (name == "depth") return integer(1);
  if (name == "depth0") return integer(0);
  if (name == "previtem") {
    return i > 0 ? items[i - 1] : JinjaValue::undefined("there is no previous item");
  }
  if (name == "nextitem") {
    return i + 1 < n ? items[i + 1] : JinjaValue::undefined("there is no next item");
  }
  return JinjaValue::undefined("the loop has no attribute " + repr_text(name));
}

}  // namespace

bool truthy(const JinjaValue& v) {
  if (v.is_undefined() || v.is_none()) return false;
  if (v.is_real()) return v.as_real() != 0;
  if (v.is_integer()) return v.as_integer() != 0;
  if (v.is_text()) return !v.as_text().empty();
  if (const auto* l = v.as_list()) return !l->items.empty();
  if (const auto* d = v.as_dict()) return !d->items.empty();
  return true;
}

bool equal(JinjaRuntime& rt, const JinjaValue& a, const JinjaValue& b) {
  rt.charge(1);
  if (a.is_integer() && b.is_integer()) return a.as_integer() == b.as_integer();
  if (a.is_number() && b.is_number()) return a.as_real() == b.as_real();
  if (a.is_text() && b.is_text()) {
    if (a.as_text().size() != b.as_text().size()) return false;
    rt.charge_bytes(a.as_text().size());
    return a.as_text() == b.as_text();
  }
  if (a.is_undefined() || a.is_none()) {
    return a.is_undefined() ? b.is_undefined() : b.is_none();
  }
  if (const auto* x = a.as_list(), *y = b.as_list(); x != nullptr && y != nullptr) {
    if (x->tuple != y->tuple || x->items.size() != y->items.size()) return false;
    for (std::size_t i = 0; i < x->items.size(); ++i) {
      if (!equal(rt, x->items[i], y->items[i])) return false;
    }
    return true;
  }
  if (const auto* x = a.as_dict(), *y = b.as_dict(); x != nullptr && y != nullptr) {
    if (x->items.size() != y->items.size()) return false;
    for (const auto& item : x->items) {
      const auto it = std::ranges::find_if(
          y->items, [&](const auto& other) { return equal(rt, item.first, other.first); });
      if (it == y->items.end() || !equal(rt, item.second, it->second)) return false;
    }
    return true;
  }
  if (a.as_namespace() != nullptr) return a.as_namespace() == b.as_namespace();
  if (a.as_macro() != nullptr) return a.as_macro() == b.as_macro();
  return a.as_loop() != nullptr && a.as_loop() == b.as_loop();
}

bool less(JinjaRuntime& rt, const JinjaValue& a, const JinjaValue& b) {
  rt.charge(1);
  if (a.is_integer() && b.is_integer()) return a.as_integer() < b.as_integer();
  if (a.is_number() && b.is_number()) return a.as_real() < b.as_real();
  if (a.is_text() && b.is_text()) {
    rt.charge_bytes(std::min(a.as_text().size(), b.as_text().size()));
    return a.as_text() < b.as_text();  // UTF-8 sorts like its code points
  }
  if (const auto* x = a.as_list(), *y = b.as_list();
      x != nullptr && y != nullptr && x->tuple == y->tuple) {
    for (std::size_t i = 0; i < std::min(x->items.size(), y->items.size()); ++i) {
      if (!equal(rt, x->items[i], y->items[i])) return less(rt, x->items[i], y->items[i]);
    }
    return x->items.size() < y->items.size();
  }
  if (a.is_undefined()) rt.fail_type("", a);
  if (b.is_undefined()) rt.fail_type("", b);
  rt.fail("values that can be ordered", a.type_name() + " and " + b.type_name());
}

bool compare(JinjaRuntime& rt, std::string_view op, const JinjaValue& a, const JinjaValue& b) {
  if (op == "==") return equal(rt, a, b);
  if (op == "!=") return !equal(rt, a, b);
  if (op == "in") return contains(rt, b, a);
  if (op == "not in") return !contains(rt, b, a);
  if (op == "<") return less(rt, a, b);
  if (op == ">") return less(rt, b, a);
  // NaN is neither, so <= is not the negation of > for reals.
  if (op == "<=") return less(rt, a, b) || equal(rt, a, b);
  return less(rt, b, a) || equal(rt, a, b);
}

bool contains(JinjaRuntime& rt, const JinjaValue& container, const JinjaValue& v) {
  if (container.is_undefined()) return false;
  if (container.is_text()) {
    if (!v.is_text()) rt.fail_type("a string to look for in a string", v);
    rt.charge_bytes(container.as_text().size());
    return container.as_text().find(v.as_text()) != std::string::npos;
  }
  if (const auto* l = container.as_list()) {
    return std::ranges::any_of(l->items, [&](const auto& i) { return equal(rt, i, v); });
  }
  if (const auto* d = container.as_dict()) {
    return std::ranges::any_of(d->items, [&](const auto& i) { return equal(rt, i.first, v); });
  }
  rt.fail_type("a string, list or dict after \"in\"", container);
}

std::int64_t length(JinjaRuntime& rt, const JinjaValue& v) {
  if (v.is_undefined()) return 0;
  if (v.is_text()) {
    rt.charge_bytes(v.as_text().size());
    return count_characters(v.as_text());
  }
  if (const auto* l = v.as_list()) return static_cast<std::int64_t>(l->items.size());
  if (const auto* d = v.as_dict()) return static_cast<std::int64_t>(d->items.size());
  rt.fail_type("a value that has a length", v);
}

std::vector<JinjaValue> iterate(JinjaRuntime& rt, const JinjaValue& v) {
  std::vector<JinjaValue> out;
  if (v.is_undefined()) return out;
  if (const auto* l = v.as_list()) {
    rt.charge(l->items.size());
    return l->items;
  }
  if (const auto* d = v.as_dict()) {
    rt.charge(d->items.size());
    for (const auto& [key, value] : d->items) out.push_back(key);
    return out;
  }
  if (v.is_text()) {
    rt.charge(8 * v.as_text().size());
    for (const std::string_view c : characters(v.as_text())) {
      out.push_back(JinjaValue(std::string(c)));
    }
    return out;
  }
  rt.fail_type("a value that can be iterated", v);
}

JinjaValue get_attribute(JinjaRuntime& rt, const JinjaValue& v, const std::string& name) {
  if (v.is_undefined()) rt.fail_type("", v);
  if (const auto* loop = v.as_loop()) {
    if (name == "cycle") return JinjaValue::method(v, name);
    return loop_attribute(*loop, name);
  }
  if (const auto* n = v.as_namespace()) {
    for (const auto& [key, value] : n->attributes) {
      if (key == name) return value;
    }
  }
  if (has_method(v, name)) return JinjaValue::method(v, name);
  if (const auto* d = v.as_dict()) rt.charge(d->items.size() / 8);
  if (const JinjaValue* found = v.find(name)) return *found;
  return JinjaValue::undefined(repr_text(v.type_name()) + " has no attribute " + repr_text(name));
}

JinjaValue get_item(JinjaRuntime& rt, const JinjaValue& v, const JinjaValue& key) {
  if (v.is_undefined()) rt.fail_type("", v);
  if (const auto* d = v.as_dict()) {
    for (const auto& [k, value] : d->items) {
      if (equal(rt, k, key)) return value;
    }
  }
  if (key.is_integer()) {
    if (const auto* l = v.as_list()) {
      if (const auto i = place(key.as_integer(), l->items.size())) return l->items[*i];
    } else if (v.is_text()) {
      rt.charge_bytes(v.as_text().size());
      if (is_ascii(v.as_text())) {
        if (const auto i = place(key.as_integer(), v.as_text().size())) {
          return like(v, rt.text(v.as_text().substr(*i, 1)));
        }
      } else {
        rt.charge(v.as_text().size());
        const auto all = characters(v.as_text());
        if (const auto i = place(key.as_integer(), all.size())) return like(v, rt.text(all[*i]));
      }
    }
  }
  if (key.is_text()) {
    if (v.as_namespace() != nullptr || v.as_loop() != nullptr) {
      return get_attribute(rt, v, key.as_text());
    }
    if (has_method(v, key.as_text())) return JinjaValue::method(v, key.as_text());
    return JinjaValue::undefined(repr_text(v.type_name()) + " has no attribute " +
                                 repr_text(std::string_view(key.as_text()).substr(0, 80)));
  }
  return JinjaValue::undefined(
      repr_text(v.type_name()) + " has no element " +
      (key.is_integer() ? std::to_string(key.as_integer()) : "of type " + key.type_name()));
}

JinjaValue get_slice(JinjaRuntime& rt, const JinjaValue& v, const JinjaValue* begin,
                     const JinjaValue* end, const JinjaValue* step) {
  if (v.is_undefined()) rt.fail_type("", v);
  if (!is_sequence(v)) rt.fail_type("a string, list or tuple to slice", v);
  const auto bound = [&](const JinjaValue* p) -> std::optional<std::int64_t> {
    if (p == nullptr || p->is_none()) return std::nullopt;
    return expect_integer(rt, "a slice", *p);
  };
  const std::int64_t stride = bound(step).value_or(1);
  if (stride == 0) rt.fail("a slice step other than 0", "0");
  std::vector<std::string_view> chars;
  if (v.is_text()) {
    rt.charge(v.as_text().size());
    chars = characters(v.as_text());
  }
  const auto n = static_cast<std::int64_t>(v.is_text() ? chars.size() : v.as_list()->items.size());
  const std::int64_t low = stride > 0 ? 0 : -1, high = stride > 0 ? n : n - 1;
  const auto clamp = [&](std::optional<std::int64_t> at, std::int64_t otherwise) {
    if (!at) return otherwise;
    return std::clamp(*at < 0 ? *at + n : *at, low, high);
  };
  const std::int64_t from = clamp(bound(begin), stride > 0 ? low : high);
  const std::int64_t to = clamp(bound(end), stride > 0 ? high : low);
  std::vector<std::size_t> places;
  for (std::int64_t i = from; stride > 0 ? i < to : i > to;) {
    places.push_back(static_cast<std::size_t>(i));
    if (__builtin_add_overflow(i, stride, &i)) break;
  }
  if (v.is_text()) {
    std::string out;
    for (const std::size_t i : places) out += chars[i];
    return like(v, rt.text(std::move(out)));
  }
  std::vector<JinjaValue> out;
  for (const std::size_t i : places) out.push_back(v.as_list()->items[i]);
  return rt.list(std::move(out), v.as_list()->tuple);
}

JinjaValue binary(JinjaRuntime& rt, std::string_view op, const JinjaValue& a, const JinjaValue& b) {
  if (op == "~") {
    std::string out = to_text(rt, a);
    append_text(rt, out, b);
    return rt.text(std::move(out));
  }
  if (a.is_integer() && b.is_integer() && op != "/") {
    return integer_arithmetic(rt, op, a.as_integer(), b.as_integer());
  }
  if (a.is_number() && b.is_number()) return real_arithmetic(rt, op, a.as_real(), b.as_real());
  if (op == "+" && a.is_text() && b.is_text()) {
    if (a.is_safe() != b.is_safe()) {
      return a.is_safe() ? binary(rt, op, a, escaped(rt, b)) : binary(rt, op, escaped(rt, a), b);
    }
    rt.check_text(a.as_text().size() + b.as_text().size());
    return like(a, rt.text(a.as_text() + b.as_text()));
  }
  if (const auto* x = a.as_list(), *y = b.as_list();
      op == "+" && x != nullptr && y != nullptr && x->tuple == y->tuple) {
    rt.charge(x->items.size() + y->items.size());
    std::vector<JinjaValue> items = x->items;
    items.insert(items.end(), y->items.begin(), y->items.end());
    return rt.list(std::move(items), x->tuple);
  }
  if (op == "*" && is_sequence(a) && b.is_integer()) return like(a, repeat(rt, a, b.as_integer()));
  if (op == "*" && a.is_integer() && is_sequence(b)) return like(b, repeat(rt, b, a.as_integer()));
  if (op == "%" && a.is_text()) {
    rt.unsupported("~ or replace to build text", "% after a string");
  }
  if (a.is_undefined()) rt.fail_type("", a);
  if (b.is_undefined()) rt.fail_type("", b);
  rt.fail("operands that " + quote(op) + " takes", a.type_name() + " and " + b.type_name());
}

JinjaValue negated(JinjaRuntime& rt, const JinjaValue& v) {
  if (v.is_real()) return JinjaValue(-v.as_real());
  if (v.is_integer()) return integer_arithmetic(rt, "-", 0, v.as_integer());
  rt.fail_type("a number after \"-\"", v);
}

}  // namespace lathe
