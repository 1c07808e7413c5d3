#include "server/markup/answer_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

const Json kTools =
    Json::parse(R"([{"type": "function", "function": {"name": "weather", "parameters":
    {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}}])");

TextParts parts_of(const MarkupRules& rules, const std::vector<std::string>& pieces) {
  AnswerParts machine(rules);
  TextParts out;
  for (const std::string& piece : pieces) machine.push(piece, out);
  machine.finish(out);
  return out;
}

std::string shown(const TextParts& parts) {
  std::string out = "reasoning: " + parts.reasoning + "\ncontent: " + parts.content + "\n";
  for (const ToolCall& c : parts.calls) out += c.name + c.arguments + "\n";
  return out;
}

// However the text is cut into pieces, the parts are the same.
void expect_parts(const MarkupRules& rules, const std::string& text, const std::string& wanted) {
  EXPECT_EQ(shown(parts_of(rules, {text})), wanted) << text;
  std::vector<std::string> bytes;
  for (char c : text) bytes.emplace_back(1, c);
  EXPECT_EQ(shown(parts_of(rules, bytes)), wanted) << "by bytes: " << text;
  for (std::size_t at = 0; at <= text.size(); ++at) {
    EXPECT_EQ(shown(parts_of(rules, {text.substr(0, at), text.substr(at)})), wanted)
        << "cut at " << at << ": " << text;
  }
}

MarkupRules thinking(bool inside = false) {
  MarkupRules r;
  r.reasoning = true;
  r.starts_inside = inside;
  return r;
}

MarkupRules calling(ToolFormat format) {
  MarkupRules r = thinking();
  r.tools = format;
  r.schemas = kTools;
  return r;
}

TEST(AnswerParts, ReasoningStandsBetweenItsMarks) {
  expect_parts(thinking(), "<think>a < b</think>\nc</think>",
               "reasoning: a < b\ncontent: c</think>\n");
  expect_parts(thinking(true), "a\n</think>\n\nb", "reasoning: a\n\ncontent: \nb\n");
  expect_parts(thinking(), "\n<think></think>b", "reasoning: \ncontent: b\n");
  expect_parts(thinking(), "a <think>b</think>", "reasoning: \ncontent: a <think>b</think>\n");
  expect_parts(thinking(true), "cut off </thin", "reasoning: cut off </thin\ncontent: \n");
  expect_parts(MarkupRules(), "<think>a</think>", "reasoning: \ncontent: <think>a</think>\n");
}

TEST(AnswerParts, TaggedCallsHaveThreeBodies) {
  const MarkupRules rules = calling(ToolFormat::tag);
  const std::string call = "weather{\"city\":\"Oslo\",\"days\":3}\n";
  expect_parts(rules,
               "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": "
               "\"Oslo\", \"days\": 3}}\n</tool_call>",
               "reasoning: \ncontent: Let me see.\n" + call);
  expect_parts(rules,
               "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</"
               "parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
               "reasoning: \ncontent: \n" + call);
  expect_parts(rules,
               "<think>x<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</"
               "arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
               "reasoning: x\ncontent: \n" + call);
  expect_parts(rules, "<tool_call>weather</tool_call>\n<tool_call>weather</tool_call>\n",
               "reasoning: \ncontent: \nweather{}\nweather{}\n");
}

TEST(AnswerParts, DeepSeekWritesTwoWays) {
  const MarkupRules rules = calling(ToolFormat::deepseek);
  const std::string wanted = "reasoning: \ncontent: \nweather{\"city\":\"Oslo\"}\n";
  expect_parts(rules,
               "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": "
               "\"Oslo\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
               wanted);
  expect_parts(rules,
               "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```"
               "json\n{\"city\": \"Oslo\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
               wanted);
}

TEST(AnswerParts, DsmlSaysWhichValuesAreStrings) {
  const MarkupRules rules = calling(ToolFormat::dsml);
  expect_parts(
      rules,
      "ok\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter "
      "name=\"city\" string=\"true\">Oslo</｜DSML｜parameter>\n"
      "<｜DSML｜parameter name=\"days\" "
      "string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
      "reasoning: \ncontent: ok\nweather{\"city\":\"Oslo\",\"days\":3}\n");
}

TEST(AnswerParts, WhatIsNoCallIsContent) {
  const MarkupRules rules = calling(ToolFormat::tag);
  expect_parts(rules, "a <tool_call>{\"name\": 3}</tool_call> b",
               "reasoning: \ncontent: a <tool_call>{\"name\": 3}</tool_call> b\n");
  expect_parts(rules, "a <tool_call>{\"name\"", "reasoning: \ncontent: a <tool_call>{\"name\"\n");
  expect_parts(rules, "1 < 2 <tool", "reasoning: \ncontent: 1 < 2 <tool\n");
  expect_parts(rules, "white space \n ", "reasoning: \ncontent: white space \n \n");
}

TEST(AnswerParts, OneCallMayBeTheLast) {
  MarkupRules rules = calling(ToolFormat::tag);
  rules.one_call = true;
  expect_parts(rules, "<tool_call>weather</tool_call><tool_call>weather</tool_call> more",
               "reasoning: \ncontent: \nweather{}\n");
}

TEST(AnswerParts, ASchemaMakesAValueAString) {
  const auto call = read_tool_call(
      ToolFormat::tag, "weather<arg_key>city</arg_key><arg_value>42</arg_value>", kTools);
  ASSERT_TRUE(call);
  EXPECT_EQ(call->arguments, R"({"city":"42"})");
}

// Without calls, nothing but marks and the newline behind one is missing.
TEST(AnswerParts, RandomTextIsNotLost) {
  const std::vector<std::string> words = {
      "<think>", "</think>", "<tool_call>", "</tool_call>", "<", "</t", "z", "\n", "é", "{"};
  std::mt19937 random(3);
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (auto n = random() % 12; n > 0; --n) text += words[random() % words.size()];
    MarkupRules rules = calling(ToolFormat::tag);
    rules.starts_inside = random() % 2 == 0;
    std::vector<std::string> bytes;
    for (char c : text) bytes.emplace_back(1, c);
    const TextParts whole = parts_of(rules, {text});
    EXPECT_EQ(shown(whole), shown(parts_of(rules, bytes))) << text;
    const auto letters = [](const std::string& s) {
      return std::count(s.begin(), s.end(), 'z') + std::count(s.begin(), s.end(), '{');
    };
    std::string all = whole.reasoning + whole.content;
    for (const ToolCall& c : whole.calls) all += c.name;
    EXPECT_EQ(letters(all), letters(text)) << text;
  }
}

TEST(ToolFormat, IsFoundInTemplates) {
  EXPECT_EQ(find_tool_format("{{ '<tool_call>' }}"), ToolFormat::tag);
  EXPECT_EQ(find_tool_format("<｜tool▁call▁begin｜>...<｜tool▁sep｜>"), ToolFormat::deepseek);
  EXPECT_EQ(find_tool_format("<｜DSML｜invoke"), ToolFormat::dsml);
  EXPECT_EQ(find_tool_format("{{ messages }}"), ToolFormat::none);
}

}  // namespace
}  // namespace lathe
