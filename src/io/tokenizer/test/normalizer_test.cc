// Compares results with those of Hugging Face's tokenizers (normalize.jsonl).
#include "io/tokenizer/normalizer.h"

#include <gtest/gtest.h>

#include <random>

#include "base/test_scale.h"
#include "io/text/base64.h"
#include "io/text/utf8.h"

#include "io/tokenizer/test/tokenizer_fixture.h"

namespace lathe {
namespace {

TEST(Normalizer, GivesTheLibrarysForms) {
  for (const auto& row : fixture_rows("normalize.jsonl")) {
    std::vector<Normalizer::Step> steps(1);
    steps[0].kind = *parse_enum<NormalizerKind>(row["kind"].get<std::string>());
    const Normalizer normalizer(std::move(steps));
    const auto text = row["text"].get<std::string>();
    std::string buffer;
    EXPECT_EQ(*normalizer.apply(text, buffer), row["result"].get<std::string>()) << row;
  }
}

// A charsmap that sentencepiece made; the library's results (charsmap.jsonl).
TEST(Normalizer, ReplacesByAPrecompiledCharsmap) {
  auto rows = fixture_rows("charsmap.jsonl");
  const std::string bytes = *decode_base64(rows[0]["charsmap"].get<std::string>());
  std::vector<Normalizer::Step> steps(1);
  steps[0].kind = NormalizerKind::Precompiled;
  steps[0].charsmap = Charsmap::parse(bytes);
  ASSERT_TRUE(steps[0].charsmap.has_value());
  const Normalizer normalizer(std::move(steps));
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const auto text = rows[i]["text"].get<std::string>();
    std::string buffer;
    EXPECT_EQ(*normalizer.apply(text, buffer), rows[i]["result"].get<std::string>()) << rows[i];
  }
}

// Damaged bytes are refused, or look up nothing outside them.
TEST(Charsmap, SurvivesDamage) {
  const auto rows = fixture_rows("charsmap.jsonl");
  const std::string bytes = *decode_base64(rows[0]["charsmap"].get<std::string>());
  for (const std::size_t size : {0, 1, 4, 7, 8}) {
    EXPECT_FALSE(Charsmap::parse(bytes.substr(0, size)).has_value()) << size;
  }
  std::mt19937 rng(test_seed(1));
  for (int round = 0; round < 300; ++round) {
    std::string damaged = bytes;
    for (int i = 0; i < 8; ++i) damaged[4 + rng() % 1024] = static_cast<char>(rng());
    const auto map = Charsmap::parse(damaged);
    ASSERT_TRUE(map.has_value());
    for (std::size_t i = 1; i < rows.size(); i += 7) {
      std::string out;
      map->apply(rows[i]["text"].get<std::string>(), 4096, out);
      EXPECT_EQ(utf8_valid_prefix(out), out.size());
    }
  }
}

TEST(Normalizer, AppliesStepsInOrder) {
  std::vector<Normalizer::Step> steps(4);
  steps[0].kind = NormalizerKind::Replace;
  steps[0].text = "X";
  steps[0].regex = std::move(*Regex::compile(R"(\s+)", "pattern"));
  steps[1].kind = NormalizerKind::Lowercase;
  steps[2].kind = NormalizerKind::NFC;
  steps[3].kind = NormalizerKind::Prepend;
  steps[3].text = "_";
  const Normalizer normalizer(std::move(steps));
  std::string buffer;
  EXPECT_EQ(*normalizer.apply("A \t E\u0301", buffer), "_ax\u00E9");
  EXPECT_EQ(*normalizer.apply("", buffer), "");
  EXPECT_EQ(*Normalizer().apply("e\u0301", buffer), "e\u0301");
}

// Eight steps that each make a text a thousand times as long end in an error, soon and in little
// memory; so do prefixes far longer than the text.
TEST(Normalizer, E13GrowthIsBounded) {
  const auto step = [](NormalizerKind kind, std::string text) {
    Normalizer::Step out;
    out.kind = kind;
    out.text = std::move(text);
    if (kind == NormalizerKind::Replace) out.regex = std::move(*Regex::literal("a", "pattern"));
    return out;
  };
  std::vector<Normalizer::Step> steps;
  for (int i = 0; i < 8; ++i) {
    steps.push_back(step(NormalizerKind::Replace, std::string(1000, 'a')));
  }
  std::string buffer;
  const auto grown = Normalizer(std::move(steps)).apply(std::string(1000, 'a'), buffer);
  ASSERT_FALSE(grown.ok());
  EXPECT_EQ(grown.error().code, ErrorCode::exhausted);
  EXPECT_EQ(grown.error().field, "normalizer");
  EXPECT_LT(buffer.capacity(), std::size_t{1} << 20);
  steps.clear();
  steps.push_back(step(NormalizerKind::Prepend, std::string(100000, 'x')));
  EXPECT_FALSE(Normalizer(std::move(steps)).apply("a", buffer).ok());
  // What published normalizers do is far from it: the longest decomposition has 18 characters.
  steps.clear();
  steps.push_back(step(NormalizerKind::NFKD, ""));
  std::string longest;
  for (int i = 0; i < 10000; ++i) longest += "\uFDFA";
  EXPECT_TRUE(Normalizer(std::move(steps)).apply(longest, buffer).ok());
}

}  // namespace
}  // namespace lathe
