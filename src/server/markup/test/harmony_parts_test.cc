// Answers in channels; the first three are of openai-harmony's documentation.
#include "server/markup/harmony_parts.h"

#include <gtest/gtest.h>

#include <random>

#include "server/markup/test/markup_test_util.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

MarkupRules channels(bool by_id = false) {
  MarkupRules r;
  r.harmony = HarmonyRules{
      .marks_by_id = by_id,
      .calls = true,
      .schemas = std::make_shared<const Json>(Json::parse(
          R"([{"type": "function", "function": {"name": "weather", "parameters": {}}}])"))};
  return r;
}

// Marks as special tokens arrive.
std::string as_tokens(std::string text) {
  for (std::size_t at = 0; (at = text.find("<|", at)) != std::string::npos; at += 3) {
    text.insert(at, 1, kMarkByte);
  }
  return text;
}

void says(const std::string& text, const std::string& wanted, bool whole = true) {
  expect_answer(channels(), text, wanted, whole);
  expect_answer(channels(true), as_tokens(text), wanted, whole);
}

const std::string kNext = "<|start|>assistant";

TEST(HarmonyParts, B7ChannelsSayWhatATextIs) {
  says("<|channel|>analysis<|message|>User asks: \"What is 2 + 2?\" Simple arithmetic.<|end|>" +
           kNext + "<|channel|>final<|message|>2 + 2 = 4.<|return|>",
       "reasoning: User asks: \"What is 2 + 2?\" Simple arithmetic.\ncontent: 2 + 2 = 4.\n");
  says("<|channel|>analysis<|message|>Need to use function weather.<|end|>" + kNext +
           "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"location\":"
           "\"San Francisco\"}<|call|>",
       "reasoning: Need to use function weather.\ncontent: \n"
       "weather{\"location\":\"San Francisco\"}\n");
  says("<|channel|>commentary<|message|>**Action plan**: look<|end|>" + kNext +
           "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"a\": 1}",
       "reasoning: \ncontent: **Action plan**: look\nweather{\"a\":1}\n");
  // The recipient before the channel, and one without its namespace.
  says(" to=functions.weather<|channel|>commentary json<|message|>{}<|call|>",
       "reasoning: \ncontent: \nweather{}\n");
  says("<|channel|>commentary to=weather<|message|>{}", "reasoning: \ncontent: \nweather{}\n");
  // A recipient without a name is no function.
  says("<|channel|>commentary to=functions.<|message|>{}",
       "reasoning: \ncontent: <|channel|>commentary to=functions.<|message|>{}\n");
  // Messages are paragraphs.
  says("<|channel|>analysis<|message|>a<|end|>" + kNext + "<|channel|>analysis<|message|>b<|end|>" +
           kNext + "<|channel|>final<|message|>c",
       "reasoning: a\nb\ncontent: c\n");
}

TEST(HarmonyParts, NothingIsLost) {
  // Without channels, without <|start|>assistant, cut in a header.
  says("Hello", "reasoning: \ncontent: Hello\n");
  says("<|channel|>analysis<|message|>a<|end|><|channel|>final<|message|>b",
       "reasoning: a\ncontent: b\n");
  const std::string more(600, 'x');
  says("<|channel|>final<|message|>" + more, "reasoning: \ncontent: " + more + "\n");
  says("<|channel|>" + more + "<|message|>",
       "reasoning: \ncontent: <|channel|>" + more + "<|message|>\n");
  says("<|channel|>anal", "reasoning: \ncontent: \n", false);
  // Built-in tools that the server has not.
  const std::string browser = "<|channel|>analysis to=browser.search code<|message|>{\"q\": 1}";
  says(browser + "<|call|>", "reasoning: \ncontent: " + browser + "<|call|>\n");
  // A call that is cut, or no JSON object.
  const std::string cut = "<|channel|>commentary to=functions.weather<|message|>{\"a\": 1";
  says(cut, "reasoning: \ncontent: " + cut + "\n");
  says(cut + "}", "reasoning: \ncontent: " + cut + "}\n", false);
  says(cut + "}", "reasoning: \ncontent: \nweather{\"a\":1}\n");
  // A quoted mark is text: without tokens where no message can follow, with tokens anywhere.
  expect_answer(channels(), "<|channel|>final<|message|>Write <|end|> and <|message|> so <|star",
                "reasoning: \ncontent: Write <|end|> and <|message|> so <|star\n");
  const std::string quoted = "<|end|><|start|>assistant<|channel|>final<|message|>x";
  expect_answer(channels(true), as_tokens("<|channel|>final<|message|>") + quoted,
                "reasoning: \ncontent: " + quoted + "\n");
}

