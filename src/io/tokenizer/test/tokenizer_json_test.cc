#include "io/tokenizer/tokenizer_json.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "io/tokenizer/test/tokenizer_fixture.h"
#include "io/tokenizer/tokenizer.h"

namespace lathe {
namespace {

using SortedJson = nlohmann::json;

SortedJson small() {
  return SortedJson::parse(R"({
    "version": "1.0",
    "added_tokens": [{"id": 4, "content": "<s>", "single_word": false, "lstrip": false,
                      "rstrip": false, "normalized": false, "special": true}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "\\s+"}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]},
    "post_processor": {"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                   {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [4], "tokens": ["<s>"]}}},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "dropout": null, "unk_token": null,
              "vocab": {"a": 0, "b": 1, "ab": 2, "abb": 3},
              "merges": [["a", "b"], "ab b"]}})");
}

TEST(TokenizerJson, ReadsASmallOne) {
  const auto tokenizer = Tokenizer::parse(small().dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  EXPECT_EQ(*tokenizer->encode("abba<s>b", true), (std::vector<std::int32_t>{4, 3, 0, 4, 1}));
  EXPECT_EQ(tokenizer->vocab_size(), 5);
}

struct Refusal {
  const char* pointer;  // to replace
  const char* value;    // the replacement, JSON
  ErrorCode code;
  const char* field;
  const char* offered;
};

constexpr auto kMalformed = ErrorCode::malformed;
constexpr auto kUnsupported = ErrorCode::unsupported;
constexpr auto kRange = ErrorCode::out_of_range;

TEST(TokenizerJson, RefusesByName) {
  const std::vector<Refusal> refusals = {
      {"/version", R"("2.0")", kUnsupported, "version", R"("2.0")"},
      {"/model/type", R"("WordPiece")", kUnsupported, "model.type", R"("WordPiece")"},
      {"/model/dropout", "0.1", kUnsupported, "model.dropout", "0.1"},
      {"/model/end_of_word_suffix", R"("</w>")", kUnsupported, "model.end_of_word_suffix",
       R"("</w>")"},
      {"/model/continuing_subword_prefix", R"("##")", kUnsupported,
       "model.continuing_subword_prefix", R"("##")"},
      {"/model/unk_token", R"("zz")", kMalformed, "model.unk_token", R"("zz")"},
      {"/model/vocab", "[1]", kMalformed, "model.vocab", "an array of 1"},
      {"/model/vocab/b", "0", kMalformed, R"(model.vocab["b"])", "0"},
      {"/model/vocab/b", "-1", kRange, R"(model.vocab["b"])", "-1"},
      {"/model/vocab/b", "2147483648", kRange, R"(model.vocab["b"])", "2147483648"},
      {"/model/vocab/b", "18446744073709551615", kRange, R"(model.vocab["b"])",
       "18446744073709551615"},
      {"/model/vocab/b", "1048576", kRange, R"(model.vocab["b"])", "1048576"},
      {"/model/vocab/b", "1.5", kMalformed, R"(model.vocab["b"])", "1.5"},
      {"/model/vocab/b", R"("1")", kMalformed, R"(model.vocab["b"])", R"("1")"},
      {"/model/vocab/", "9", kMalformed, R"(model.vocab[""])", "9"},
      {"/model/merges", "null", kMalformed, "model.merges", "nothing"},
      {"/model/merges/1", R"("ab c")", kMalformed, "model.merges[1]", R"("ab c")"},
      {"/model/merges/1", R"("b a")", kMalformed, "model.merges[1]", R"("b a")"},
      {"/model/merges/1", R"("ab")", kMalformed, "model.merges[1]", R"("ab")"},
      {"/model/merges/1", R"(["a", "b", "b"])", kMalformed, "model.merges[1]", "an array of 3"},
      {"/model/merges/1", R"(["a", 1])", kMalformed, "model.merges[1]", "an array of 2"},
      {"/added_tokens/0/id", "2", kMalformed, "added_tokens[0].id", "2"},
      {"/added_tokens/0/id", "-4", kRange, "added_tokens[0].id", "-4"},
      {"/added_tokens/0/id", "4294967296", kRange, "added_tokens[0].id", "4294967296"},
      {"/added_tokens/0/content", R"("ab")", kMalformed, "added_tokens[0].id", "4"},
      {"/added_tokens/0/special", "null", kMalformed, "added_tokens[0].special", "nothing"},
      {"/added_tokens", "{}", kMalformed, "added_tokens", "an object"},
      {"/normalizer/normalizers/0/type", R"("Nmt")", kUnsupported, "normalizer.normalizers[0].type",
       R"("Nmt")"},
      {"/normalizer/normalizers/0", R"({"type": "Precompiled"})", kMalformed,
       "normalizer.normalizers[0].precompiled_charsmap", "nothing"},
      {"/normalizer/normalizers/0", R"({"type": "Precompiled", "precompiled_charsmap": "/w=="})",
       kMalformed, "normalizer.normalizers[0].precompiled_charsmap", R"("/w==")"},
      {"/pre_tokenizer", R"({"type": "Whitespace"})", kUnsupported, "pre_tokenizer.type",
       R"("Whitespace")"},
      {"/pre_tokenizer", R"({"type": "Metaspace"})", kMalformed, "pre_tokenizer.replacement",
       "nothing"},
      {"/pre_tokenizer", R"({"type": "Metaspace", "replacement": "__"})", kMalformed,
       "pre_tokenizer.replacement", R"("__")"},
      {"/pre_tokenizer", R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"})",
       kUnsupported, "pre_tokenizer.prepend_scheme", R"("last")"},
      {"/pre_tokenizer",
       R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "first",
           "add_prefix_space": false})",
       kMalformed, "pre_tokenizer.add_prefix_space", "false"},
      {"/pre_tokenizer/pretokenizers/0/behavior", R"("Sideways")", kUnsupported,
       "pre_tokenizer.pretokenizers[0].behavior", R"("Sideways")"},
      {"/pre_tokenizer/pretokenizers/0/pattern", "{}", kMalformed,
       "pre_tokenizer.pretokenizers[0].pattern", "an object"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", R"("(a")", kMalformed,
       "pre_tokenizer.pretokenizers[0].pattern.Regex",
       "one with an error at byte 2: missing closing parenthesis"},
      {"/pre_tokenizer/pretokenizers/0", R"({"type": "ByteLevel", "add_prefix_space": true})",
       kUnsupported, "pre_tokenizer.pretokenizers[1].type", R"("ByteLevel")"},
      {"/post_processor", R"({"type": "BertProcessing"})", kUnsupported, "post_processor.type",
       R"("BertProcessing")"},
      {"/post_processor/single/1/Sequence/id", R"("B")", kUnsupported,
       "post_processor.single[1].Sequence", "an object"},
      {"/post_processor/special_tokens", "{}", kMalformed, "post_processor.special_tokens.<s>",
       "nothing"},
      {"/decoder/type", R"("WordPiece")", kUnsupported, "decoder.type", R"("WordPiece")"},
      {"/decoder",
       R"({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]})",
       kUnsupported, "decoder.decoders[1].type", R"("ByteFallback")"},
  };
  for (const Refusal& r : refusals) {
    SortedJson json = small();
    json[SortedJson::json_pointer(r.pointer)] = SortedJson::parse(r.value);
    const auto tokenizer = Tokenizer::parse(json.dump());
    ASSERT_FALSE(tokenizer.ok()) << r.pointer << " " << r.value;
    EXPECT_EQ(tokenizer.error().code, r.code) << tokenizer.error().message();
    EXPECT_EQ(tokenizer.error().field, r.field) << tokenizer.error().message();
    EXPECT_EQ(tokenizer.error().offered, r.offered) << tokenizer.error().message();
  }
}

