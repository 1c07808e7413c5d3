#include "server/openai/json_writer.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

namespace lathe {
namespace {

std::string in_quotes(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

TEST(JsonWriter, EscapesWhatJsonAndEventsCannotHold) {
  EXPECT_EQ(in_quotes("a\"b\\c\n\r\t\x01"), R"("a\"b\\c\n\r\t\u0001")");
  EXPECT_EQ(in_quotes("\u00e9\u2028\u2029\U0001f600"), "\"\u00e9\\u2028\\u2029\U0001f600\"");
  EXPECT_EQ(in_quotes("a\xff\xe2\x80"), "\"a\ufffd\ufffd\"");
}

TEST(JsonWriter, AnyBytesReadBackAsValidText) {
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (auto n = random() % 20; n > 0; --n) text += static_cast<char>(random() % 256);
    const std::string json = in_quotes(text);
    EXPECT_EQ(json.find('\n'), std::string::npos);
    const auto read = nlohmann::json::parse(json);
    // An independent writer, which replaces invalid UTF-8 in the same way.
    const std::string other =
        nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    EXPECT_EQ(read, nlohmann::json::parse(other));
  }
}

TEST(JsonWriter, NumbersReadBackAsTheSameDouble) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 2000; ++i) {
    const auto value = std::bit_cast<double>(random());
    if (!std::isfinite(value)) continue;
    std::string out;
    append_json_number(out, value);
    EXPECT_EQ(nlohmann::json::parse(out).get<double>(), value) << out;
  }
  std::string out;
  append_json_number(out, -std::numeric_limits<double>::infinity());
  EXPECT_EQ(out, "-9999.0");
}

TEST(JsonWriter, PutsCommasBetween) {
  std::string out;
  JsonWriter json(out);
  json.begin_object().key("a").begin_array().number(std::int64_t{1}).number(2.0).null().end_array();
  json.key("b").begin_object().end_object().key("c").string("x");
  json.escaped_key("d\"").boolean(true).end_object();
  EXPECT_EQ(out, R"({"a":[1,2.0,null],"b":{},"c":"x","d\"":true})");
}

}  // namespace
}  // namespace lathe
