#include "base/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <vector>

#include "base/json_digits.h"

namespace lathe {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Digits without zeros at the ends, sign, point and exponent: equal for texts of one number, as
// long as both have about its size.
std::string significant(std::string_view number) {
  std::string out;
  for (const char c : number.substr(0, number.find_first_of("eE"))) {
    if (c >= '0' && c <= '9' && !(out.empty() && c == '0')) out += c;
  }
  out.resize(out.find_last_not_of('0') + 1);  // npos + 1 is 0
  return out;
}

// Whether the shortest text of the double is another number than `digits`, from which it was read,
// or has an exponent where they are an integer: readers of 1e+30 get a double, which is not 10^30.
bool is_changed(double d, const std::string& digits) {
  if (digits.find_first_of(".eE") == std::string::npos) return true;
  constexpr std::size_t kAlwaysKept = std::numeric_limits<double>::digits10;
  if (digits.size() <= kAlwaysKept && std::abs(d) > 1e-300) return false;
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, d, std::chars_format::scientific);
  return significant(digits) != significant(std::string_view(text, end.ptr));
}

template <class Json>
Json with_digits(const std::string& digits) {
  return Json::binary(std::vector<std::uint8_t>(digits.begin(), digits.end()));
}

bool has_digits(const OrderedJson& value) {
  if (!value.is_structured()) return value.is_binary();
  return std::any_of(value.begin(), value.end(), has_digits);
}

void write_digits(const OrderedJson& value, bool ascii, std::string& out) {
  constexpr auto kReplace = OrderedJson::error_handler_t::replace;
  if (value.is_binary()) {
    out += *digits_of(value);
  } else if (value.is_structured()) {
    out += value.is_object() ? '{' : '[';
    bool first = true;
    for (const auto& [name, inner] : value.items()) {
      if (!std::exchange(first, false)) out += ',';
      if (value.is_object()) out += OrderedJson(name).dump(-1, ' ', ascii, kReplace) + ":";
      write_digits(inner, ascii, out);
    }
    out += value.is_object() ? '}' : ']';
  } else {
    out += value.dump(-1, ' ', ascii, kReplace);
  }
}

std::string text_of(const OrderedJson& value, int indent, bool ascii) {
  if (!has_digits(value)) {
    return value.dump(indent, ' ', ascii, OrderedJson::error_handler_t::replace);
  }
  std::string out;
  write_digits(value, ascii, out);
  return out;
}

// Like sax_parse(), whose lexer takes a NUL for the text's end: what follows it would be ignored.
template <class Json, class Sax>
bool parse_text(std::string_view text, Sax& sax) {
  const std::size_t nul = text.find('\0');
  if (nul == std::string_view::npos) return Json::sax_parse(text, &sax);
  const auto error = Json::parse_error::create(101, nul + 1, "unexpected NUL", nullptr);
  return sax.parse_error(nul + 1, "<U+0000>", error);
}

