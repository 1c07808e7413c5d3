#include "base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace lathe {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

TEST(JsonText, KeepsOrderAndReplacesBytesThatAreNoUtf8) {
  EXPECT_EQ(json_text({{"b", 1}, {"a", {true, nullptr}}}), R"({"b":1,"a":[true,null]})");
  EXPECT_EQ(json_text({{"b", 1}}, 2), "{\n  \"b\": 1\n}");
  EXPECT_EQ(json_text("\xC3\xA9 \xFF\n"), "\"\xC3\xA9 \xEF\xBF\xBD\\n\"");
}

TEST(JsonExcerpt, IsShortAndAscii) {
  EXPECT_EQ(json_excerpt(json("\xC3\xA9\xFF")), R"("\u00e9\ufffd")");
  const std::string cut = json_excerpt(ordered_json(std::string(100, 'x')));
  EXPECT_EQ(cut, "\"" + std::string(56, 'x') + "...");
}

TEST(ReadJson, DiscardsWhatIsNotJson) {
  EXPECT_EQ(read_json<json>(R"({"b":[1,2.5],"a":"\u00e9"})"),
            (json{{"a", "\xC3\xA9"}, {"b", {1, 2.5}}}));
  EXPECT_EQ(read_json<ordered_json>(R"({"b":1,"a":2})").begin().key(), "b");
  for (const char* text : {"", "{", "[1,]", "{\"a\":1}x", "\"\xFF\"", "1e999", "nan"}) {
    EXPECT_TRUE(read_json<json>(text).is_discarded()) << text;
    EXPECT_TRUE(read_json<ordered_json>(text).is_discarded()) << text;
  }
}

TEST(ReadWatchedJson, FindsRepeatedNamesAndDepth) {
  const auto read = [](const std::string& text) { return read_watched_json<ordered_json>(text); };
  EXPECT_EQ(read(R"([{"a":{"a":1}},{"a":2}])").twice, std::nullopt);
  EXPECT_EQ(read(R"({"x":[{"a":1,"b":2,"b":3,"a":4}]})").twice, "b");
  const auto nested = [&](int levels) {
    return read(std::string(static_cast<std::size_t>(levels), '[') +
                std::string(static_cast<std::size_t>(levels), ']'));
  };
  EXPECT_FALSE(nested(kMostLevels).too_deep);
  EXPECT_TRUE(nested(kMostLevels + 2).too_deep);
  EXPECT_THROW(read("{"), ordered_json::parse_error);
  EXPECT_THROW(read("1e999"), ordered_json::exception);
}

}  // namespace
}  // namespace lathe
