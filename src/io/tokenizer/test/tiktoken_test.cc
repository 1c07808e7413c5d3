// Compares ids and texts with the PyPI package tiktoken's (tiktoken.jsonl). The file of
// ranks is made by rule from deepseek_v3's vocabulary, as in
// tools/fixtures/make_tokenizer_fixtures.py.
#include "io/tokenizer/tiktoken.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>

#include "io/files/read_file.h"
#include "io/tokenizer/byte_level.h"
#include "io/tokenizer/test/tokenizer_fixture.h"
#include "io/tokenizer/tokenizer.h"

namespace lathe {
namespace {

using TestJson = nlohmann::json;

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t bits = 0;
    for (std::size_t j = i; j < i + 3; ++j) {
      bits = bits << 8 | (j < bytes.size() ? static_cast<std::uint8_t>(bytes[j]) : 0u);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      out.push_back(i + j > bytes.size() ? '=' : kDigits[bits >> (18 - 6 * j) & 63]);
    }
  }
  return out;
}

// The vocabulary's byte tokens in order of their ids, single bytes first.
std::vector<std::string> ranks() {
  const TestJson file = TestJson::parse(*read_file(tokenizer_data("deepseek_v3/tokenizer.json")));
  std::map<int, std::string> by_id;
  for (const auto& [token, id] : file["model"]["vocab"].items()) by_id[id.get<int>()] = token;
  std::vector<std::string> out;
  for (const auto& [id, token] : by_id) {
    if (auto bytes = byte_level_bytes(token)) out.push_back(std::move(*bytes));
  }
  std::stable_partition(out.begin(), out.end(), [](const std::string& t) { return t.size() == 1; });
  return out;
}

std::string ranks_text() {
  std::string out;
  int rank = 0;
  for (const std::string& token : ranks())
    out += base64(token) + " " + std::to_string(rank++) + "\n";
  return out;
}

TestJson config() {
  const auto id = [](int i) { return std::to_string(std::ssize(ranks()) + i); };
  return {{"tokenizer_class", "TikTokenTokenizer"},
          {"added_tokens_decoder",
           {{id(0), {{"content", "[BOS]"}, {"special", true}}},
            {id(1), {{"content", "[EOS]"}, {"special", true}}},
            {id(2), {{"content", "<|im_end|>"}, {"special", true}}},
            {id(5), {{"content", "<|tool_call_begin|>"}, {"special", false}}}}}};
}

class Tiktoken : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) / "lathe_tiktoken";
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ / "tiktoken.model") << ranks_text();
    std::ofstream(folder_ / "tokenizer_config.json") << config().dump();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
};

TEST_F(Tiktoken, EncodesAndDecodesAsTheLibrary) {
  const auto tokenizer = Tokenizer::load(folder_);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  for (const TestJson& row : fixture_rows("tiktoken.jsonl")) {
    const auto ids = row[1].get<std::vector<std::int32_t>>();
    EXPECT_EQ(*tokenizer->encode(row[0].get<std::string>()), ids) << row;
    const auto tail = std::span(ids).subspan(row[2].get<std::size_t>());
    EXPECT_EQ(tokenizer->decode(tail), row[3].get<std::string>()) << row;
  }
}

TEST_F(Tiktoken, NamesSpecialTokensAndTheGapsBetweenThem) {
  const auto tokenizer = Tokenizer::load(folder_);
  ASSERT_TRUE(tokenizer.ok());
  const auto first = static_cast<std::int32_t>(ranks().size());
  EXPECT_EQ(tokenizer->vocab_size(), first + 256);
  EXPECT_EQ(tokenizer->id_of("<|im_end|>"), first + 2);
  EXPECT_TRUE(tokenizer->is_special(first + 2));
  EXPECT_FALSE(tokenizer->is_special(first + 5));
  const std::string gap = "<|reserved_token_" + std::to_string(first + 3) + "|>";
  EXPECT_EQ(*tokenizer->encode(gap), std::vector<std::int32_t>{first + 3});
  EXPECT_TRUE(tokenizer->is_special(first + 3));
  EXPECT_EQ(tokenizer->id_of("Ġthe"), tokenizer->encode(" the")->front());
  // tokenizer.json is read where both are there.
  std::ofstream(folder_ / "tokenizer.json") << "{";
  EXPECT_FALSE(Tokenizer::load(folder_).ok());
}

// Runs longer than the JIT's stack, which a class without backtracking does not need.
TEST_F(Tiktoken, TakesLongRunsOfLetters) {
  const auto tokenizer = Tokenizer::load(folder_);
  ASSERT_TRUE(tokenizer.ok());
  for (const char* unit : {"a", "A", "\u0E01", "\u6F22", "aB"}) {
    std::string text;
    while (text.size() < std::size_t{1} << 18) text += unit;
    const auto ids = tokenizer->encode(text);
    ASSERT_TRUE(ids.ok()) << ids.error().message();
    EXPECT_EQ(tokenizer->decode_bytes(*ids), text);
  }
}

TEST_F(Tiktoken, RefusesByLineAndByKey) {
  const auto refused = [](std::string_view model, const TestJson& with) {
    const auto read = read_tiktoken(model, with.dump());
    return read.ok() ? "" : read.error().field;
  };
  const std::string good = ranks_text();
  EXPECT_EQ(refused(good, config()), "");
  for (const char* line : {"!!!! 9999", "YWI=9999", "YWI= ", "YWI= x", "YWI= -1", "YWI= 9999999",
                           "YWI= 0", "YWI 9999", " 9999"}) {
    EXPECT_EQ(refused(std::string(line) + "\n" + good, config()),
              std::string_view(line).ends_with(" 0") ? "tiktoken.model, line 2"
                                                     : "tiktoken.model, line 1")
        << line;
  }
  EXPECT_EQ(refused(good + base64("a") + " 9999\n", config()), "tiktoken.model");
  EXPECT_EQ(refused(good.substr(good.find('\n') + 1), config()), "tiktoken.model");
  TestJson other = config();
  other["tokenizer_class"] = "QWenTokenizer";
  EXPECT_EQ(refused(good, other), "tokenizer_config.json: tokenizer_class");
  other = config();
  other["added_tokens_decoder"]["3"] = {{"content", "<x>"}};
  EXPECT_EQ(refused(good, other), "tokenizer_config.json: added_tokens_decoder");
  other["added_tokens_decoder"] = {{"a", 1}};
  EXPECT_EQ(refused(good, other), "tokenizer_config.json: added_tokens_decoder[\"a\"]");
  EXPECT_EQ(refused(good, TestJson::array()), "tokenizer_config.json");
}

}  // namespace
}  // namespace lathe
