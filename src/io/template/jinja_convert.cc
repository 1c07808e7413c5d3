// str(), repr() and json.dumps() of values.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "io/template/jinja_runtime.h"
#include "io/text/python_text.h"

namespace lathe {
namespace {

void append_repr(JinjaRuntime& rt, std::string& out, const JinjaValue& v, int depth);

void append_list(JinjaRuntime& rt, std::string& out, const JinjaList& l, int depth) {
  out += l.tuple ? '(' : '[';
  for (std::size_t i = 0; i < l.items.size(); ++i) {
    if (i > 0) out += ", ";
    append_repr(rt, out, l.items[i], depth + 1);
  }
  if (l.tuple && l.items.size() == 1) out += ',';
  out += l.tuple ? ')' : ']';
}

void append_repr(JinjaRuntime& rt, std::string& out, const JinjaValue& v, int depth) {
  rt.charge(1);
  rt.check_text(out.size());
  // The depth of values is bounded, but a namespace may contain itself.
  if (depth > 2 * kMaxJinjaDepth) rt.unsupported("a value that can be printed", "a cycle");
  if (v.is_undefined()) {
    out += "Undefined";
  } else if (v.is_text()) {
    rt.charge_bytes(4 * v.as_text().size());
    out += v.is_safe() ? "Markup(" + repr_text(v.as_text()) + ")" : repr_text(v.as_text());
  } else if (const auto* l = v.as_list()) {
    append_list(rt, out, *l, depth);
  } else if (const auto* d = v.as_dict()) {
    out += '{';
    for (std::size_t i = 0; i < d->items.size(); ++i) {
      if (i > 0) out += ", ";
      append_repr(rt, out, d->items[i].first, depth + 1);
      out += ": ";
      append_repr(rt, out, d->items[i].second, depth + 1);
    }
    out += '}';
  } else if (const auto* n = v.as_namespace()) {
    out += "<Namespace {";
    for (std::size_t i = 0; i < n->attributes.size(); ++i) {
      if (i > 0) out += ", ";
      out += repr_text(n->attributes[i].first) + ": ";
      append_repr(rt, out, n->attributes[i].second, depth + 1);
    }
    out += "}>";
  } else if (v.is_none()) {
    out += "None";
  } else if (v.is<bool>()) {
    out += v.as_bool() ? "True" : "False";
  } else if (v.is_integer()) {
    out += std::to_string(v.as_integer());
  } else if (v.digits() != nullptr) {
    out += *v.digits();
  } else if (v.is<double>()) {
    out += repr_real(v.as_real());
  } else {
    rt.unsupported("a value that can be printed", "a " + v.type_name());
  }
}

void append_json(JinjaRuntime& rt, std::string& out, const JinjaValue& v,
                 const JinjaJsonStyle& style, int level) {
  rt.charge(1);
  rt.check_text(out.size());
  const auto new_line = [&](int at) {
    if (!style.lines) return;
    rt.check_text(out.size() + style.indent.size() * static_cast<std::size_t>(at));
    out += '\n';
    for (int i = 0; i < at; ++i) out += style.indent;
  };
  if (v.is_text()) {
    rt.charge_bytes(2 * v.as_text().size());
    out += json_text(v.as_text(), style.ensure_ascii);
  } else if (v.is_none()) {
    out += "null";
  } else if (v.is<bool>()) {
    out += v.as_bool() ? "true" : "false";
  } else if (v.is_integer()) {
    out += std::to_string(v.as_integer());
  } else if (v.digits() != nullptr) {
    out += *v.digits();
  } else if (v.is<double>()) {
    const double d = v.as_real();
    out += std::isnan(d)   ? "NaN"
           : std::isinf(d) ? (d > 0 ? "Infinity" : "-Infinity")
                           : repr_real(d);
  } else if (const auto* l = v.as_list()) {
    out += '[';
    for (std::size_t i = 0; i < l->items.size(); ++i) {
      if (i > 0) out += style.item_separator;
      new_line(level + 1);
      append_json(rt, out, l->items[i], style, level + 1);
    }
    if (!l->items.empty()) new_line(level);
    out += ']';
  } else if (const auto* d = v.as_dict()) {
    std::vector<const std::pair<JinjaValue, JinjaValue>*> items;
    for (const auto& item : d->items) items.push_back(&item);
    if (style.sort_keys) {
      std::ranges::stable_sort(
          items, [&](const auto* a, const auto* b) { return less(rt, a->first, b->first); });
    }
    out += '{';
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += style.item_separator;
      new_line(level + 1);
      const JinjaValue& key = items[i]->first;
      if (key.is_text()) {
        append_json(rt, out, key, style, level);
      } else if (key.is_none() || key.is_number()) {
        out += '"';
        append_json(rt, out, key, style, level);
        out += '"';
      } else {
        rt.fail_type("a valid JSON key", key);
      }
      out += style.key_separator;
      append_json(rt, out, items[i]->second, style, level + 1);
    }
    if (!items.empty()) new_line(level);
    out += '}';
  } else {
    rt.fail_type("a JSON value", v);
  }
}

}  // namespace

void append_text(JinjaRuntime& rt, std::string& out, const JinjaValue& v) {
  if (v.is_undefined()) return;
  if (v.is_text()) {
    rt.charge_bytes(v.as_text().size());
    rt.check_text(out.size() + v.as_text().size());
    out += v.as_text();
    return;
  }
  append_repr(rt, out, v, 0);
}

std::string to_text(JinjaRuntime& rt, const JinjaValue& v) {
  std::string out;
  append_text(rt, out, v);
  return out;
}

std::string to_json(JinjaRuntime& rt, const JinjaValue& v, const JinjaJsonStyle& style) {
  std::string out;
  append_json(rt, out, v, style, 0);
  return out;
}

}  // namespace lathe
