// Numbers of schemas: bounds, multiples, and all their digits.
#include "server/grammar/schema/schema.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/json_digits.h"
#include "base/test_scale.h"
#include "server/grammar/grammar.h"
#include "server/grammar/schema/decimal.h"
#include "server/grammar/test/schema_test_util.h"

namespace lathe::grammar {
namespace {

using schema_test::bytes;
using schema_test::check;
using schema_test::schema_source;
using schema_test::takes;
using Json = nlohmann::ordered_json;

TEST(Schemas, NumbersHaveBounds) {
  check({
      {R"({"type": "number", "minimum": 1.5, "maximum": 20.25})",
       {"1.5", "1.50", "1.51", "2", "9.99", "10", "19", "20", "20.25", "20.2", "20.250"},
       {"1.4", "1", "20.26", "20.251", "21", "100", "-2", "0"}},
      {R"({"type": "number", "exclusiveMinimum": 0})",
       {"0.1", "1", "123456789.5"},
       {"0", "0.0", "-1"}},
      {R"({"type": "number", "exclusiveMaximum": -0.5})", {"-0.51", "-3"}, {"-0.5", "0", "-0.4"}},
      {R"({"type": "number", "minimum": -0.25, "maximum": 0.25})",
       {"0", "-0.25", "0.25", "-0.1", "0.0"},
       {"-0.26", "0.3", "1", "-1"}},
      {R"({"type": "integer", "minimum": 12345678901234567890, "maximum": 12345678901234567899})",
       {"12345678901234567890", "12345678901234567895"},
       {"12345678901234567889", "12345678901234567900"}},
      {R"({"type": "integer", "minimum": 1e30})",
       {"1000000000000000000000000000000", "1000000000000000000000000000001"},
       {"999999999999999999999999999999", "5"}},
      {R"({"type": "integer", "exclusiveMinimum": -1e25, "maximum": -9.5})",
       {"-9999999999999999999999999", "-10"},
       {"-10000000000000000000000000", "-9"}},
      {R"({"minimum": 3, "exclusiveMinimum": true})", {"3.1", "\"x\"", "null"}, {"3", "2"}},
  });
}

// Doubles have other digits than these numbers.
TEST(Schemas, A8NumbersKeepTheirDigits) {
  check({
      {R"({"const": 18446744073709551616})",
       {"18446744073709551616"},
       {"18446744073709552000", "1.8446744073709552e+19", "18446744073709551615"}},
      {R"({"enum": [-9223372036854775809, 12345678901234567890123, 9007199254740993]})",
       {"-9223372036854775809", "12345678901234567890123", "9007199254740993"},
       {"-9223372036854775808", "9007199254740992", "1.2345678901234568e+22"}},
      {R"({"const": 0.1234567890123456789})",
       {"0.1234567890123456789"},
       {"0.12345678901234568", "0.12345678901234567"}},
      {R"({"const": {"a": [100000000000000000001]}})",
       {R"({"a":[100000000000000000001]})"},
       {R"({"a":[100000000000000000000]})"}},
      {R"({"type": "integer", "minimum": 18446744073709551616, "maximum": 18446744073709551618})",
       {"18446744073709551616", "18446744073709551618"},
       {"18446744073709551615", "18446744073709551619"}},
      {R"({"type": "integer", "exclusiveMinimum": -9223372036854775810, "maximum": 5})",
       {"-9223372036854775809", "5", "0"},
       {"-9223372036854775810", "6"}},
      {R"({"type": "integer", "minimum": 18446744073709551616, "not": {"const": 18446744073709551617}})",
       {"18446744073709551616", "18446744073709551618"},
       {"18446744073709551617"}},
      {R"({"type": "number", "maximum": 0.1234567890123456789})",
       {"0.1234567890123456789", "0.1234567890123456788"},
       {"0.1234567890123456790", "0.12345678901234568"}},
      {R"({"enum": [9007199254740993, 1], "not": {"const": 9007199254740992.0}})",
       {"9007199254740993", "1"},
       {"9007199254740992"}},
      {R"({"allOf": [{"enum": [1e20, 100000000000000000001, 3]}, {"enum": [100000000000000000000, 3.0]}]})",
       {"1e+20", "3"},
       {"100000000000000000001"}},
      {R"({"enum": [18446744073709551615, -9223372036854775808]})",
       {"18446744073709551615", "-9223372036854775808"},
       {"18446744073709551614"}},
      {R"({"type": "number", "maximum": 1.7976931348623157e308})", {"1", "-2.5"}, {"\"\""}},
  });
}

// JSON's readers must get the integers that the schema has, of any size.
TEST(Schemas, NumbersBeyond64BitsAreExact) {
  check({
      {R"({"const": 18446744073709551617})",
       {"18446744073709551617"},
       {"1.8446744073709552e+19", "18446744073709551616"}},
      {R"({"enum": [1000000000000000000000000000001, 1000000000000000000000000000000]})",
       {"1000000000000000000000000000001", "1000000000000000000000000000000"},
       {"1e+30", "1e30", "1000000000000000000000000000002"}},
      {R"({"type": "integer", "minimum": 10000000000000000000000001,
          "maximum": 10000000000000000000000003})",
       {"10000000000000000000000001", "10000000000000000000000002", "10000000000000000000000003"},
       {"10000000000000000000000000", "10000000000000000000000004", "10000000000000000905969664"}},
      {R"({"type": "integer", "exclusiveMinimum": 10000000000000000000000001,
          "exclusiveMaximum": 10000000000000000000000003})",
       {"10000000000000000000000002"},
       {"10000000000000000000000001", "10000000000000000000000003"}},
      {R"({"type": "integer", "minimum": -10000000000000000000000003,
          "not": {"minimum": -10000000000000000000000001}})",
       {"-10000000000000000000000003", "-10000000000000000000000002"},
       {"-10000000000000000000000001", "-10000000000000000000000004"}},
  });
}

