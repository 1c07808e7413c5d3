#include "server/openai/text_offsets.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/test_scale.h"

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

// Random tokens of one byte, which is part of the last character of the text so far.
TEST(TextOffsets, CountAReplacementForEachCharacterThatIsCutOff) {
  const std::uint32_t seed = test_seed(5);
  SCOPED_TRACE(seed);
  std::mt19937 rng(seed);
  const std::vector<std::string> pieces = {"\xc3", "\xa9", "\xe4", "\xb8", "\xf0",
                                           "\x9f", "\xef", "\xbf", "\xbd", "a"};
  for (const char* name : {"qwen2", "llama3", "llama2"}) {  // the last one has <0xHH>
    const auto tokenizer = Tokenizer::load(std::string(LATHE_TEST_DATA "/tokenizer/") + name);
    ASSERT_TRUE(tokenizer);
    std::vector<std::int32_t> choices;
    for (const std::string& piece : pieces) {
      std::int32_t id = tokenizer->vocab_size() - 1;  // <0x61> comes before "a"
      while (id >= 0 && !(tokenizer->has(id) && tokenizer->bytes_of(id) == piece)) --id;
      if (id >= 0) choices.push_back(id);
    }
    ASSERT_EQ(choices.size(), pieces.size()) << name;
    for (int round = 0; round < 100 * test_scale(); ++round) {
      TextOffsets offsets(tokenizer->detokenizer(), 7);
      Detokenizer shown = tokenizer->detokenizer();
      std::string text, ids;
      for (int i = 0; i < 12; ++i) {
        const std::int32_t token = choices[rng() % choices.size()];
        ids += std::to_string(token) + " ";
        text += shown.push(token);
        const std::string so_far = text + Detokenizer(shown).flush();
        ASSERT_EQ(offsets.next(token), 7 + count_code_points(so_far) - 1) << name << ids;
      }
    }
  }
}

}  // namespace
}  // namespace lathe