TEST(TokenizerJson, RefusesTwoAddedTokensOfOneIdOrName) {
  SortedJson json = small();
  SortedJson second = json["added_tokens"][0];
  second["content"] = "<t>";
  json["added_tokens"].push_back(second);
  EXPECT_EQ(Tokenizer::parse(json.dump()).error().field, "added_tokens[1].id");
  json["added_tokens"][1]["content"] = "<s>";
  EXPECT_EQ(Tokenizer::parse(json.dump()).error().field, "added_tokens[1].id");
}

TEST(TokenizerJson, RefusesWhatIsNoJsonAndWhatNestsWithoutEnd) {
  for (const std::string& text : {std::string(), std::string("{"), std::string("\xFF"),
                                  std::string(100000, '['), std::string("7"), std::string("{}")}) {
    EXPECT_FALSE(Tokenizer::parse(text).ok());
  }
  SortedJson nested = {{"type", "NFC"}};
  for (int i = 0; i < 20; ++i) nested = {{"type", "Sequence"}, {"normalizers", {nested}}};
  SortedJson json = small();
  json["normalizer"] = nested;
  EXPECT_FALSE(Tokenizer::parse(json.dump()).ok());
  // As a value of the wrong type: the reader's bound on nesting comes first.
  std::string deep = small().dump();
  deep.replace(deep.find("\"1.0\""), 5, std::string(100000, '[') + std::string(100000, ']'));
  EXPECT_TRUE(Tokenizer::parse(deep).error().field.starts_with("tokenizer.json: version[0][0]"));
}

