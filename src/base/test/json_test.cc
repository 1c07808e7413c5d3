#include "base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "base/json_digits.h"

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

// RFC 8259 has no NUL; nlohmann's lexer takes one for the end of the text.
TEST(ReadJson, NulIsNotJson) {
  using namespace std::string_view_literals;
  for (const auto text :
       {"{}\0"sv, "{}\0{\"a\": 1}"sv, "\0"sv, "\0{}"sv, "{\"a\0\": 1}"sv, "[1,\0 2]"sv, "1\0"sv}) {
    EXPECT_TRUE(read_json<nlohmann::json>(text).is_discarded());
    EXPECT_TRUE(read_json<nlohmann::ordered_json>(text).is_discarded());
    EXPECT_TRUE(read_json_exact(text).is_discarded());
    EXPECT_TRUE(read_json_digits(text).is_discarded());
    EXPECT_FALSE(read_members(text).has_value());
    EXPECT_FALSE(compact_json(text).has_value());
    EXPECT_THROW(read_watched_json<nlohmann::json>(text), nlohmann::json::parse_error);
  }
  EXPECT_EQ(read_json<nlohmann::json>("\"a\\u0000b\""), "a\0b"sv);
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
}

TEST(ReadWatchedJson, DepthAndHugeNumbersHaveAPath) {
  const auto read = [](const std::string& text, int levels) {
    return read_watched_json<ordered_json>(text, {.levels = levels});
  };
  const std::string text = R"({"a":[0,{"b":[1]}],"c":1e9999})";
  EXPECT_EQ(read(text, 2).too_deep, "a[1].b");
  EXPECT_EQ(read(text, 3).too_deep, "a[1].b[0]");
  const auto huge = read(text, 4);
  EXPECT_EQ(huge.too_deep, std::nullopt);
  ASSERT_TRUE(huge.too_large);
  EXPECT_EQ(huge.too_large->path, "c");
  EXPECT_EQ(huge.too_large->digits, "1e9999");
  EXPECT_EQ(read("-1e400", 4).too_large->digits, "-1e400");
  const std::string long_number = "[2e" + std::string(1000, '9') + "]";
  EXPECT_EQ(read(long_number, 4).too_large->digits.size(), 60u);
}

