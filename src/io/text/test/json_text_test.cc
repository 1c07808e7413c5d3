#include "io/text/json_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace lathe {
namespace {

std::string refusal(const std::string& text) {
  const auto json = parse_json(text, "config.json");
  return json ? "" : json.error().message();
}

TEST(ParseJson, NamesStandOnce) {
  EXPECT_EQ(refusal(R"({"a": {"b": 1}, "b": [2]})"), "");
  EXPECT_EQ(refusal(R"({"a": {"b": 1, "b": 2}})"),
            "config.json: wanted unique names, got \"b\" twice");
}

TEST(ParseJson, SaysWhereItStopsToBeJson) {
  EXPECT_EQ(refusal("{\"a\": 1"), "config.json: wanted valid JSON, got the end after byte 7");
  EXPECT_EQ(refusal("{\"a\": x}"),
            "config.json: wanted valid JSON, got something else at byte 7 of 8");
}

// Printing or copying a value uses stack for each level.
TEST(ParseJson, LevelsAreBounded) {
  const auto nested = [](int levels, const std::string& open, const std::string& close) {
    std::string text;
    for (int i = 0; i < levels; ++i) text += open;
    text += "1";
    for (int i = 0; i < levels; ++i) text += close;
    return text;
  };
  for (const auto& [open, close] : {std::pair{"[", "]"}, {"{\"a\":", "}"}, {"[{\"a\":", "}]"}}) {
    EXPECT_EQ(refusal(nested(200, open, close)), "") << open;
    const std::string wrong = refusal(nested(100000, open, close));
    EXPECT_TRUE(wrong.starts_with("config.json: ")) << wrong;
    EXPECT_TRUE(wrong.ends_with("...: wanted at most 500 levels, got more")) << wrong;
  }
}

TEST(ParseJson, NumbersBeyondDoubleAreNamed) {
  EXPECT_EQ(refusal(R"({"a": [1, -1e400]})"),
            "config.json: a[1]: wanted a number that a double can hold, got -1e400");
  EXPECT_EQ(refusal("1e999"), "config.json: wanted a number that a double can hold, got 1e999");
}

}  // namespace
}  // namespace lathe