std::string excerpt(std::string text) {
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

// Builds a value from the parser's events, with constant work for each. nlohmann's own parser
// searches an ordered object for every name, and with a callback it searches the parent for every
// value that ends.
template <class Json>
class Builder {
 public:
  enum class Digits { none, changed, all };  // which numbers keep theirs

  Builder(WatchedJson<Json>& out, const JsonLimits& limits, bool watch,
          Digits digits = Digits::none)
      : out_(out), limits_(limits), watch_(watch), digits_(digits) {}

  bool null() { return add(nullptr); }
  bool boolean(bool b) { return add(b); }
  // The parser calls this for numbers with a minus; an integer does not hold that of -0.
  bool number_integer(std::int64_t i) {
    return add(i == 0 && digits_ != Digits::none ? with_digits<Json>("-0") : Json(i));
  }
  bool number_unsigned(std::uint64_t u) { return add(u); }
  bool number_float(double d, const std::string& digits) {
    const bool keep =
        digits_ == Digits::all || (digits_ == Digits::changed && is_changed(d, digits));
    return add(keep ? with_digits<Json>(digits) : Json(d));
  }
  bool string(std::string& text) { return add(std::move(text)); }
  bool binary(typename Json::binary_t&) { return false; }  // not in JSON
  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    if (!count(nodes_, limits_.nodes)) return false;
    Open& at = open_.back();
    Json* const known = find_or_add(at, name);
    if (known != nullptr && watch_) {
      out_.twice = std::move(name);
      return false;
    }
    return true;
  }

  template <class Exception>
  bool parse_error(std::size_t, const std::string& last, const Exception& error) {
    if constexpr (std::is_same_v<Exception, typename Json::out_of_range>) {
      out_.too_large = HugeNumber{path(), excerpt(last)};
    } else if (watch_) {
      throw Exception(error);
    }
    return false;
  }

 private:
  // Objects with more names look them up in a tree: names may be chosen to have one hash.
  static constexpr std::size_t kFewNames = 16;
  static constexpr bool kOrdered = std::is_same_v<Json, nlohmann::ordered_json>;
  struct Open {
    Json* value;
    Json* member = nullptr;  // of an object: the value of the last name
    const std::string* name = nullptr;
    std::map<std::string, std::size_t> places;  // by name; filled beyond kFewNames
  };

  // Sets the object's next member. Returns it if it is there already, else null.
  Json* find_or_add(Open& at, std::string& name) {
    auto& object = at.value->template get_ref<typename Json::object_t&>();
    Json* known = nullptr;
    if constexpr (kOrdered) {
      const std::size_t i = place_of(at, object, name);
      if (i < object.size()) {
        known = &object.data()[i].second;
      } else {
        object.emplace_back(name, nullptr);
      }
      at.member = &object.data()[i].second;
      at.name = &object.data()[i].first;
    } else {
      const auto [place, added] = object.emplace(name, nullptr);
      if (!added) known = &place->second;
      at.member = &place->second;
      at.name = &place->first;
    }
    return known;
  }

  // Index of the name in an ordered object; the object's size if it is new.
  static std::size_t place_of(Open& at, const typename Json::object_t& object,
                              const std::string& name) {
    if (object.size() < kFewNames) {
      std::size_t i = 0;
      while (i < object.size() && object.data()[i].first != name) ++i;
      return i;
    }
    if (at.places.empty()) {
      for (std::size_t i = 0; i < object.size(); ++i) at.places.emplace(object.data()[i].first, i);
    }
    return at.places.emplace(name, object.size()).first->second;
  }

  bool count(std::int64_t& counted, std::int64_t most) {
    if (counted++ < most) return true;
    out_.too_many = path();
    return false;
  }

  bool add(Json value) {
    if (open_.size() > static_cast<std::size_t>(limits_.levels)) {
      out_.too_deep = path();
      return false;
    }
    if (!count(values_, limits_.values)) return false;
    added_ = put(std::move(value));
    return true;
  }

  Json* put(Json value) {
    if (open_.empty()) {
      out_.value = std::move(value);
      return &out_.value;
    }
    Open& at = open_.back();
    if (at.value->is_array()) {
      auto& list = at.value->template get_ref<typename Json::array_t&>();
      list.push_back(std::move(value));
      return &list.back();
    }
    *at.member = std::move(value);
    return at.member;
  }

  bool open(Json value) {
    if (!count(nodes_, limits_.nodes) || !add(std::move(value))) return false;
    open_.push_back({added_, nullptr, nullptr, {}});
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  // Where the next value would be.
  std::string path() const {
    std::string out;
    for (std::size_t i = 0; i < open_.size(); ++i) {
      const Open& at = open_[i];
      const bool last = i + 1 == open_.size();
      if (at.value->is_array()) {
        out += "[" + std::to_string(at.value->size() - (last ? 0 : 1)) + "]";
      } else if (at.name != nullptr) {
        out += (out.empty() ? "" : ".") + at.name->substr(0, 64);
      }
      if (out.size() > 200) return out.substr(0, 200) + "...";
    }
    return out;
  }

  WatchedJson<Json>& out_;
  const JsonLimits limits_;
  const bool watch_;
  const Digits digits_;
  std::vector<Open> open_;
  Json* added_ = nullptr;
  std::int64_t values_ = 0, nodes_ = 0;
};

// Writes the parser's events as JSON on one line. `members`: gets the outermost object's members.
class Writer {
 public:
  using Json = nlohmann::ordered_json;
  explicit Writer(JsonMembers* members) : members_(members) {}

  const std::string& text() const { return text_; }
  bool null() { return value("null"); }
  bool boolean(bool b) { return value(b ? "true" : "false"); }
  // The parser calls this for numbers with a minus.
  bool number_integer(std::int64_t i) { return value(i == 0 ? "-0" : std::to_string(i)); }
  bool number_unsigned(std::uint64_t u) { return value(std::to_string(u)); }
  bool number_float(double, const std::string& digits) { return value(digits); }
  bool string(std::string& text) { return value(json_text(text)); }
  bool binary(Json::binary_t&) { return false; }
  bool start_object(std::size_t) { return open('{', true); }
  bool start_array(std::size_t) { return open('[', false); }
  bool end_object() { return close('}'); }
  bool end_array() { return close(']'); }
  bool parse_error(std::size_t, const std::string&, const Json::exception&) { return false; }

  bool key(std::string& name) {
    if (members_ != nullptr && open_.size() == 1) {
      const auto [at, fresh] = places_.emplace(name, members_->size());
      if (fresh) members_->emplace_back(name, "");
      member_ = at->second;
      (*members_)[member_].second.clear();
      return true;
    }
    comma();
    out() += json_text(name) + ":";
    open_.back().comma = false;
    return true;
  }

 private:
  struct Open {
    bool object;
    bool comma;  // before the next one
  };

  std::string& out() { return members_ != nullptr ? (*members_)[member_].second : text_; }
  void comma() {
    if (open_.empty() || (members_ != nullptr && open_.size() == 1)) return;
    if (std::exchange(open_.back().comma, true)) out() += ",";
  }
  bool value(std::string_view text) {
    if (open_.size() > static_cast<std::size_t>(kMostLevels)) return false;
    if (open_.empty() && members_ != nullptr) return false;  // no object
    comma();
    out() += text;
    return true;
  }
  bool open(char mark, bool object) {
    if (open_.empty() && members_ != nullptr) {
      if (!object) return false;
    } else if (!value(std::string_view(&mark, 1))) {
      return false;
    }
    open_.push_back({object, false});
    return true;
  }
  bool close(char mark) {
    open_.pop_back();
    if (members_ == nullptr || !open_.empty()) out() += mark;
    return true;
  }

  JsonMembers* members_;
  std::string text_;
  std::vector<Open> open_;
  std::size_t member_ = 0;
  std::map<std::string, std::size_t> places_;
};

}  // namespace

