// Compares ids and texts with those of Hugging Face's tokenizers (tests/data/tokenizer).
#include "io/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "io/files/read_file.h"
#include "io/text/utf8.h"
#include "io/tokenizer/test/tokenizer_fixture.h"

namespace lathe {
namespace {

using Ids = std::vector<std::int32_t>;

Tokenizer load(const std::string& family) {
  auto tokenizer = Tokenizer::load(tokenizer_data(family));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  return std::move(*tokenizer);
}

std::vector<std::string> texts() {
  std::vector<std::string> out;
  for (const auto& row : fixture_rows("texts.jsonl")) out.push_back(row.get<std::string>());
  return out;
}

class Family : public testing::TestWithParam<const char*> {
 protected:
  std::string file(const std::string& name) const { return std::string(GetParam()) + "/" + name; }
};

TEST_P(Family, EncodesAsTheLibrary) {
  const Tokenizer tokenizer = load(GetParam());
  const auto lines = fixture_lines(file("ids.txt"));
  const auto all = texts();
  ASSERT_EQ(lines.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::istringstream in(lines[i]);
    const Ids wanted{std::istream_iterator<std::int32_t>(in), {}};
    EXPECT_EQ(*tokenizer.encode(all[i]), wanted) << "line " << i + 1 << ": " << all[i];
  }
}

TEST_P(Family, E1EncodingStopsWhenNobodyWaits) {
  const Tokenizer tokenizer = load(GetParam());
  std::atomic<bool> stop = false;
  EXPECT_TRUE(tokenizer.encode("some text", false, {}, &stop));
  stop = true;
  const auto ended = tokenizer.encode("some text", false, {}, &stop);
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().offered, "one that has left");
}

TEST_P(Family, AddsSpecialTokensAsTheLibrary) {
  const Tokenizer tokenizer = load(GetParam());
  for (const auto& row : fixture_rows(file("special.jsonl"))) {
    EXPECT_EQ(*tokenizer.encode(row["text"].get<std::string>(), true), row["ids"].get<Ids>());
  }
}

TEST_P(Family, DecodesAsTheLibrary) {
  const Tokenizer tokenizer = load(GetParam());
  for (const auto& row : fixture_rows(file("decode.jsonl"))) {
    const auto ids = row["ids"].get<Ids>();
    EXPECT_EQ(tokenizer.decode(ids), row["text"].get<std::string>()) << row;
    EXPECT_EQ(tokenizer.decode(ids, true), row["skipped"].get<std::string>()) << row;
  }
}

TEST_P(Family, StreamsWhatItDecodes) {
  const Tokenizer tokenizer = load(GetParam());
  for (const auto& row : fixture_rows(file("decode.jsonl"))) {
    // The two may differ in runs of invalid fallback bytes.
    if (GetParam() == std::string("llama2") &&
        row["text"].get<std::string>().find("\uFFFD") != std::string::npos) {
      continue;
    }
    for (const bool skip : {false, true}) {
      Detokenizer stream = tokenizer.detokenizer(skip);
      std::string text;
      for (const auto id : row["ids"].get<Ids>()) {
        const std::string part = stream.push(id);
        EXPECT_EQ(utf8_valid_prefix(part), part.size());
        text += part;
      }
      text += stream.flush();
      EXPECT_EQ(text, row[skip ? "skipped" : "text"].get<std::string>()) << row;
    }
  }
}

TEST_P(Family, BrokenNamesOfAddedTokensAreText) {
  const Tokenizer tokenizer = load(GetParam());
  const auto json = read_file(tokenizer_data(GetParam()) + std::string("/tokenizer.json"));
  ASSERT_TRUE(json.ok());
  const auto added = nlohmann::json::parse(*json)["added_tokens"];
  std::string all = "a";
  for (const auto& token : added) all += token["content"].get<std::string>() + " b";
  const Ids ids = *tokenizer.encode(all, false, tokenizer.find_added_tokens(all));
  for (const auto& token : added) {
    // [UNK] is also the token of unknown characters; a normalised token has many spellings.
    if (token["content"] == "[UNK]" || token["normalized"] == true) continue;
    EXPECT_EQ(std::ranges::count(ids, token["id"].get<std::int32_t>()), 0) << token;
  }
  // The same bytes, but for what normalisers change.
  if (std::string(GetParam()) != "options") {
    EXPECT_EQ(tokenizer.decode(ids), all);
  }

  // Only the first of two names is broken.
  const auto& first = *std::ranges::find_if(added, [](const auto& token) {
    return token["content"] != "[UNK]" && !token["single_word"].template get<bool>();
  });
  const std::string name = first["content"].get<std::string>();
  const std::string twice = "x" + name + "y" + name;
  auto breaks = tokenizer.find_added_tokens(twice);
  ASSERT_GE(breaks.size(), 2u);
  std::erase_if(breaks, [&](std::size_t at) { return at > 1 + name.size(); });
  const Ids one = *tokenizer.encode(twice, false, breaks);
  EXPECT_EQ(std::ranges::count(one, first["id"].get<std::int32_t>()), 1);
  EXPECT_EQ(one.back(), first["id"].get<std::int32_t>());
  for (const std::string& text : texts()) {
    if (tokenizer.find_added_tokens(text).empty()) continue;
    EXPECT_NE(*tokenizer.encode(text),
              *tokenizer.encode(text, false, tokenizer.find_added_tokens(text)));
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizer, Family,
                         testing::Values("deepseek_v3", "llama3", "qwen2", "llama2", "options"),
                         [](const auto& family) { return std::string(family.param); });

// Deterministic input, mostly text with stray bytes and incomplete characters.
std::string broken_text(std::mt19937& random, const std::vector<std::string>& all) {
  std::string out;
  for (int i = 0; i < 4; ++i) {
    std::string text = all[random() % all.size()];
    if (!text.empty()) text.erase(random() % text.size(), random() % 3);
    out += text;
    for (auto n = random() % 4; n > 0; --n) out.push_back(static_cast<char>(random()));
  }
  return out;
}

TEST(TokenizerBytes, AnyBytesComeBack) {
  const auto all = texts();
  for (const char* family : {"deepseek_v3", "llama3"}) {
    const Tokenizer tokenizer = load(family);
    std::mt19937 random(5);
    for (int i = 0; i < 300; ++i) {
      const std::string text = broken_text(random, all);
      EXPECT_EQ(tokenizer.decode_bytes(*tokenizer.encode(text)), text);
    }
  }
}

TEST(TokenizerBytes, AStrayByteIsASymbolOfItsOwn) {
  const Tokenizer tokenizer = load("qwen2");
  // U+0100 onwards represent unprintable bytes: 0xFF is printable Latin-1, 0x80 is the 35th other.
  EXPECT_EQ(*tokenizer.encode("\xFF"), Ids{*tokenizer.id_of("ÿ")});
  EXPECT_EQ(*tokenizer.encode("\x80"), Ids{*tokenizer.id_of("Ģ")});
  // An incomplete character does not change the text next to it.
  Ids wanted = *tokenizer.encode("the lathe");
  wanted.push_back(*tokenizer.id_of("â"));
  wanted.push_back(*tokenizer.id_of("Ĥ"));
  EXPECT_EQ(*tokenizer.encode("the lathe\xE2\x82"), wanted);
  EXPECT_EQ(tokenizer.decode(wanted), "the lathe\uFFFD");
}

TEST(TokenizerBytes, StreamsCharactersWhole) {
  const Tokenizer tokenizer = load("deepseek_v3");
  Detokenizer stream = tokenizer.detokenizer();
  // U+1F30D as four bytes.
  const Ids bytes = {*tokenizer.id_of("ð"), *tokenizer.id_of("Ł"), *tokenizer.id_of("Į"),
                     *tokenizer.id_of("į")};
  EXPECT_EQ(stream.push(bytes[0]), "");
  EXPECT_EQ(stream.push(bytes[1]), "");
  EXPECT_EQ(stream.push(bytes[2]), "");
  EXPECT_EQ(stream.push(*tokenizer.id_of("į")), "\U0001F30D");
  EXPECT_EQ(stream.push(bytes[0]), "");
  EXPECT_EQ(stream.push(*tokenizer.id_of("a")), "\uFFFDa");
  EXPECT_EQ(stream.push(bytes[0]), "");
  EXPECT_EQ(stream.flush(), "\uFFFD");
  EXPECT_EQ(stream.push(-1), "");
  EXPECT_EQ(stream.push(tokenizer.vocab_size()), "");
  EXPECT_EQ(stream.flush(), "");
}

TEST(Tokenizer, TellsItsTokens) {
  const Tokenizer tokenizer = load("deepseek_v3");
  const auto bos = tokenizer.id_of("<｜begin▁of▁sentence｜>");
  ASSERT_TRUE(bos.has_value());
  EXPECT_TRUE(tokenizer.is_special(*bos));
  EXPECT_EQ(tokenizer.bytes_of(*bos), "<｜begin▁of▁sentence｜>");
  const auto think = tokenizer.id_of("<think>");
  ASSERT_TRUE(think.has_value());
  EXPECT_FALSE(tokenizer.is_special(*think));
  EXPECT_EQ(tokenizer.vocab_size(), *think + 1);
  const auto the = tokenizer.id_of("Ġthe");
  ASSERT_TRUE(the.has_value());
  EXPECT_EQ(tokenizer.bytes_of(*the), " the");
  EXPECT_FALSE(tokenizer.id_of("no such token").has_value());
  EXPECT_FALSE(tokenizer.has(-1));
  EXPECT_FALSE(tokenizer.has(tokenizer.vocab_size()));
  EXPECT_FALSE(tokenizer.is_special(-1));
}

// In quadratic time each of these would take minutes.
TEST(Tokenizer, TakesLongRunsOfAnything) {
  constexpr std::size_t kSize = std::size_t{1} << 18;
  std::mt19937 random(9);
  std::string letters;
  while (letters.size() < 4 * kSize) letters.push_back("etaoinshrdlu"[random() % 12]);
  std::string marks = "a";
  while (marks.size() < kSize) marks += "\u0301\u0323";  // not in canonical order
  const std::vector<std::string> long_texts = {std::string(kSize, 'a'),
                                               std::string(kSize, ' '),
                                               std::string(kSize, '\n'),
                                               std::string(kSize, '!'),
                                               std::string(kSize, '\xFF'),
                                               std::string(kSize, '<'),
                                               letters,
                                               marks};
  for (const char* family : {"deepseek_v3", "qwen2", "options"}) {
    const Tokenizer tokenizer = load(family);
    for (const std::string& text : long_texts) {
      const Ids ids = *tokenizer.encode(text);
      EXPECT_GE(ids.size(), kSize / 16);
      EXPECT_TRUE(family != std::string("deepseek_v3") || tokenizer.decode_bytes(ids) == text);
    }
  }
}

TEST(Tokenizer, NamesAFileThatIsNotThere) {
  const auto tokenizer = Tokenizer::load("/nowhere/at/all");
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.error().code, ErrorCode::io);
  EXPECT_EQ(tokenizer.error().field, "/nowhere/at/all");
}

}  // namespace
}  // namespace lathe
