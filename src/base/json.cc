#include "base/json.h"

#include <map>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <vector>

#include "base/json_digits.h"

namespace lathe {
namespace {

template <class Json>
std::string excerpt(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

// Builds a value from the parser's events, with constant work for each. nlohmann's own parser
// searches an ordered object for every name, and with a callback it searches the parent for every
// value that ends.
template <class Json>
class Builder {
 public:
  Builder(WatchedJson<Json>& out, const JsonLimits& limits, bool watch, bool keep_digits = false)
      : out_(out), limits_(limits), watch_(watch), keep_digits_(keep_digits) {}

  bool null() { return add(nullptr); }
  bool boolean(bool b) { return add(b); }
  bool number_integer(std::int64_t i) { return add(i); }
  bool number_unsigned(std::uint64_t u) { return add(u); }
  bool number_float(double d, const std::string& digits) {
    if (!keep_digits_) return add(d);
    return add(Json::binary(std::vector<std::uint8_t>(digits.begin(), digits.end())));
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
  bool parse_error(std::size_t, const std::string&, const Exception& error) {
    if (watch_) throw Exception(error);
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
    if (open_.size() > static_cast<std::size_t>(kMostLevels)) {
      out_.too_deep = true;
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
  const bool keep_digits_;
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
  // The parser calls this for numbers with a sign.
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
  if (!nlohmann::ordered_json::sax_parse(text, &writer)) return std::nullopt;
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
  if (!nlohmann::ordered_json::sax_parse(text, &writer)) return std::nullopt;
  return writer.text();
}

std::string json_text(const nlohmann::ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string json_excerpt(const nlohmann::json& value) { return excerpt(value); }
std::string json_excerpt(const nlohmann::ordered_json& value) { return excerpt(value); }

template <class Json>
Json read_json(std::string_view text) {
  WatchedJson<Json> out;
  Builder<Json> builder(out, {}, /*watch=*/false);
  if (!Json::sax_parse(text, &builder)) return Json(Json::value_t::discarded);
  return std::move(out.value);
}

nlohmann::ordered_json read_json_digits(std::string_view text) {
  using Json = nlohmann::ordered_json;
  WatchedJson<Json> out;
  Builder<Json> builder(out, {}, /*watch=*/false, /*keep_digits=*/true);
  if (!Json::sax_parse(text, &builder)) return Json(Json::value_t::discarded);
  return std::move(out.value);
}

std::optional<std::string> digits_of(const nlohmann::ordered_json& value) {
  if (!value.is_binary()) return std::nullopt;
  const auto& bytes = value.get_binary();
  return std::string(bytes.begin(), bytes.end());
}

template <class Json>
WatchedJson<Json> read_watched_json(std::string_view text, const JsonLimits& limits) {
  WatchedJson<Json> out;
  Builder<Json> builder(out, limits, /*watch=*/true);
  Json::sax_parse(text, &builder);
  return out;
}

template nlohmann::json read_json(std::string_view);
template nlohmann::ordered_json read_json(std::string_view);
template WatchedJson<nlohmann::json> read_watched_json(std::string_view, const JsonLimits&);
template WatchedJson<nlohmann::ordered_json> read_watched_json(std::string_view, const JsonLimits&);

}  // namespace lathe
