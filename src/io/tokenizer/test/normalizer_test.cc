// Compares results with those of Hugging Face's tokenizers (normalize.jsonl).
#include "io/tokenizer/normalizer.h"

#include <gtest/gtest.h>

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
    EXPECT_EQ(normalizer.apply(text, buffer), row["result"].get<std::string>()) << row;
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
  EXPECT_EQ(normalizer.apply("A \t E\u0301", buffer), "_ax\u00E9");
  EXPECT_EQ(normalizer.apply("", buffer), "");
  EXPECT_EQ(Normalizer().apply("e\u0301", buffer), "e\u0301");
}

}  // namespace
}  // namespace lathe
