#include "server/openai/text_offsets.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lathe {
namespace {

struct OffsetsCase {
  const char* tokenizer;
  std::vector<std::int64_t> offsets;  // as Hugging Face's tokenizers 0.23 gives them
};

// Characters of several tokens, spaces that tokens begin with, and a token that the tokenizer adds
// in front: it begins where the next one does.
TEST(TextOffsets, A9AreThoseOfTheTokenizersLibrary) {
  const std::string text = "a h\u00e9llo w\u00f6rld \u4e16\u754c\U0001f600 x\n\n y";
  const std::vector<OffsetsCase> cases = {
      {"qwen2",
       {0, 1, 3, 3, 4, 7, 9, 9, 10, 11, 13, 14, 14, 14, 15, 15, 15, 16, 16, 16, 17, 19, 21}},
      {"llama3",
       {0, 0, 1, 3, 3, 4, 7, 9, 9, 10, 11, 13, 14, 14, 14, 15, 15, 15, 16, 16, 16, 17, 19, 21}},
      // The last one is </s>, for which the library says 0.
      {"llama2", {0,  0,  1,  3,  4,  6,  7,  9,  10, 11, 12, 13, 14,
                  14, 14, 15, 15, 15, 16, 16, 16, 16, 17, 19, 21, 23}},
  };
  for (const OffsetsCase& c : cases) {
    const auto tokenizer =
        Tokenizer::load(std::string(LATHE_TEST_DATA "/tokenizer/") + c.tokenizer);
    ASSERT_TRUE(tokenizer);
    const auto tokens = tokenizer->encode(text, /*add_special_tokens=*/true);
    ASSERT_TRUE(tokens);
    EXPECT_EQ(offsets_in(text, *tokens, *tokenizer), c.offsets) << c.tokenizer;
    EXPECT_EQ(tokenizer->decode(*tokens, /*skip_special_tokens=*/true), text) << c.tokenizer;
    TextOffsets shown(tokenizer->detokenizer(/*skip_special_tokens=*/true), 0);
    std::vector<std::int64_t> each;
    for (const std::int32_t token : *tokens) each.push_back(shown.next(token));
    EXPECT_EQ(each, c.offsets) << c.tokenizer;
  }
}

}  // namespace
}  // namespace lathe