std::optional<JsonMembers> read_members(std::string_view text) {
  JsonMembers out;
  Writer writer(&out);
  if (!parse_text<OrderedJson>(text, writer)) return std::nullopt;
  return out;
}

std::string members_text(const JsonMembers& members) {
  std::string out = "{";
  for (const auto& [name, value] : members) {
    out += (out.size() > 1 ? "," : "") + json_text(name) + ":" + value;
  }
  return out + "}";
}

std::optional<std::string> compact_json(std::string_view text) {
  Writer writer(nullptr);
  if (!parse_text<OrderedJson>(text, writer)) return std::nullopt;
  return writer.text();
}

std::string json_text(const nlohmann::ordered_json& value, int indent) {
  return text_of(value, indent, /*ascii=*/false);
}

std::string json_excerpt(const nlohmann::json& value) {
  return excerpt(value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
}
std::string json_excerpt(const nlohmann::ordered_json& value) {
  return excerpt(text_of(value, -1, /*ascii=*/true));
}

template <class Json>
Json read_json(std::string_view text) {
  WatchedJson<Json> out;
  Builder<Json> builder(out, {}, /*watch=*/false);
  if (!parse_text<Json>(text, builder)) return Json(Json::value_t::discarded);
  return std::move(out.value);
}

namespace {

OrderedJson read_keeping(std::string_view text, Builder<OrderedJson>::Digits digits) {
  WatchedJson<OrderedJson> out;
  Builder<OrderedJson> builder(out, {}, /*watch=*/false, digits);
  if (!parse_text<OrderedJson>(text, builder)) return OrderedJson(OrderedJson::value_t::discarded);
  return std::move(out.value);
}

}  // namespace

nlohmann::ordered_json read_json_digits(std::string_view text) {
  return read_keeping(text, Builder<OrderedJson>::Digits::all);
}

nlohmann::ordered_json read_json_exact(std::string_view text) {
  return read_keeping(text, Builder<OrderedJson>::Digits::changed);
}

std::optional<std::string> digits_of(const nlohmann::ordered_json& value) {
  if (!value.is_binary()) return std::nullopt;
  const auto& bytes = value.get_binary();
  return std::string(bytes.begin(), bytes.end());
}

bool is_json_number(const nlohmann::ordered_json& value) {
  return value.is_number() || value.is_binary();
}

std::optional<double> double_of(const nlohmann::ordered_json& value) {
  if (value.is_number()) return value.get<double>();
  const auto digits = digits_of(value);
  if (!digits) return std::nullopt;
  const OrderedJson number = read_json<OrderedJson>(*digits);
  return number.get<double>();
}

template <class Json>
WatchedJson<Json> read_watched_json(std::string_view text, const JsonLimits& limits, bool exact) {
  using Digits = typename Builder<Json>::Digits;
  WatchedJson<Json> out;
  Builder<Json> builder(out, limits, /*watch=*/true, exact ? Digits::changed : Digits::none);
  parse_text<Json>(text, builder);
  return out;
}

template nlohmann::json read_json(std::string_view);
template nlohmann::ordered_json read_json(std::string_view);
template WatchedJson<nlohmann::json> read_watched_json(std::string_view, const JsonLimits&, bool);
template WatchedJson<nlohmann::ordered_json> read_watched_json(std::string_view, const JsonLimits&,
                                                               bool);

}  // namespace lathe