// A truncated or changed file gives an error or another tokenizer, never a crash.
TEST(TokenizerJson, SurvivesDamage) {
  std::ifstream file(tokenizer_data("options/tokenizer.json"), std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  ASSERT_GT(whole.size(), 1000u);
  for (std::size_t i = 0; i < whole.size(); i += 37) {
    EXPECT_FALSE(Tokenizer::parse(std::string_view(whole).substr(0, i)).ok());
    std::string changed = whole;
    changed[i] = '0';
    const auto tokenizer = Tokenizer::parse(changed);
    if (tokenizer) static_cast<void>(tokenizer->encode("The [LR] lathe's word 12"));
  }
}

// A search that stops at PCRE2's limit has not read the text: its tokens would be others.
TEST(TokenizerJson, E13APatternThatStopsIsAnError) {
  SortedJson json = small();
  json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(?:a+)+[bc]";
  const auto tokenizer = Tokenizer::parse(json.dump());
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_TRUE(tokenizer->encode("aab").ok());
  const auto stopped = tokenizer->encode(std::string(64, 'a'));
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().code, ErrorCode::exhausted);
  EXPECT_EQ(stopped.error().field, "pre_tokenizer");
  EXPECT_TRUE(tokenizer->encode("aab").ok());  // the next text is free of it
}

// A text, an added token and the tokens themselves, at load: every place where steps rewrite text.
TEST(TokenizerJson, E13TextThatGrowsIsAnError) {
  const SortedJson grow = {
      {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(1000, 'a')}};
  SortedJson json = small();
  SortedJson steps = SortedJson::array();
  for (int i = 0; i < 8; ++i) steps.push_back(grow);
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
  const auto tokenizer = Tokenizer::parse(json.dump());
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_TRUE(tokenizer->encode("b").ok());
  EXPECT_EQ(tokenizer->encode(std::string(100, 'a')).error().field, "normalizer");
  json["added_tokens"][0]["normalized"] = true;
  json["added_tokens"][0]["content"] = "<a>";
  json["post_processor"] = nullptr;
  ASSERT_FALSE(Tokenizer::parse(json.dump()).ok());
  EXPECT_EQ(Tokenizer::parse(json.dump()).error().field, "normalizer");

  json = small();
  json["decoder"] = {{"type", "Sequence"}, {"decoders", steps}};
  ASSERT_FALSE(Tokenizer::parse(json.dump()).ok());
  EXPECT_EQ(Tokenizer::parse(json.dump()).error().field, "decoder");
}

}  // namespace
}  // namespace lathe
