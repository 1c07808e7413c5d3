// Methods of Python's str, dict and list, and global functions.
#include <algorithm>
#include <array>

#include "io/template/jinja_runtime.h"
#include "io/text/python_text.h"
#include "io/text/quote.h"

namespace lathe {
namespace {

using Value = JinjaValue;

constexpr std::string_view kTextMethods[] = {
    "capitalize", "count", "endswith", "find", "index", "isalpha", "isdigit", "islower", "isspace",
    "isupper", "join", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace",
    "rfind", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip",
    "title", "upper",
    // Known methods that are rejected when called.
    "casefold", "center", "encode", "expandtabs", "format", "format_map", "isalnum", "isascii",
    "isdecimal", "isidentifier", "isnumeric", "isprintable", "istitle", "ljust", "maketrans",
    "rindex", "rjust", "swapcase", "translate", "zfill"};
constexpr std::string_view kDictMethods[] = {"copy", "get", "items", "keys", "values",
                                             // A template cannot change its input.
                                             "clear", "fromkeys", "pop", "popitem", "setdefault",
                                             "update"};
constexpr std::string_view kListMethods[] = {"copy",   "count",   "index",  "append",
                                             "clear",  "extend",  "insert", "pop",
                                             "remove", "reverse", "sort"};
constexpr std::string_view kGlobals[] = {"range", "namespace", "dict", "raise_exception",
                                         "strftime_now"};

std::optional<std::string_view> strip_chars(JinjaRuntime& rt, const std::optional<Value>& v) {
  if (!v || v->is_none()) return std::nullopt;
  return std::string_view(expect_text(rt, "strip", *v));
}

bool has_affix(JinjaRuntime& rt, const std::string& name, const std::string& s, const Value& v) {
  if (const auto* l = v.as_list(); l != nullptr && l->tuple) {
    return std::ranges::any_of(l->items, [&](const Value& i) { return has_affix(rt, name, s, i); });
  }
  const std::string& affix = expect_text(rt, name, v);
  return name == "startswith" ? s.starts_with(affix) : s.ends_with(affix);
}

Value replaced(JinjaRuntime& rt, const std::string& s, const std::string& from,
               const std::string& to, std::int64_t max) {
  std::string out;
  std::size_t at = 0;
  std::int64_t done = 0;
  const auto grow = [&](std::string_view piece) {
    rt.check_text(out.size() + piece.size());
    out += piece;
  };
  if (from.empty()) {  // before every character and at the end
    rt.charge(s.size());
    for (const std::string_view c : characters(s)) {
      if (max < 0 || done++ < max) grow(to);
      grow(c);
    }
    if (max < 0 || done < max) grow(to);
    return rt.text(std::move(out));
  }
  while (max < 0 || done < max) {
    const std::size_t found = s.find(from, at);
    if (found == std::string::npos) break;
    grow(std::string_view(s).substr(at, found - at));
    grow(to);
    at = found + from.size();
    ++done;
  }
  grow(std::string_view(s).substr(at));
  return rt.text(std::move(out));
}

// find, rfind, index, count: [start, end) in characters; positions count characters too.
Value searched(JinjaRuntime& rt, const std::string& name, const Value& self,
               const JinjaArgs& args) {
  const auto a = bind_args(rt, name, args, {"sub", "start", "end"}, 1);
  const std::string& sub = expect_text(rt, name, *a[0]);
  Value whole = self;
  std::int64_t shift = 0;
  if (a[1] || a[2]) {
    whole = get_slice(rt, self, a[1] ? &*a[1] : nullptr, a[2] ? &*a[2] : nullptr, nullptr);
    if (a[1] && !a[1]->is_none()) {
      const std::int64_t n = length(rt, self), at = a[1]->as_integer();
      shift = std::max<std::int64_t>(at < 0 ? at + n : at, 0);
    }
  }
  const std::string& s = whole.as_text();
  rt.charge_bytes(s.size());
  if (name == "count") {
    if (sub.empty()) return Value(length(rt, whole) + 1);
    std::int64_t n = 0;
    for (std::size_t at = 0; (at = s.find(sub, at)) != std::string::npos; at += sub.size()) ++n;
    return Value(n);
  }
  const std::size_t at = name == "rfind" ? s.rfind(sub) : s.find(sub);
  if (at == std::string::npos) {
    if (name == "index") rt.fail("a string that holds " + quote(sub, 30), quote(s, 30));
    return Value(std::int64_t{-1});
  }
  return Value(shift + count_characters(std::string_view(s).substr(0, at)));
}

Value split(JinjaRuntime& rt, const std::string& name, const std::string& s,
            const JinjaArgs& args) {
  const auto a = bind_args(rt, name, args, {"sep", "maxsplit"});
  std::optional<std::string_view> separator;
  if (a[0] && !a[0]->is_none()) separator = expect_text(rt, name, *a[0]);
  if (separator && separator->empty()) rt.fail("a separator", "an empty string");
  const std::int64_t max = a[1] ? expect_integer(rt, name, *a[1]) : -1;
  return rt.texts(split_text(s, separator, max, name == "rsplit"));
}

Value partition(JinjaRuntime& rt, const std::string& name, const std::string& s,
                const JinjaArgs& args) {
  const auto a = bind_args(rt, name, args, {"sep"}, 1);
  const std::string& separator = expect_text(rt, name, *a[0]);
  if (separator.empty()) rt.fail("a separator", "an empty string");
  const bool right = name == "rpartition";
  const std::size_t at = right ? s.rfind(separator) : s.find(separator);
  const std::string none;
  if (at == std::string::npos) {
    return rt.list({rt.text(right ? none : s), rt.text(none), rt.text(right ? s : none)}, true);
  }
  return rt.list(
      {rt.text(s.substr(0, at)), rt.text(separator), rt.text(s.substr(at + separator.size()))},
      true);
}

Value joined(JinjaRuntime& rt, const std::string& separator, const JinjaArgs& args) {
  const auto a = bind_args(rt, "join", args, {"iterable"}, 1);
  std::string out;
  bool first = true;
  for (const Value& item : iterate(rt, *a[0])) {
    const std::string& s = expect_text(rt, "join", item);
    rt.check_text(out.size() + separator.size() + s.size());
    rt.charge_bytes(separator.size());
    if (!first) out += separator;
    first = false;
    out += s;
  }
  return rt.text(std::move(out));
}

// isdigit and similar: true for all characters, and at least one.
Value classified(JinjaRuntime& rt, const std::string& name, const std::string& s) {
  if (name == "isspace") return Value(!s.empty() && trim_start(s).empty());
  if (name == "islower" || name == "isupper") {
    return Value(apply_test(rt, name.substr(2), Value(s), {}));
  }
  if (!is_ascii(s)) rt.unsupported("ASCII text for " + name, quote(s, 30));
  return Value(!s.empty() && std::ranges::all_of(s, [&](char c) {
    return name == "isdigit" ? c >= '0' && c <= '9' : (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
  }));
}

Value call_text(JinjaRuntime& rt, const std::string& name, const Value& self,
                const JinjaArgs& args) {
  const std::string& s = self.as_text();
  rt.charge_bytes(s.size());
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const auto a = bind_args(rt, name, args, {"chars"});
    const auto chars = strip_chars(rt, a[0]);
    std::string_view out = s;
    if (name != "rstrip") out = trim_start(out, chars);
    if (name != "lstrip") out = trim_end(out, chars);
    return rt.text(out);
  }
  if (name == "split" || name == "rsplit") return split(rt, name, s, args);
  if (name == "partition" || name == "rpartition") return partition(rt, name, s, args);
  if (name == "join") return joined(rt, s, args);
  if (name == "startswith" || name == "endswith") {
    const auto a = bind_args(rt, name, args, {"prefix"}, 1);
    return Value(has_affix(rt, name, s, *a[0]));
  }
  if (name == "removeprefix" || name == "removesuffix") {
    const auto a = bind_args(rt, name, args, {"affix"}, 1);
    const std::string& affix = expect_text(rt, name, *a[0]);
    if (name == "removeprefix" ? !s.starts_with(affix) : !s.ends_with(affix)) return self;
    return rt.text(std::string_view(s).substr(name == "removeprefix" ? affix.size() : 0,
                                              s.size() - affix.size()));
  }
  if (name == "replace") {
    const auto a = bind_args(rt, name, args, {"old", "new", "count"}, 2);
    return replaced(rt, s, expect_text(rt, name, *a[0]), expect_text(rt, name, *a[1]),
                    a[2] ? expect_integer(rt, name, *a[2]) : -1);
  }
  if (name == "find" || name == "rfind" || name == "index" || name == "count") {
    return searched(rt, name, self, args);
  }
  if (name == "splitlines") {
    bind_args(rt, name, args, {});
    return rt.texts(split_lines(s));
  }
  const std::pair<std::string_view, std::string (*)(std::string_view)> cases[] = {
      {"upper", to_upper}, {"lower", to_lower}, {"title", to_title}, {"capitalize", capitalize}};
  for (const auto& [word, change] : cases) {
    if (name != word) continue;
    bind_args(rt, name, args, {});
    return rt.text(change(s));
  }
  if (name == "isspace" || name == "isdigit" || name == "isalpha" || name == "islower" ||
      name == "isupper") {
    bind_args(rt, name, args, {});
    return classified(rt, name, s);
  }
  rt.unsupported("a str method that chat templates use", quote(name));
}

Value call_dict(JinjaRuntime& rt, const std::string& name, const Value& self,
                const JinjaArgs& args) {
  const JinjaDict& d = *self.as_dict();
  rt.charge(d.items.size());
  if (name == "get") {
    const auto a = bind_args(rt, name, args, {"key", "default"}, 1);
    for (const auto& [key, value] : d.items) {
      if (equal(rt, key, *a[0])) return value;
    }
    return a[1].value_or(Value::none());
  }
  if (name == "items" || name == "keys" || name == "values") {
    bind_args(rt, name, args, {});
    std::vector<Value> out;
    for (const auto& [key, value] : d.items) {
      out.push_back(name == "keys" ? key : name == "values" ? value : rt.list({key, value}, true));
    }
    return rt.list(std::move(out));
  }
  if (name == "copy") return self;
  rt.unsupported("a dict method that changes nothing", quote(name));
}

// Rejects methods of safe texts that escape their arguments or return lists of safe texts; no chat
// template calls them.
Value call_safe_text(JinjaRuntime& rt, const std::string& name, const Value& self,
                     const JinjaArgs& args) {
  constexpr std::string_view kRefused[] = {"join",   "partition", "replace",   "rpartition",
                                           "rsplit", "split",     "splitlines"};
  if (std::ranges::find(kRefused, name) != std::end(kRefused)) {
    rt.unsupported("this method before the filter safe", quote(name));
  }
  return Value::safe(call_text(rt, name, self, args));
}

Value call_list(JinjaRuntime& rt, const std::string& name, const Value& self,
                const JinjaArgs& args) {
  const JinjaList& l = *self.as_list();
  if (name == "copy") return self;
  if (name == "index" || name == "count") {
    const auto a = bind_args(rt, name, args, {"value"}, 1);
    std::int64_t n = 0;
    for (std::size_t i = 0; i < l.items.size(); ++i) {
      if (!equal(rt, l.items[i], *a[0])) continue;
      if (name == "index") return Value(static_cast<std::int64_t>(i));
      ++n;
    }
    if (name == "index") rt.fail("a list that holds the value", "none of its items");
    return Value(n);
  }
  rt.unsupported("a list method that changes nothing", quote(name));
}

Value range(JinjaRuntime& rt, const JinjaArgs& args) {
  const auto a = bind_args(rt, "range", args, {"start", "stop", "step"}, 1);
  const std::int64_t begin = a[1] ? expect_integer(rt, "range", *a[0]) : 0;
  const std::int64_t end = expect_integer(rt, "range", a[1] ? *a[1] : *a[0]);
  const std::int64_t step = a[2] ? expect_integer(rt, "range", *a[2]) : 1;
  if (step == 0) rt.fail("a step other than 0", "0");
  std::vector<Value> out;
  for (std::int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (out.size() >= 100'000) rt.fail("a range of at most 100000 items", "more");
    out.push_back(Value(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return rt.list(std::move(out));
}

// The arguments of dict() and namespace(): a dict, and keywords.
std::vector<std::pair<std::string, Value>> attributes(JinjaRuntime& rt, const JinjaArgs& args) {
  if (args.positional.size() > 1) rt.fail("one dict", "more arguments");
  std::vector<std::pair<std::string, Value>> out;
  if (!args.positional.empty()) {
    const JinjaDict* d = args.positional[0].as_dict();
    if (d == nullptr) rt.fail_type("a dict", args.positional[0]);
    rt.charge(d->items.size());
    for (const auto& [key, value] : d->items) {
      out.emplace_back(expect_text(rt, "a key", key), value);
    }
  }
  for (const auto& [key, value] : args.named) {
    const auto it = std::ranges::find(out, key, &std::pair<std::string, Value>::first);
    rt.charge(out.size());
    if (it != out.end()) {
      it->second = value;
    } else {
      out.emplace_back(key, value);
    }
  }
  return out;
}

Value call_global(JinjaRuntime& rt, const std::string& name, const JinjaArgs& args) {
  if (name == "range") return range(rt, args);
  if (name == "namespace") {
    JinjaNamespace* n = rt.new_namespace();
    n->attributes = attributes(rt, args);
    return Value(n);
  }
  if (name == "dict") {
    std::vector<std::pair<Value, Value>> items;
    for (auto& [key, value] : attributes(rt, args)) items.emplace_back(Value(key), value);
    return rt.dict(std::move(items));
  }
  if (name == "raise_exception") {
    const auto a = bind_args(rt, name, args, {"message"}, 1);
    const std::string message = to_text(rt, *a[0]);
    fail_jinja(ErrorCode::invalid_argument, rt.line, "a conversation that the template takes",
               quote(message, 300));
  }
  const auto a = bind_args(rt, name, args, {"format"}, 1);
  const std::string& format = expect_text(rt, name, *a[0]);
  if (format.size() > 200) rt.unsupported("a format of at most 200 bytes", "more");
  // strftime returns 0 both for a full buffer and for an empty text; append a space to tell them
  // apart.
  std::array<char, 8192> text{};
  const std::size_t n = std::strftime(text.data(), text.size(), (format + " ").c_str(), &rt.now());
  if (n == 0) rt.unsupported("a date of at most 8000 bytes", "more");
  return rt.text(std::string(text.data(), n - 1));
}

}  // namespace

bool has_method(const JinjaValue& v, std::string_view name) {
  const auto among = [&](const auto& names) {
    return std::ranges::find(names, name) != std::end(names);
  };
  if (v.is_text()) return among(kTextMethods);
  if (v.as_dict() != nullptr) return among(kDictMethods);
  if (const auto* l = v.as_list()) {
    return l->tuple ? name == "index" || name == "count" : among(kListMethods);
  }
  return false;
}

bool is_global_function(std::string_view name) {
  return std::ranges::find(kGlobals, name) != std::end(kGlobals);
}

JinjaValue call_function(JinjaRuntime& rt, const JinjaFunction& f, const JinjaArgs& args) {
  rt.charge(1);
  if (f.self.is_safe()) return call_safe_text(rt, f.name, f.self, args);
  if (f.self.is_text()) return call_text(rt, f.name, f.self, args);
  if (f.self.as_dict() != nullptr) return call_dict(rt, f.name, f.self, args);
  if (f.self.as_list() != nullptr) return call_list(rt, f.name, f.self, args);
  if (const auto* loop = f.self.as_loop()) {
    if (args.positional.empty()) rt.fail("items to cycle through", "none");
    return args.positional[loop->index % args.positional.size()];
  }
  return call_global(rt, f.name, args);
}

}  // namespace lathe
