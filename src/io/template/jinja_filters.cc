// Jinja's filters, and Hugging Face's tojson.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "io/template/jinja_runtime.h"
#include "io/text/python_text.h"
#include "io/text/quote.h"

namespace lathe {
namespace {

using Value = JinjaValue;
using Values = std::vector<JinjaValue>;

bool flag(const std::optional<Value>& v, bool otherwise) { return v ? truthy(*v) : otherwise; }

// Resolves "a.b" or "0.x" level by level, like map(attribute=...). A `fallback` replaces undefined
// values at every level.
Value dotted(JinjaRuntime& rt, Value v, const Value& path, const Value* fallback = nullptr) {
  const auto step = [&](const Value& key) {
    v = get_item(rt, v, key);
    if (v.is_undefined() && fallback != nullptr && !fallback->is_none()) v = *fallback;
  };
  if (path.is_integer()) {
    step(path);
    return v;
  }
  for (const std::string_view part :
       split_text(expect_text(rt, "attribute", path), std::string_view("."), -1)) {
    std::int64_t index = 0;
    const auto r = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number = r.ec == std::errc() && r.ptr == part.data() + part.size();
    step(number ? Value(index) : Value(std::string(part)));
  }
  return v;
}

// The items that map, select and similar filters visit: none if v is falsy.
Values selectable(JinjaRuntime& rt, const Value& v) {
  return truthy(v) ? iterate(rt, v) : Values{};
}

// The key that sort, min, max and unique compare: the attribute if any, in lower case unless
// case-sensitive.
Value sort_key(JinjaRuntime& rt, const Value& v, const std::optional<Value>& attribute,
               bool case_sensitive) {
  Value key = attribute && !attribute->is_none() ? dotted(rt, v, *attribute) : v;
  if (!case_sensitive && key.is_text()) return rt.text(to_lower(key.as_text()));
  return key;
}

// --- text ---
Value upper(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  bind_args(rt, "upper", args, {});
  return rt.text(to_upper(to_text(rt, v)));
}
Value lower(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  bind_args(rt, "lower", args, {});
  return rt.text(to_lower(to_text(rt, v)));
}
Value capitalized(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  bind_args(rt, "capitalize", args, {});
  // Unlike str.capitalize(), the first letter becomes upper case, not title case.
  const std::string s = to_text(rt, v);
  return rt.text(capitalize(s));
}
// Unlike str.title(), words end at space, "-" and opening brackets only.
Value title(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  bind_args(rt, "title", args, {});
  const std::string s = to_text(rt, v);
  std::string out;
  bool start = true;
  for (const std::string_view c : characters(s)) {
    const bool gap =
        trim_start(c).empty() || c == "-" || c == "(" || c == "{" || c == "[" || c == "<";
    out += gap ? std::string(c) : start ? to_upper(c) : to_lower(c);
    start = gap;
  }
  return rt.text(std::move(out));
}
Value trim(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  const auto a = bind_args(rt, "trim", args, {"chars"});
  const std::string s = to_text(rt, v);
  std::optional<std::string_view> chars;
  if (a[0] && !a[0]->is_none()) chars = expect_text(rt, "trim", *a[0]);
  return rt.text(trim_end(trim_start(s, chars), chars));
}
Value string(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  bind_args(rt, "string", args, {});
  return v.is_text() ? v : rt.text(to_text(rt, v));
}
// Chat templates do not escape output, but "+" escapes what it appends to a safe text.
Value safe(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  return Value::safe(string(rt, v, args));
}

Value replace(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  auto a = bind_args(rt, "replace", args, {"old", "new", "count"}, 2);
  JinjaArgs method;
  method.positional = {rt.text(to_text(rt, *a[0])), rt.text(to_text(rt, *a[1]))};
  if (a[2] && !a[2]->is_none()) method.positional.push_back(*a[2]);
  return call_function(rt, {rt.text(to_text(rt, v)), "replace"}, method);
}
Value indent(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  const auto a = bind_args(rt, "indent", args, {"width", "first", "blank"});
  std::string pad(4, ' ');
  if (a[0] && a[0]->is_text()) {
    pad = a[0]->as_text();
  } else if (a[0]) {
    const std::int64_t n = std::max<std::int64_t>(expect_integer(rt, "indent", *a[0]), 0);
    rt.check_text(static_cast<std::size_t>(n));
    pad.assign(static_cast<std::size_t>(n), ' ');
  }
  const bool blank = flag(a[2], false);
  // Append a line end, so that splitting keeps an empty last line.
  const std::string s = expect_text(rt, "indent", v) + "\n";
  std::string out;
  bool first = true;
  rt.charge_bytes(s.size());
  for (const std::string_view line : split_lines(s)) {
    rt.charge(1);
    rt.check_text(out.size() + pad.size() + line.size() + 1);
    if (!first) out += '\n';
    if (first ? flag(a[1], false) : blank || !line.empty()) out += pad;
    out += line;
    first = false;
  }
  return rt.text(std::move(out));
}
Value tojson(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  const auto a =
      bind_args(rt, "tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JinjaJsonStyle style;
  style.ensure_ascii = flag(a[0], false);
  style.sort_keys = flag(a[3], false);
  if (a[1] && !a[1]->is_none()) {
    style.lines = true;
    style.item_separator = ",";
    if (a[1]->is_text()) {
      style.indent = a[1]->as_text();
    } else {
      const std::int64_t n = std::max<std::int64_t>(expect_integer(rt, "indent", *a[1]), 0);
      rt.check_text(static_cast<std::size_t>(n));
      style.indent.assign(static_cast<std::size_t>(n), ' ');
    }
  }
  if (a[2] && !a[2]->is_none()) {
    const Values two = iterate(rt, *a[2]);
    if (two.size() != 2) rt.fail("two separators", std::to_string(two.size()));
    style.item_separator = expect_text(rt, "separators", two[0]);
    style.key_separator = expect_text(rt, "separators", two[1]);
  }
  return rt.text(to_json(rt, v, style));
}

// --- numbers ---
Value absolute(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  bind_args(rt, "abs", args, {});
  if (v.is_real()) return Value(std::fabs(v.as_real()));
  if (!v.is_integer()) rt.fail_type("a number for abs", v);
  return v.as_integer() < 0 ? negated(rt, v) : Value(v.as_integer());
}
std::string number_digits(std::string_view s) {
  s = trim_end(trim_start(s));
  if (s.starts_with('+') && !s.substr(1).starts_with('-')) s.remove_prefix(1);
  std::string out;
  for (std::size_t i = 0; i < s.size(); ++i) {
    const bool between = i > 0 && i + 1 < s.size() &&
                         std::isdigit(static_cast<unsigned char>(s[i - 1])) &&
                         std::isdigit(static_cast<unsigned char>(s[i + 1]));
    if (s[i] != '_' || !between) out += s[i];
  }
  return out;
}
std::optional<double> parse_real(std::string_view text) {
  const std::string s = number_digits(text);
  double r = 0;
  const auto end = s.data() + s.size();
  const auto parsed = std::from_chars(s.data(), end, r);
  // Out of range: infinity or zero, as in Python.
  if (parsed.ptr != end || s.empty()) return std::nullopt;
  if (parsed.ec == std::errc::result_out_of_range) return std::strtod(s.c_str(), nullptr);
  if (parsed.ec != std::errc()) return std::nullopt;
  return r;
}
std::optional<Value> whole(JinjaRuntime& rt, double v) {
  if (!std::isfinite(v)) return std::nullopt;
  if (std::fabs(v) >= 9.2e18) rt.unsupported("integers of 64 bits", "a larger one");
  return Value(static_cast<std::int64_t>(v));
}
Value to_integer(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  const auto a = bind_args(rt, "int", args, {"default", "base"});
  const Value otherwise = a[0].value_or(Value(std::int64_t{0}));
  if (v.is_undefined()) rt.fail_type("", v);
  if (v.is_integer()) return Value(v.as_integer());
  if (v.is_real()) return whole(rt, v.as_real()).value_or(otherwise);
  if (!v.is_text()) return otherwise;
  rt.charge_bytes(v.as_text().size());
  std::int64_t base = a[1] ? expect_integer(rt, "base", *a[1]) : 10;
  if (base < 2 || base > 36) rt.unsupported("a base from 2 to 36", std::to_string(base));
  std::string s = number_digits(v.as_text());
  const std::size_t sign = s.starts_with('-') ? 1 : 0;
  const char letter = base == 16 ? 'x' : base == 8 ? 'o' : base == 2 ? 'b' : '\0';
  if (letter != '\0' && s.size() > sign + 2 && s[sign] == '0' && (s[sign + 1] | 0x20) == letter) {
    s.erase(sign, 2);
  }
  std::int64_t r = 0;
  const auto parsed = std::from_chars(s.data(), s.data() + s.size(), r, static_cast<int>(base));
  if (parsed.ptr == s.data() + s.size() && !s.empty()) {
    if (parsed.ec == std::errc()) return Value(r);
    if (parsed.ec == std::errc::result_out_of_range) {
      rt.unsupported("integers of 64 bits", quote(v.as_text(), 30));
    }
  }
  if (const auto real = parse_real(v.as_text())) return whole(rt, *real).value_or(otherwise);
  return otherwise;
}
Value to_real(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  const auto a = bind_args(rt, "float", args, {"default"});
  if (v.is_undefined()) rt.fail_type("", v);
  if (v.is_number()) return Value(v.as_real());
  if (v.is_text()) {
    rt.charge_bytes(v.as_text().size());
    if (const auto real = parse_real(v.as_text())) return Value(*real);
  }
  return a[0].value_or(Value(0.0));
}
Value round(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  const auto a = bind_args(rt, "round", args, {"precision", "method"});
  const std::int64_t precision = a[0] ? expect_integer(rt, "precision", *a[0]) : 0;
  const std::string method = a[1] ? expect_text(rt, "method", *a[1]) : "common";
  if (!v.is_number()) rt.fail_type("a number for round", v);
  if (precision < 0 || precision > 300) {
    rt.unsupported("a precision from 0 to 300", std::to_string(precision));
  }
  if (method == "common") {
    if (v.is_integer()) return Value(v.as_integer());
    // Both printf and Python round the exact decimal value, ties to even.
    std::array<char, 700> text{};
    std::snprintf(text.data(), text.size(), "%.*f", static_cast<int>(precision), v.as_real());
    return Value(std::strtod(text.data(), nullptr));
  }
  if (method != "ceil" && method != "floor") {
    rt.fail("common, ceil or floor", quote(method));
  }
  const double power = std::pow(10.0, static_cast<double>(precision));
  const double scaled = v.as_real() * power;
  return Value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / power);
}

// --- lists ---
Value count(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  bind_args(rt, "length", args, {});
  return Value(length(rt, v));
}
Value first(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  bind_args(rt, "first", args, {});
  const Values items = iterate(rt, v);
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}
Value last(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  bind_args(rt, "last", args, {});
  const Values items = iterate(rt, v);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}
Value join(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  const auto a = bind_args(rt, "join", args, {"d", "attribute"});
  const std::string separator = a[0] ? to_text(rt, *a[0]) : "";
  std::string out;
  bool first_item = true;
  for (const Value& item : iterate(rt, v)) {
    rt.check_text(out.size() + separator.size());
    rt.charge_bytes(separator.size());
    if (!first_item) out += separator;
    first_item = false;
    append_text(rt, out, a[1] && !a[1]->is_none() ? dotted(rt, item, *a[1]) : item);
  }
  return rt.text(std::move(out));
}
Value list(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  bind_args(rt, "list", args, {});
  return rt.list(iterate(rt, v));
}
Value items(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  bind_args(rt, "items", args, {});
  if (v.is_undefined()) return rt.list({});
  if (v.as_dict() == nullptr) rt.fail_type("a dict for items", v);
  return call_function(rt, {v, "items"}, {});
}
Value default_value(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  const auto a = bind_args(rt, "default", args, {"default_value", "boolean"});
  if (v.is_undefined() || (flag(a[1], false) && !truthy(v))) {
    return a[0] ? *a[0] : rt.text(std::string());
  }
  return v;
}
Value reverse(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  bind_args(rt, "reverse", args, {});
  if (v.is_text()) {
    const Value step(std::int64_t{-1});
    return get_slice(rt, v, nullptr, nullptr, &step);
  }
  Values all = iterate(rt, v);
  std::ranges::reverse(all);
  return rt.list(std::move(all));
}

struct Keyed {
  Value key;
  Value value;
};
Values sorted(JinjaRuntime& rt, std::vector<Keyed> all, bool descending) {
  // Equal items keep their order, even if the order is reversed.
  std::ranges::stable_sort(all, [&](const Keyed& x, const Keyed& y) {
    return descending ? less(rt, y.key, x.key) : less(rt, x.key, y.key);
  });
  Values out;
  for (Keyed& k : all) out.push_back(std::move(k.value));
  return out;
}
Value sort(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  const auto a = bind_args(rt, "sort", args, {"reverse", "case_sensitive", "attribute"});
  std::vector<Keyed> all;
  for (Value& item : iterate(rt, v)) {
    if (a[2] && a[2]->is_text() && a[2]->as_text().find(',') != std::string::npos) {
      Values keys;
      for (const std::string_view part : split_text(a[2]->as_text(), std::string_view(","), -1)) {
        keys.push_back(sort_key(rt, item, rt.text(part), flag(a[1], false)));
      }
      all.push_back({rt.list(std::move(keys)), item});
    } else {
      Value key = sort_key(rt, item, a[2], flag(a[1], false));
      all.push_back({std::move(key), item});
    }
  }
  return rt.list(sorted(rt, std::move(all), flag(a[0], false)));
}
Value dictsort(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  const auto a = bind_args(rt, "dictsort", args, {"case_sensitive", "by", "reverse"});
  const std::string by = a[1] ? expect_text(rt, "by", *a[1]) : "key";
  if (by != "key" && by != "value") rt.fail("by key or value", quote(by));
  if (v.is_undefined()) rt.fail_type("", v);
  std::vector<Keyed> all;
  for (const Value& pair : iterate(rt, items(rt, v, {}))) {
    const Value& key = pair.as_list()->items[by == "key" ? 0 : 1];
    all.push_back({sort_key(rt, key, std::nullopt, flag(a[0], false)), pair});
  }
  return rt.list(sorted(rt, std::move(all), flag(a[2], false)));
}
Value unique(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  const auto a = bind_args(rt, "unique", args, {"case_sensitive", "attribute"});
  Values seen, out;
  for (const Value& item : iterate(rt, v)) {
    Value key = sort_key(rt, item, a[1], flag(a[0], false));
    if (std::ranges::any_of(seen, [&](const Value& s) { return equal(rt, s, key); })) continue;
    seen.push_back(std::move(key));
    out.push_back(item);
  }
  return rt.list(std::move(out));
}
Value extreme(JinjaRuntime& rt, const Value& v, const JinjaArgs& args, const char* name,
              bool largest) {
  const auto a = bind_args(rt, name, args, {"case_sensitive", "attribute"});
  Value best = Value::undefined("No aggregated item, sequence was empty.");
  std::optional<Value> best_key;
  for (const Value& item : iterate(rt, v)) {
    Value key = sort_key(rt, item, a[1], flag(a[0], false));
    if (best_key && !(largest ? less(rt, *best_key, key) : less(rt, key, *best_key))) continue;
    best_key = std::move(key);
    best = item;
  }
  return best;
}
Value min(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  return extreme(rt, v, args, "min", false);
}
Value max(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  return extreme(rt, v, args, "max", true);
}
Value sum(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  const auto a = bind_args(rt, "sum", args, {"attribute", "start"});
  Value total = a[1].value_or(Value(std::int64_t{0}));
  for (const Value& item : iterate(rt, v)) {
    total = binary(rt, "+", total, a[0] && !a[0]->is_none() ? dotted(rt, item, *a[0]) : item);
  }
  return total;
}

// The arguments after the first `skip`.
JinjaArgs rest_of(const JinjaArgs& args, std::size_t skip) {
  JinjaArgs rest;
  rest.positional.assign(args.positional.begin() + static_cast<std::ptrdiff_t>(skip),
                         args.positional.end());
  rest.named = args.named;
  return rest;
}
Value map(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  Values out;
  if (args.positional.empty()) {
    const auto a = bind_args(rt, "map", args, {"attribute", "default"}, 1);
    for (const Value& item : selectable(rt, v)) {
      out.push_back(dotted(rt, item, *a[0], a[1] ? &*a[1] : nullptr));
    }
    return rt.list(std::move(out));
  }
  const std::string& name = expect_text(rt, "map", args.positional[0]);
  const JinjaArgs rest = rest_of(args, 1);
  for (const Value& item : selectable(rt, v)) out.push_back(apply_filter(rt, name, item, rest));
  return rt.list(std::move(out));
}
// select, reject, selectattr, rejectattr: [attribute,] test, the test's arguments.
Value filtered(JinjaRuntime& rt, const Value& v, const JinjaArgs& args, bool by_attribute,
               bool wanted) {
  const std::size_t skip = by_attribute ? 1 : 0;
  if (args.positional.size() < skip) rt.fail("an attribute", "none");
  const bool has_test = args.positional.size() > skip;
  const std::string test = has_test ? expect_text(rt, "a test", args.positional[skip]) : "";
  const JinjaArgs rest = has_test ? rest_of(args, skip + 1) : JinjaArgs{};
  Values out;
  for (const Value& item : selectable(rt, v)) {
    const Value subject = by_attribute ? dotted(rt, item, args.positional[0]) : item;
    if ((has_test ? apply_test(rt, test, subject, rest) : truthy(subject)) == wanted) {
      out.push_back(item);
    }
  }
  return rt.list(std::move(out));
}
Value select(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  return filtered(rt, v, args, false, true);
}
Value reject(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  return filtered(rt, v, args, false, false);
}
Value selectattr(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  return filtered(rt, v, args, true, true);
}
Value rejectattr(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  return filtered(rt, v, args, true, false);
}
Value attr(JinjaRuntime& rt, const Value& v, const JinjaArgs& args) {
  const auto a = bind_args(rt, "attr", args, {"name"}, 1);
  const std::string& name = expect_text(rt, "attr", *a[0]);
  // Attributes only, which a dict's keys are not.
  if (v.as_dict() != nullptr && !has_method(v, name)) {
    return Value::undefined("'dict object' has no attribute " + repr_text(name));
  }
  return get_attribute(rt, v, name);
}

struct Filter {
  std::string_view name;
  Value (*apply)(JinjaRuntime&, const Value&, const JinjaArgs&);
};
constexpr Filter kFilters[] = {
    {"abs", absolute},
    {"attr", attr},
    {"capitalize", capitalized},
    {"count", count},
    {"d", default_value},
    {"default", default_value},
    {"dictsort", dictsort},
    {"first", first},
    {"float", to_real},
    {"indent", indent},
    {"int", to_integer},
    {"items", items},
    {"join", join},
    {"last", last},
    {"length", count},
    {"list", list},
    {"lower", lower},
    {"map", map},
    {"max", max},
    {"min", min},
    {"reject", reject},
    {"rejectattr", rejectattr},
    {"replace", replace},
    {"reverse", reverse},
    {"round", round},
    {"safe", safe},
    {"select", select},
    {"selectattr", selectattr},
    {"sort", sort},
    {"string", string},
    {"sum", sum},
    {"title", title},
    {"tojson", tojson},
    {"trim", trim},
    {"unique", unique},
    {"upper", upper},
};

// Other filters turn a safe text into a plain one, or return the value unchanged.
constexpr std::string_view kKeepSafe[] = {"capitalize", "indent", "last", "lower", "trim", "upper"};

}  // namespace

JinjaValue apply_filter(JinjaRuntime& rt, const std::string& name, const JinjaValue& v,
                        const JinjaArgs& args) {
  rt.charge(1);
  const auto* const f = std::ranges::find(kFilters, std::string_view(name), &Filter::name);
  if (f != std::end(kFilters)) {
    const bool stays_safe =
        v.is_safe() && std::ranges::find(kKeepSafe, name) != std::end(kKeepSafe);
    Value out = f->apply(rt, v, args);
    return stays_safe ? Value::safe(std::move(out)) : out;
  }
  std::string known;
  for (const Filter& k : kFilters) known += (known.empty() ? "" : ", ") + std::string(k.name);
  rt.unsupported("a filter of " + known, quote(name));
}

}  // namespace lathe
