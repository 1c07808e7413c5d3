// JsonWriter: appends JSON text, for answers that are formatted once per token.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lathe {

/// Quoted and escaped: control characters, U+2028 and U+2029 as \u, the rest unchanged. Invalid
/// UTF-8 becomes U+FFFD.
void append_json_string(std::string& out, std::string_view text);
void append_json_integer(std::string& out, std::int64_t value);
/// The shortest text that parses to the same double; infinities and NaN become +-9999.0.
void append_json_number(std::string& out, double value);

/// Appends values in order and adds commas. Names and values must alternate.
class JsonWriter {
 public:
  /// `out` outlives the writer. `first`: no comma before the first value.
  explicit JsonWriter(std::string& out, bool first = true) : out_(out), first_(first) {}

  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return shut('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return shut(']'); }
  /// A name that needs no escapes, such as a literal.
  JsonWriter& key(std::string_view name) {
    out_ += first_ ? "\"" : ",\"";
    out_ += name;
    out_ += "\":";
    first_ = true;
    return *this;
  }
  JsonWriter& escaped_key(std::string_view name) {
    comma();
    append_json_string(out_, name);
    out_ += ':';
    first_ = true;
    return *this;
  }
  JsonWriter& string(std::string_view text) {
    comma();
    append_json_string(out_, text);
    return *this;
  }
  JsonWriter& number(std::int64_t value) {
    comma();
    append_json_integer(out_, value);
    return *this;
  }
  JsonWriter& number(double value) {
    comma();
    append_json_number(out_, value);
    return *this;
  }
  JsonWriter& boolean(bool value) { return raw(value ? "true" : "false"); }
  JsonWriter& null() { return raw("null"); }
  /// Text that is JSON already.
  JsonWriter& raw(std::string_view json) {
    comma();
    out_ += json;
    return *this;
  }

 private:
  JsonWriter& open(char c) {
    comma();
    out_ += c;
    first_ = true;
    return *this;
  }
  JsonWriter& shut(char c) {
    out_ += c;
    first_ = false;
    return *this;
  }
  void comma() {
    if (!first_) out_ += ',';
    first_ = false;
  }

  std::string& out_;
  bool first_;  // no comma before what comes next
};

}  // namespace lathe