TEST(HarmonyParts, FollowsTheRequest) {
  const std::string call = "<|channel|>commentary to=functions.weather json<|message|>{}";
  MarkupRules r = channels();
  r.harmony->calls = false;
  expect_answer(r, call, "reasoning: \ncontent: " + call + "\n");
  r = channels();
  r.one_call = r.harmony->one_call = true;
  expect_answer(r, call + "<|end|>" + kNext + call + "<|end|>",
                "reasoning: \ncontent: \nweather{}\n");
  const std::string bare = "<|channel|>commentary to=weather json<|message|>{}";
  r = channels();
  expect_answer(r, bare, "reasoning: \ncontent: \nweather{}\n");
  r.harmony->prefixed = true;
  expect_answer(r, bare, "reasoning: \ncontent: " + bare + "\n");
  expect_answer(r, call, "reasoning: \ncontent: \nweather{}\n");
  // A prompt that ends in a message.
  r = channels();
  r.harmony->begun = "assistant<|channel|>final<|message|>So f";
  expect_answer(r, "ar<|return|>", "reasoning: \ncontent: ar\n");
  r.harmony->begun = "assistant<|channel|>analysis<|message|>So f";
  expect_answer(r, "ar<|end|>" + kNext + "<|channel|>final<|message|>b",
                "reasoning: ar\ncontent: b\n");
  // Reasoning that stays in content keeps its marks.
  r = channels();
  r.harmony->reasoning_stays = true;
  const std::string all =
      "<|channel|>analysis<|message|>a<|end|>" + kNext + "<|channel|>final<|message|>b";
  expect_answer(r, all, "reasoning: \ncontent: " + all + "\n");
}

// The grammar of constrained text takes all before <|end|> for analysis.
TEST(HarmonyParts, ConstrainedAnswersHaveWholeAnalysis) {
  const std::string text = "<|channel|>analysis<|message|>We quote" + kNext + " foo<|end|>" +
                           kNext + "<|channel|>final<|message|>aaa<|return|>";
  for (const bool by_id : {false, true}) {
    MarkupRules rules = channels(by_id);
    rules.harmony->prefixed = rules.harmony->whole_analysis = true;
    expect_answer(rules, by_id ? as_tokens(text) : text,
                  "reasoning: We quote<|start|>assistant foo\ncontent: aaa\n", true);
  }
}

TEST(HarmonyParts, RandomTextIsNotLost) {
  const std::vector<std::string> words = {"<|start|>",
                                          "assistant",
                                          "<|channel|>",
                                          "analysis",
                                          "final",
                                          "commentary",
                                          " to=functions.",
                                          "weather",
                                          "<|message|>",
                                          "<|end|>",
                                          "<|call|>",
                                          "<|return|>",
                                          "z",
                                          "{",
                                          "}",
                                          " ",
                                          "<",
                                          "|"};
  std::mt19937 random(8);
  for (int i = 0; i < 6000; ++i) {
    const bool by_id = random() % 2 == 0, whole = random() % 2 == 0;
    std::string text;
    for (auto n = random() % 16; n > 0; --n) {
      const std::string& word = words[random() % words.size()];
      text += by_id && random() % 4 != 0 ? as_tokens(word) : word;
    }
    std::vector<std::string> bytes;
    for (char c : text) bytes.emplace_back(1, c);
    const TextParts at_once = read_pieces(channels(by_id), {text}, whole);
    ASSERT_EQ(text_of(at_once), text_of(read_pieces(channels(by_id), bytes, whole))) << text;
    EXPECT_EQ(text_of(at_once).find(kMarkByte), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace lathe
