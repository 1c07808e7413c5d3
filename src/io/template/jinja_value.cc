#include "io/template/jinja_value.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/json_digits.h"

namespace lathe {

JinjaValue JinjaValue::list(std::vector<JinjaValue> items, bool tuple) {
  int deepest = 0;
  for (const JinjaValue& v : items) deepest = std::max(deepest, v.depth());
  return JinjaValue(
      std::make_shared<const JinjaList>(JinjaList{std::move(items), tuple, deepest + 1}));
}

JinjaValue JinjaValue::dict(std::vector<std::pair<JinjaValue, JinjaValue>> items) {
  int deepest = 0;
  for (const auto& [k, v] : items) deepest = std::max({deepest, k.depth(), v.depth()});
  return JinjaValue(std::make_shared<const JinjaDict>(JinjaDict{std::move(items), deepest + 1}));
}

JinjaValue JinjaValue::function(std::string name) { return method({}, std::move(name)); }

JinjaValue JinjaValue::method(const JinjaValue& self, std::string name) {
  return JinjaValue(std::make_shared<const JinjaFunction>(
      JinjaFunction{self, std::move(name), self.depth() + 1}));
}

namespace {

JinjaValue with_digits(std::string digits) {
  double value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return JinjaValue(JinjaDigits{value, std::make_shared<const std::string>(std::move(digits))});
}

// Adds a step to the front of an error's path, which keeps its first bytes.
Error below(const std::string& step, Error error) {
  constexpr std::size_t kMostBytes = 200;
  error.field.insert(0, step);
  if (error.field.size() > kMostBytes) error.field = error.field.substr(0, kMostBytes - 3) + "...";
  return error;
}

Result<JinjaValue> convert(const nlohmann::ordered_json& j, int depth) {
  using Type = nlohmann::ordered_json::value_t;
  if (depth > kMaxJinjaDepth) {
    return Error{ErrorCode::unsupported, "",
                 "at most " + std::to_string(kMaxJinjaDepth) + " levels of nesting", "more", ""};
  }
  switch (j.type()) {
    case Type::boolean:
      return JinjaValue(j.get<bool>());
    case Type::number_integer:
      return JinjaValue(j.get<std::int64_t>());
    case Type::number_unsigned:
      if (j.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
        return with_digits(std::to_string(j.get<std::uint64_t>()));
      }
      return JinjaValue(j.get<std::int64_t>());
    case Type::number_float:
      return JinjaValue(j.get<double>());
    case Type::string:
      return JinjaValue(j.get<std::string>());
    case Type::array: {
      std::vector<JinjaValue> items;
      items.reserve(j.size());
      for (const auto& item : j) {
        auto v = convert(item, depth + 1);
        if (!v) return below("[" + std::to_string(items.size()) + "]", v.error());
        items.push_back(*std::move(v));
      }
      return JinjaValue::list(std::move(items));
    }
    case Type::object: {
      std::vector<std::pair<JinjaValue, JinjaValue>> items;
      items.reserve(j.size());
      for (const auto& [key, value] : j.items()) {
        auto v = convert(value, depth + 1);
        if (!v) return below("." + key.substr(0, 64), v.error());
        items.emplace_back(JinjaValue(std::string(key)), *std::move(v));
      }
      return JinjaValue::dict(std::move(items));
    }
    case Type::binary:
      return with_digits(*digits_of(j));
    default:
      return JinjaValue::none();
  }
}

}  // namespace

Result<JinjaValue> JinjaValue::from_json(const nlohmann::ordered_json& json,
                                         const std::string& path) {
  auto out = convert(json, 1);
  if (!out) return below(path, out.error());
  return out;
}

int JinjaValue::depth() const {
  if (const auto* l = as_list()) return l->depth;
  if (const auto* d = as_dict()) return d->depth;
  if (const auto* f = as_function()) return f->depth;
  if (const auto* l = as_loop()) return l->items->depth + 1;
  return 0;
}

std::size_t JinjaValue::size_hint() const {
  if (is_text()) return as_text().size();
  if (const auto* l = as_list()) return l->items.size() * sizeof(JinjaValue);
  if (const auto* d = as_dict()) return d->items.size() * 2 * sizeof(JinjaValue);
  return 0;
}

std::string JinjaValue::type_name() const {
  if (is_undefined()) return "undefined";
  if (is_none()) return "None";
  if (is<bool>()) return "bool object";
  if (is<std::int64_t>()) return "int object";
  if (is_real()) return "float object";
  if (is_text()) return "str object";
  if (const auto* l = as_list()) return l->tuple ? "tuple object" : "list object";
  if (as_dict() != nullptr) return "dict object";
  if (as_namespace() != nullptr) return "namespace object";
  if (as_macro() != nullptr) return "macro object";
  return as_loop() != nullptr ? "loop object" : "function object";
}

const JinjaValue* JinjaValue::find(std::string_view key) const {
  const JinjaDict* d = as_dict();
  if (d == nullptr) return nullptr;
  for (const auto& [k, v] : d->items) {
    if (k.is_text() && k.as_text() == key) return &v;
  }
  return nullptr;
}

}  // namespace lathe