TEST(Schemas, NumbersAreMultiples) {
  check({
      {R"({"type": "integer", "multipleOf": 7})",
       {"0", "7", "-21", "7000007"},
       {"1", "-8", "7000008"}},
      {R"({"type": "integer", "multipleOf": 5, "minimum": 12, "maximum": 31})",
       {"15", "20", "30"},
       {"10", "35", "12", "31"}},
      {R"({"type": "number", "multipleOf": 0.01})",
       {"0.01", "4.5", "3", "-2.25", "4.50"},
       {"0.001", "4.505"}},
      {R"({"type": "number", "multipleOf": 2.5})",
       {"0", "2.5", "5", "7.5", "5.0"},
       {"2", "0.5", "7.25"}},
      {R"({"type": "integer", "multipleOf": 0.5})", {"1", "2"}, {"0.5"}},
      {R"({"type": "integer", "multipleOf": 86400})",
       {"0", "86400", "-172800", "43113600"},
       {"1", "86401", "-0"}},
      {R"({"type": "integer", "multipleOf": 3600000, "minimum": 1e12, "exclusiveMaximum": 1000010800000})",
       {"1000000800000", "1000004400000", "1000008000000"},
       {"0", "3600000", "999997200000", "1000011600000", "1000010800000"}},
      {R"({"multipleOf": 0.123456789, "maximum": -1, "type": "number"})",
       {"-1.111111101", "-123.456789", "-10.864197432"},
       {"0.123456789", "-0.123456789", "-0.987654312", "-1.1111111", "0"}},
      {R"({"type": "integer", "multipleOf": 0.123456789})",
       {"0", "123456789", "-246913578"},
       {"1", "0.123456789", "1e308"}},
      {R"({"multipleOf": 0.00012, "type": "integer"})", {"3", "0", "-6"}, {"1", "2", "0.00012"}},
      {R"({"allOf": [{"multipleOf": 4}, {"multipleOf": 6}], "type": "integer"})",
       {"12", "24"},
       {"4", "6"}},
      {R"({"type": "integer", "minimum": 0, "maximum": 9, "not": {"enum": [3, 5.0, "x"]}})",
       {"0", "2", "4", "9"},
       {"3", "5", "10"}},
  });
}

TEST(Decimals, CompareAndRead) {
  const std::pair<const char*, const char*> equal[] = {
      {"1e3", "1000"}, {"0.001", "1e-3"}, {"-0", "0"}, {"12.50", "12.5"}, {"1.5e1", "15"}};
  for (const auto& [x, y] : equal) EXPECT_EQ(parse_decimal(x), parse_decimal(y)) << x;
  const char* ascending[] = {"-1e30", "-12", "-11.5", "-1.25", "-1.2", "0",
                             "1e-9",  "0.5", "0.51",  "9",     "10",   "1e400"};
  for (std::size_t i = 1; i < std::size(ascending); ++i) {
    EXPECT_LT(*parse_decimal(ascending[i - 1]), *parse_decimal(ascending[i])) << ascending[i];
  }
  for (const char* wrong : {"", "-", "x", "1e", "1e99999", "1x"})
    EXPECT_FALSE(parse_decimal(wrong)) << wrong;
}

// Bounds and steps against integer arithmetic on random numbers.
TEST(Schemas, RandomNumbersAreWithinTheirBounds) {
  const std::uint32_t seed = test_seed(31);
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const auto text_of = [](int hundredths) {  // the shortest
    std::string out = std::to_string(std::abs(hundredths) / 100);
    const int rest = std::abs(hundredths) % 100;
    if (rest != 0)
      out += "." + std::to_string(rest / 10) + (rest % 10 != 0 ? std::to_string(rest % 10) : "");
    return (hundredths < 0 ? "-" : "") + out;
  };
  const Vocabulary vocabulary = bytes();
  for (int round = 0; round < 60 * test_scale(); ++round) {
    const int low = below(4000) - 2000, high = low + below(3000), step = 1 + below(300);
    const bool integer = below(2) == 0, above = below(2) == 0, stepped = below(2) == 0;
    Json s = {{"type", integer ? "integer" : "number"}};
    s[above ? "exclusiveMinimum" : "minimum"] = low / 100.0;
    s["maximum"] = high / 100.0;
    if (stepped) s["multipleOf"] = step / 100.0;
    Source source = schema_source("{}");
    source.schema = s;
    const auto grammar = Grammar::compile(source, vocabulary);
    for (int i = 0; i < 200; ++i) {
      const int x = low - 50 + below(high - low + 100);
      const bool want = (above ? x > low : x >= low) && x <= high && (!integer || x % 100 == 0) &&
                        (!stepped || x % step == 0);
      EXPECT_EQ(grammar && takes(**grammar, text_of(x)), want) << s << " " << text_of(x);
    }
  }
}

}  // namespace
}  // namespace lathe::grammar