// CPU time of reading `text`, the least of a few runs.
template <class Json>
double read_seconds(const std::string& text) {
  const auto now = [] {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  double least = 1e9;
  for (int i = 0; i < 3; ++i) {
    const double start = now();
    EXPECT_FALSE(read_watched_json<Json>(text).value.is_null());
    least = std::min(least, now() - start);
  }
  return least;
}

// 16 times the bytes need 16 times as long if reading is linear, 256 times if it is quadratic.
TEST(ReadWatchedJson, E1TimeIsLinear) {
  const auto objects = [](int n) {
    std::string out = R"({"unknown":[{})";
    for (int i = 1; i < n; ++i) out += ",{}";
    return out + "]}";
  };
  const auto names = [](int n) {
    std::string out = "{";
    for (int i = 0; i < n; ++i) out += "\"tensor." + std::to_string(i) + R"(":{"a":[0,1]},)";
    return out + R"("end":0})";
  };
  for (const auto& text : std::vector<std::function<std::string(int)>>{objects, names}) {
    EXPECT_LT(read_seconds<ordered_json>(text(48'000)),
              80 * read_seconds<ordered_json>(text(3'000)));
    EXPECT_LT(read_seconds<json>(text(48'000)), 80 * read_seconds<json>(text(3'000)));
  }
}

TEST(ReadWatchedJson, E1LimitsNameTheValueThatExceedsThem) {
  const auto path = [](const std::string& text, JsonLimits limits) {
    return read_watched_json<ordered_json>(text, limits).too_many;
  };
  const std::string text = R"({"a":[1,2],"b":{"c":[{},{}]}})";
  EXPECT_EQ(path(text, {.values = 8, .nodes = 9}), std::nullopt);
  EXPECT_EQ(path(text, {.values = 3}), "a[1]");
  EXPECT_EQ(path(text, {.values = 7}), "b.c[1]");
  EXPECT_EQ(path(text, {.nodes = 0}), "");
  EXPECT_EQ(path(text, {.nodes = 8}), "b.c[1]");
  EXPECT_EQ(path(text, {.nodes = 3}), "a");
}

// libstdc++'s hash of a string: 8 bytes change h to (h ^ hash_part(bytes)) * kHashFactor.
constexpr std::uint64_t kHashFactor = 0xc6a4a7935bd1e995;
std::uint64_t hash_part(std::uint64_t word) {
  word *= kHashFactor;
  return (word ^ (word >> 47)) * kHashFactor;
}
std::uint64_t word_with_part(std::uint64_t part) {
  std::uint64_t inverse = 1;  // of the factor, by Newton's iteration
  for (int i = 0; i < 6; ++i) inverse *= 2 - kHashFactor * inverse;
  part *= inverse;
  return (part ^ (part >> 47)) * inverse;
}
std::uint64_t random_word(std::mt19937_64& rng) {
  std::uint64_t out = 0;
  for (int i = 0; i < 8; ++i) out = out << 8 | ('a' + rng() % 26);
  return out;
}
bool is_plain(std::uint64_t word) {
  for (; word != 0; word >>= 8) {
    const std::uint64_t c = word & 255;
    if (c < ' ' || c > '~' || c == '"' || c == '\\') return false;
  }
  return true;
}
std::string bytes_of(std::uint64_t word) {
  return std::string(reinterpret_cast<const char*>(&word), sizeof word);
}

// 2^bits names with one hash: each has, `bits` times, one of two texts of 16 bytes.
std::vector<std::string> names_of_one_hash(int bits) {
  std::mt19937_64 rng(1);
  std::vector<std::string> names = {""};
  std::uint64_t h = 0xc70f6907 ^ (16 * static_cast<std::uint64_t>(bits) * kHashFactor);
  for (int i = 0; i < bits; ++i) {
    const std::uint64_t first = random_word(rng), second = random_word(rng);
    const std::uint64_t h1 = (h ^ hash_part(first)) * kHashFactor;
    const std::uint64_t h2 = (h ^ hash_part(second)) * kHashFactor;
    std::uint64_t after = 0, other = 0;
    do {
      after = random_word(rng);
      other = word_with_part(hash_part(after) ^ h1 ^ h2);
    } while (!is_plain(other));
    h = (h1 ^ hash_part(after)) * kHashFactor;
    const std::size_t n = names.size();
    for (std::size_t k = 0; k < n; ++k) {
      names.push_back(names[k] + bytes_of(second) + bytes_of(other));
      names[k] += bytes_of(first) + bytes_of(after);
    }
  }
  return names;
}

// Whoever writes a body chooses its names.
TEST(ReadWatchedJson, E1NamesOfOneHashAreReadInLinearTime) {
  const std::vector<std::string> names = names_of_one_hash(14);
#ifdef __GLIBCXX__
  EXPECT_EQ(std::hash<std::string>()(names[0]), std::hash<std::string>()(names.back()));
#endif
  const auto text = [&](std::size_t n) {
    std::string out = "{";
    for (std::size_t i = 0; i < n; ++i) out += "\"" + names[i] + "\":0,";
    return out + "\"end\":0}";
  };
  EXPECT_LT(read_seconds<ordered_json>(text(16'000)), 80 * read_seconds<ordered_json>(text(1'000)));
}

// An object of many names is searched in a tree.
TEST(ReadJson, FindsNamesAmongMany) {
  std::string text = "{";
  for (int i = 0; i < 100; ++i) text += "\"" + std::to_string(i) + "\":" + std::to_string(i) + ",";
  EXPECT_EQ(read_watched_json<ordered_json>(text + R"("77":0})").twice, "77");
  const auto last = read_json<ordered_json>(text + R"("77":-1,"end":{}})");
  EXPECT_EQ(last.size(), 101u);
  EXPECT_EQ(last["77"], -1);
  EXPECT_EQ(last["78"], 78);
  EXPECT_TRUE(read_json<json>(std::string(600, '[') + std::string(600, ']')).is_discarded());
}

// The shortest text of the nearest double is another number.
TEST(ReadJsonExact, A8NumbersThatADoubleWouldChangeKeepTheirDigits) {
  const std::string text =
      R"([18446744073709551616,-9223372036854775809,0.1234567890123456789,1e-400,{"a":-1.0000000000000000001e30},100000000000000000000])";
  const ordered_json value = read_json_exact(text);
  EXPECT_EQ(json_text(value), text);
  EXPECT_EQ(digits_of(value[0]), "18446744073709551616");
  EXPECT_EQ(double_of(value[0]), 0x1p64);
  EXPECT_EQ(double_of(value[3]), 0.0);
  EXPECT_TRUE(is_json_number(value[1]));
  EXPECT_EQ(json_excerpt(value[1]), "-9223372036854775809");
  EXPECT_EQ(json_text(read_watched_json<ordered_json>(text, {}, /*exact=*/true).value), text);

  const ordered_json kept = read_json_exact(
      R"([0.5,1.50,-0.0,1e30,9007199254740993,18446744073709551615,0.1,5e-324,1.7976931348623157e308,)"
      R"(0.30000000000000004,1e20,0.000000000000000000001,"1.23456789012345678901"])");
  for (const ordered_json& one : kept) EXPECT_EQ(digits_of(one), std::nullopt) << one;
  EXPECT_EQ(kept, read_json<ordered_json>(json_text(kept)));
  EXPECT_EQ(json_text(read_json_exact("[-0,0,-1]")), "[-0,0,-1]");
  EXPECT_EQ(double_of(read_json_exact("-0")), 0.0);
  EXPECT_TRUE(read_json_exact("[1").is_discarded());
}

TEST(ReadMembers, A8NumbersKeepTheirDigits) {
  const std::string text =
      R"( {"a": 18446744073709551616, "b": [0.1234567890123456789, -0, 1E5, {"c": -1.50}], "é": "x\n"} )";
  const auto members = read_members(text);
  ASSERT_TRUE(members);
  EXPECT_EQ(
      members_text(*members),
      R"({"a":18446744073709551616,"b":[0.1234567890123456789,-0,1E5,{"c":-1.50}],"é":"x\n"})");
  EXPECT_EQ(compact_json(text), members_text(*members));
  EXPECT_EQ(members_text(*read_members(R"({"a":1,"b":2,"a":[3]})")), R"({"a":[3],"b":2})");
  EXPECT_EQ(members_text(*read_members("{}")), "{}");
  EXPECT_EQ(compact_json(R"([ {}, [ ], [[1]], "" ])"), R"([{},[],[[1]],""])");
  EXPECT_EQ(compact_json(" 1.0 "), "1.0");
  for (const char* bad : {"", "[1]", "1", "{", R"({"a":1}x)", R"({"a":nan})", "\"\xFF\""}) {
    EXPECT_FALSE(read_members(bad)) << bad;
  }
  EXPECT_FALSE(compact_json("[1"));
  EXPECT_FALSE(compact_json(std::string(600, '[') + std::string(600, ']')));
}

}  // namespace
}  // namespace lathe
