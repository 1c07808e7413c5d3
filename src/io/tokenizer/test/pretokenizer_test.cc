// Compares pieces with those of Hugging Face's tokenizers (tests/data/tokenizer/splits.jsonl).
#include "io/tokenizer/pretokenizer.h"

#include <gtest/gtest.h>

#include "io/tokenizer/test/tokenizer_fixture.h"

namespace lathe {
namespace {

using Pieces = std::vector<std::string>;

Pieces split(const PreTokenizer& pre_tokenizer, std::string_view text) {
  Pieces out;
  auto matches = pre_tokenizer.make_matches();
  pre_tokenizer.split(text, true, matches,
                      [&](std::string_view piece) { out.emplace_back(piece); });
  return out;
}

TEST(PreTokenizer, SplitsAsTheLibrary) {
  for (const auto& row : fixture_rows("splits.jsonl")) {
    const auto pattern = row["pattern"].get<std::string>();
    auto regex = row["literal"].get<bool>() ? Regex::literal(pattern, "pattern")
                                            : Regex::compile(pattern, "pattern");
    ASSERT_TRUE(regex.ok()) << regex.error().message();
    std::vector<PreTokenizer::Step> steps(1);
    steps[0].regex = std::move(*regex);
    steps[0].behavior = *parse_enum<SplitBehavior>(row["behavior"].get<std::string>());
    steps[0].invert = row["invert"].get<bool>();
    EXPECT_EQ(split(PreTokenizer(std::move(steps)), row["text"].get<std::string>()),
              row["pieces"].get<Pieces>())
        << row;
  }
}

TEST(PreTokenizer, EachStepSeesOnlyItsPiece) {
  std::vector<PreTokenizer::Step> steps(3);
  steps[0].regex = std::move(*Regex::compile(R"(\s+)", "a"));
  steps[1].prefix = " ";
  // If text outside the piece were visible, the lookbehind would see the first step's space.
  steps[2].regex = std::move(*Regex::compile(R"(^ |(?<=\s)b)", "b"));
  const PreTokenizer pre_tokenizer(std::move(steps));
  EXPECT_EQ(split(pre_tokenizer, "ab b"), (Pieces{" ", "ab", " ", " ", "b"}));
  EXPECT_EQ(split(pre_tokenizer, ""), Pieces{});
}

}  // namespace
}  // namespace lathe
