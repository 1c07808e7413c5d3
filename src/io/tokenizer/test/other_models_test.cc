// Metaspace and unigram models, made by rule from llama2's vocabulary, against Hugging Face's
// tokenizers (other_models.jsonl; tools/fixtures/make_tokenizer_fixtures.py has the same rule).
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <span>

#include "io/files/read_file.h"
#include "io/tokenizer/test/tokenizer_fixture.h"
#include "io/tokenizer/tokenizer.h"

namespace lathe {
namespace {

using TestJson = nlohmann::json;
using TokenIds = std::vector<std::int32_t>;

TestJson llama2() { return TestJson::parse(*read_file(tokenizer_data("llama2/tokenizer.json"))); }

TestJson unigram_model(const TestJson& vocabulary, bool byte_fallback) {
  std::map<int, std::string> by_id;
  for (const auto& [token, id] : vocabulary.items()) by_id[id.get<int>()] = token;
  TestJson vocab = TestJson::array();
  for (const auto& [id, token] : by_id) {
    const auto characters = std::ranges::count_if(
        token, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
    const double score = id < 3 ? 0 : -(8.0 + id % 13 / 4.0 - static_cast<double>(characters) / 8);
    vocab.push_back({token, score});
  }
  return {{"type", "Unigram"}, {"unk_id", 0}, {"byte_fallback", byte_fallback}, {"vocab", vocab}};
}

TEST(OtherModels, EncodeAndDecodeAsTheLibrary) {
  const auto rows = fixture_rows("other_models.jsonl");
  const auto texts = rows[0].get<std::vector<std::string>>();
  std::size_t models = 0;
  for (std::size_t r = 1; r < rows.size(); r += texts.size() + 1, ++models) {
    TestJson file = llama2();
    file.update(rows[r]["keys"]);
    const auto name = rows[r]["name"].get<std::string>();
    if (name.starts_with("unigram")) {
      file["model"] = unigram_model(llama2()["model"]["vocab"], name == "unigram_bytes");
    }
    const auto tokenizer = Tokenizer::parse(file.dump());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const TestJson& row = rows[r + 1 + i];
      const auto ids = row[0].get<TokenIds>();
      EXPECT_EQ(*tokenizer->encode(texts[i]), ids) << name << ": " << texts[i];
      const auto wanted = row[2].get<std::string>();
      const auto tail = std::span(ids).subspan(row[1].get<std::size_t>());
      EXPECT_EQ(tokenizer->decode(tail), wanted) << name << ": " << texts[i];
      if (wanted.find("\uFFFD") != std::string::npos) continue;  // runs of bytes stream differently
      Detokenizer stream = tokenizer->detokenizer();
      std::string streamed;
      for (int again = 0; again < 2; ++again) {
        for (const std::int32_t id : tail) streamed += stream.push(id);
        streamed += stream.flush();
      }
      EXPECT_EQ(streamed, wanted + wanted) << name << ": " << texts[i];
    }
  }
  EXPECT_EQ(models, 9u);
}

// After an added token, and after a byte that is not UTF-8, no text begins.
TEST(OtherModels, ThePrefixIsAtTheStartOfTheTextOnly) {
  TestJson file = llama2();
  file["normalizer"] = nullptr;
  file["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}};
  const auto first = Tokenizer::parse(file.dump());
  file["pre_tokenizer"]["prepend_scheme"] = "never";
  const auto never = Tokenizer::parse(file.dump());
  ASSERT_TRUE(first.ok() && never.ok());
  EXPECT_NE(*first->encode("the"), *never->encode("the"));
  EXPECT_EQ(*first->encode("<s>the"), *never->encode("<s>the"));
  EXPECT_EQ(*first->encode("\xFFthe"), *never->encode("\xFFthe"));
}

TEST(OtherModels, UnigramsTakeLongTextsAndRefuseByKey) {
  TestJson file = llama2();
  file["normalizer"] = nullptr;
  file["pre_tokenizer"] = nullptr;
  file["model"] = unigram_model(llama2()["model"]["vocab"], true);
  const auto tokenizer = Tokenizer::parse(file.dump());
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_GT(tokenizer->encode(std::string(std::size_t{1} << 18, 'a'))->size(), 1u << 14);
  struct Case {
    const char* pointer;
    TestJson value;
    const char* field;
  };
  for (const Case& c : {Case{"/model/unk_id", 100000, "model.unk_id"},
                        Case{"/model/vocab/5", TestJson::array({"x"}), "model.vocab[5]"},
                        Case{"/model/vocab/5", TestJson::array({"", 1}), "model.vocab[5]"},
                        Case{"/model/vocab/5/0", "<s>", "model.vocab[5]"},
                        Case{"/model/vocab/5/0", std::string(600, 'a'), "model.vocab[5]"},
                        Case{"/model/vocab", {{"a", 1}}, "model.vocab"}}) {
    TestJson changed = file;
    changed[TestJson::json_pointer(c.pointer)] = c.value;
    const auto refused = Tokenizer::parse(changed.dump());
    ASSERT_FALSE(refused.ok()) << c.pointer;
    EXPECT_EQ(refused.error().field, c.field);
  }
}

}  // namespace
}  // namespace lathe
