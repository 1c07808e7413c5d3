#include "server/markup/answer_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "io/template/chat_template.h"

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
  r.schemas = std::make_shared<const Json>(kTools);
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

// A DeepSeek V4 call with this body.
std::string invoke(const std::string& body) {
  return "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"weather\">\n" + body +
         "\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
}
std::string parameter(const std::string& front, const std::string& value) {
  return "<｜DSML｜parameter " + front + ">" + value + "</｜DSML｜parameter>";
}

TEST(AnswerParts, DsmlTakesSlipsOfAFixedList) {
  const MarkupRules rules = calling(ToolFormat::dsml);
  const std::string wanted = "reasoning: \ncontent: \nweather{\"city\":\"Oslo\",\"days\":3}\n";
  const std::string city = parameter(R"(name="city" string="true")", "Oslo");
  const std::string days = parameter(R"(name="days" string="false")", "3");
  expect_parts(rules, invoke(city + "\n" + days), wanted);
  for (const std::string name : {"toolcalls", "tool"}) {
    std::string text = invoke(city + "\n" + days);
    for (std::size_t at = 0; (at = text.find("tool_calls", at)) != std::string::npos;) {
      text.replace(at, 10, name);
    }
    expect_parts(rules, text, wanted);
  }
  // The schema says which one is a string.
  expect_parts(rules,
               invoke(parameter(R"(name="city")", "Oslo") + parameter(R"(name="days")", "3")),
               wanted);
  expect_parts(rules, invoke(parameter(R"(name="city" string="false")", "Oslo") + days), wanted);
  expect_parts(rules, invoke(parameter(R"(name="city" string="false")", "\"Oslo\"") + days),
               wanted);
  expect_parts(rules, invoke(R"({"city": "Oslo", "days": 3})"), wanted);
  expect_parts(rules, invoke(R"({"arguments": {"city": "Oslo", "days": 3}})"), wanted);
  expect_parts(
      rules,
      invoke(parameter(R"(name="arguments" string="true")", R"({"city": "Oslo", "days": 3})")),
      wanted);
}

// The schema says what text is that the model calls no string, and that is not JSON.
TEST(AnswerParts, DsmlKeepsACallWithAValueThatIsNotJson) {
  const Json tools = Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters":
      {"properties": {"n": {"type": ["number", "null"]}, "b": {"type": "boolean"}, "s": {"type":
      "string"}, "a": {"type": "integer"}}}}}])");
  const auto read = [&](const std::string& name, const std::string& text) {
    const auto calls = read_tool_calls(
        CallBody::dsml, "f\">" + parameter("name=\"" + name + "\" string=\"false\"", text), tools);
    return calls ? calls->front().arguments : "no call";
  };
  for (const std::string text : {"NaN", "abc1", "1e999", ""}) {
    for (const std::string name : {"n", "a", "s", "zz"}) {
      EXPECT_EQ(read(name, text), "{\"" + name + "\":\"" + text + "\"}");
    }
  }
  EXPECT_EQ(read("n", "None"), R"({"n":null})");
  EXPECT_EQ(read("b", "True"), R"({"b":true})");
  EXPECT_EQ(read("n", " 2.50 "), R"({"n":2.50})");
  expect_parts(calling(ToolFormat::dsml),
               invoke(parameter(R"(name="days" string="false")", "three")),
               "reasoning: \ncontent: \nweather{\"days\":\"three\"}\n");
}

TEST(AnswerParts, DsmlThatIsNoCallIsContent) {
  const MarkupRules rules = calling(ToolFormat::dsml);
  const auto stays = [&](const std::string& body) {
    const std::string text = "<｜DSML｜invoke name=\"weather\">" + body + "</｜DSML｜invoke>";
    expect_parts(rules, text, "reasoning: \ncontent: " + text + "\n");
  };
  stays("words");
  stays(parameter(R"(name="days" string="maybe")", "3"));
  stays(parameter(R"(name="city" string="true")", "a") + "words");
  expect_parts(rules,
               "a\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜param",
               "reasoning: \ncontent: a\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke "
               "name=\"weather\">\n<｜DSML｜param\n");
}

// An answer that a client sends back has the same text in the next prompt.
TEST(AnswerParts, V4AnswersComeBackAsTheyWere) {
  MarkupRules rules = calling(ToolFormat::dsml);
  const std::string nasty = "<a>\n</｜DSML｜invoke> \"é\" </｜DSML｜tool_calls>";
  const std::string two =
      "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"weather\">\n" +
      parameter(R"(name="city" string="true")", nasty) + "\n" +
      parameter(R"(name="days" string="false")", R"({"x": [1, null, 2.5, "é"], "y": {}})") +
      "\n</｜DSML｜invoke>\n<｜DSML｜invoke "
      "name=\"now\">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
  const std::vector<std::string> answers = {"plain</think>Hello", "</think>\n\nHello\n",
                                            "a < b</think>\n\n" + two,
                                            "why\n</think>Let me see. \n"
                                            "\n\n" +
                                                two,
                                            "x</think>y\n\n" + invoke("")};
  for (const std::string& answer : answers) {
    for (const bool thinks : {true, false}) {
      rules.starts_inside = thinks;
      const std::string text = thinks ? answer : answer.substr(answer.find("</think>") + 8);
      for (std::size_t cut = 0; cut <= text.size(); ++cut) {
        const TextParts parts = parts_of(rules, {text.substr(0, cut), text.substr(cut)});
        Json message = {{"role", "assistant"},
                        {"content", parts.content},
                        {"reasoning_content", parts.reasoning}};
        for (const ToolCall& c : parts.calls) {
          message["tool_calls"].push_back(
              {{"type", "function"}, {"function", {{"name", c.name}, {"arguments", c.arguments}}}});
        }
        const Json question = {{"role", "user"}, {"content", "q"}};
        const auto prompt = ChatTemplate::deepseek_v4(V4Encoding::official)
                                .render({{"messages", Json::array({question, message})},
                                         {"thinking", thinks},
                                         {"add_generation_prompt", false},
                                         {"tools", kTools}});
        ASSERT_TRUE(prompt.ok()) << prompt.error().message();
        const std::string front = thinks ? "<｜Assistant｜><think>" : "<｜Assistant｜></think>";
        EXPECT_EQ(prompt->substr(prompt->rfind(front) + front.size()),
                  text + "<｜end▁of▁sentence｜>")
            << "cut at " << cut;
      }
    }
  }
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

std::string arguments_of(const std::string& body, const Json& tools) {
  const auto calls = read_tool_calls(CallBody::tagged, body, tools);
  return calls && calls->size() == 1 ? calls->front().arguments : "no call";
}

// An answer in a schema may quote what would be a call.
TEST(AnswerParts, OfTextOrCallsMarksAfterTextAreText) {
  const std::string call =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
  MarkupRules rules;
  rules.tools = ToolFormat::tag;
  rules.reasoning = true;
  rules.no_bare = rules.text_or_calls = true;
  const std::string quoted = "{\"note\": \"" + call + "\"}";
  expect_parts(rules, quoted, "reasoning: \ncontent: " + quoted + "\n");
  expect_parts(rules, "<think>x</think>" + quoted, "reasoning: x\ncontent: " + quoted + "\n");
  expect_parts(rules, call + "\n" + call, "reasoning: \ncontent: \nf{\"a\":1}\nf{\"a\":1}\n");
}

TEST(AnswerParts, ASchemaMakesAValueAString) {
  EXPECT_EQ(arguments_of("weather<arg_key>city</arg_key><arg_value>42</arg_value>", kTools),
            R"({"city":"42"})");
}

// vLLM coerces a value by its schema.
TEST(AnswerParts, B3ASchemaSaysWhatAValueIs) {
  const auto value = [](const std::string& schema, const std::string& text) {
    const Json tools = Json::parse(
        R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
        "$defs": {"name": {"type": "string"}}, "properties": {"x": )" +
        schema + "}}}}]");
    std::string out =
        arguments_of("<function=f>\n<parameter=x>\n" + text + "\n</parameter>\n</function>", tools);
    EXPECT_EQ(out, arguments_of("f<arg_key>x</arg_key><arg_value>" + text + "</arg_value>", tools));
    return out.substr(5, out.size() - 6);
  };
  const std::string maybe = R"({"anyOf": [{"type": "string"}, {"type": "null"}]})";
  EXPECT_EQ(value(maybe, "555"), R"("555")");
  EXPECT_EQ(value(maybe, "true"), R"("true")");
  EXPECT_EQ(value(maybe, "null"), "null");
  EXPECT_EQ(value(maybe, "None"), "null");
  EXPECT_EQ(value(R"({"type": ["string", "null"]})", "5"), R"("5")");
  EXPECT_EQ(value(R"({"type": "string"})", "null"), R"("null")");
  EXPECT_EQ(value(R"({"enum": ["1", "2"]})", "1"), R"("1")");
  EXPECT_EQ(value(R"({"const": "1"})", "1"), R"("1")");
  EXPECT_EQ(value(R"({"$ref": "#/$defs/name"})", "7"), R"("7")");
  EXPECT_EQ(value(R"({"oneOf": [{"$ref": "#/$defs/name"}, {"type": "array"}]})", "[1]"), "[1]");
  EXPECT_EQ(value(R"({"type": "boolean"})", "True"), "true");
  EXPECT_EQ(value(R"({"type": "boolean"})", "FALSE"), "false");
  EXPECT_EQ(value(R"({"type": ["integer", "string"]})", "12"), "12");
  EXPECT_EQ(value(R"({"type": ["integer", "string"]})", "1.5"), R"("1.5")");
  EXPECT_EQ(value(R"({"type": "integer", "nullable": true})", "null"), "null");
  EXPECT_EQ(value(R"({"type": "number"})", "1e3"), "1e3");
  EXPECT_EQ(value(R"({"type": "object"})", "{\"a\": [1]}"), R"({"a":[1]})");
  EXPECT_EQ(value(R"({"type": "object"})", "{'a': 1}"), R"("{'a': 1}")");
  EXPECT_EQ(value("{}", "12"), "12");
  EXPECT_EQ(value("{}", "twelve"), R"("twelve")");
}

// References may escape names, count in lists, and lead back to themselves any number of times.
TEST(AnswerParts, B3ReferencesOfSchemasAreFollowedOnce) {
  const auto value = [](Json definitions, const std::string& reference) {
    const Json tools = {{{"type", "function"},
                         {"function",
                          {{"name", "f"},
                           {"parameters",
                            {{"$defs", std::move(definitions)},
                             {"properties", {{"x", {{"$ref", reference}}}}}}}}}}};
    return arguments_of("<function=f><parameter=x>7</parameter></function>", tools);
  };
  const Json text = {{"type", "string"}};
  EXPECT_EQ(value({{"a/b~c", text}}, "#/$defs/a~1b~0c"), R"({"x":"7"})");
  EXPECT_EQ(value({{"a", {{"anyOf", {{{"type", "null"}}, text}}}}}, "#/$defs/a/anyOf/1"),
            R"({"x":"7"})");
  for (const char* nothing : {"#/$defs/a/anyOf/01", "#/$defs/~2", "#x", "other.json", "#"}) {
    EXPECT_EQ(value({{"a", {{"anyOf", {text, text}}}}}, nothing), R"({"x":7})") << nothing;
  }
  Json itself = {{"anyOf", Json::array({text})}};
  for (int i = 0; i < 40; ++i) itself["anyOf"].push_back({{"$ref", "#/$defs/itself"}});
  EXPECT_EQ(value({{"itself", itself}}, "#/$defs/itself"), R"({"x":"7"})");
}

// A number has the digits that the model wrote.
TEST(AnswerParts, A8NumbersKeepTheirDigits) {
  const std::string numbers = R"({"a":18446744073709551616,"b":[0.1234567890123456789,1E5]})";
  EXPECT_EQ(arguments_of(R"({"name": "f", "arguments": )" + numbers + "}", kTools), numbers);
  EXPECT_EQ(arguments_of("<function=f><parameter=x>18446744073709551616</parameter>", kTools),
            R"({"x":18446744073709551616})");
  const auto dsml = read_tool_calls(CallBody::dsml, "f\">" + numbers, kTools);
  ASSERT_TRUE(dsml);
  EXPECT_EQ(dsml->front().arguments, numbers);
}

TEST(AnswerParts, B4FunctionsAndParametersEndAtTheNextTag) {
  const MarkupRules rules = calling(ToolFormat::tag);
  const auto call = [](const std::string& body) {
    return "<tool_call>\n" + body + "\n</tool_call>";
  };
  expect_parts(rules,
               call("<function=read>\n<parameter=path>\na\n</parameter>\n</function>\n"
                    "<function=delete>\n<parameter=path>\nb\n</parameter>\n</function>"),
               "reasoning: \ncontent: \nread{\"path\":\"a\"}\ndelete{\"path\":\"b\"}\n");
  // Without an end mark.
  for (const char* body :
       {"<function=f>\n<parameter=a>\n1 x\n<parameter=b>\n2\n</parameter>\n</function>",
        "<function=f>\n<parameter=a>\n1 x\n</parameter>\n<parameter=b>\n2\n</function>",
        "<function=f>\n<parameter=a>\n1 x\n</parameter>\n<parameter=b>\n2"}) {
    expect_parts(rules, call(body), "reasoning: \ncontent: \nf{\"a\":\"1 x\",\"b\":2}\n");
  }
  // An end mark inside a value.
  expect_parts(
      rules,
      call("<function=f>\n<parameter=a>\nwrite </parameter> here\n</parameter>\n</function>"),
      "reasoning: \ncontent: \nf{\"a\":\"write </parameter> here\"}\n");
  // Text that no parameter has stays.
  for (const char* body : {"<function=f>\nwell\n<parameter=a>1</parameter></function>",
                           "<function=f></function> and so on"}) {
    expect_parts(rules, call(body), "reasoning: \ncontent: " + call(body) + "\n");
  }
  expect_parts(rules,
               "<tool_call>weather<arg_key>city</arg_key><arg_value>Oslo\n<arg_key>days</arg_key>"
               "<arg_value>3</arg_value></tool_call>",
               "reasoning: \ncontent: \nweather{\"city\":\"Oslo\\n\",\"days\":3}\n");
  MarkupRules first = rules;
  first.one_call = true;
  expect_parts(first, call("<function=a></function><function=b></function>"),
               "reasoning: \ncontent: \na{}\n");
}

// A call that the model only thinks of is none.
TEST(AnswerParts, B5CallsCountAfterReasoning) {
  const std::string call = "<tool_call>{\"name\": \"weather\", \"arguments\": {}}</tool_call>";
  MarkupRules rules = calling(ToolFormat::tag);
  expect_parts(rules, "<think>Shall I " + call + "?</think>\n\nI will not.",
               "reasoning: Shall I " + call + "?\ncontent: \nI will not.\n");
  expect_parts(rules, "<think>So</think>" + call, "reasoning: So\ncontent: \nweather{}\n");
  const std::string dsml = "<｜DSML｜invoke name=\"weather\">\n</｜DSML｜invoke>";
  expect_parts(calling(ToolFormat::dsml), "<think>" + dsml + "</think>No.",
               "reasoning: " + dsml + "\ncontent: No.\n");
  // Without an end of the reasoning the call ends it.
  expect_parts(rules, "<think>So " + call, "reasoning: So \ncontent: \nweather{}\n");
  expect_parts(rules, "<think>So " + call + " and", "reasoning: So \ncontent:  and\nweather{}\n");
  // A constraint begins at the reasoning's end: calls that did not follow it are none.
  rules.constrained = true;
  expect_parts(rules, "<think>So " + call, "reasoning: So " + call + "\ncontent: \n");
  expect_parts(rules, "<think>So</think>" + call, "reasoning: So\ncontent: \nweather{}\n");
  rules.constrained = false;
  // Reasoning that is empty may lack its first mark.
  expect_parts(rules, "</think>\n\nHello", "reasoning: \ncontent: \nHello\n");
  expect_parts(rules, "\n</think>" + call, "reasoning: \ncontent: \nweather{}\n");
  // With separate_reasoning false all of it is content, marks as well.
  rules.reasoning_stays = true;
  expect_parts(rules, "<think>a " + call + "</think>\nb" + call,
               "reasoning: \ncontent: <think>a " + call + "</think>\nb\nweather{}\n");
  rules.starts_inside = true;
  expect_parts(rules, "a</think>\n\nb", "reasoning: \ncontent: a</think>\n\nb\n");
}

// sglang#38924.
TEST(AnswerParts, B10AWrapperIsNoArgument) {
  const Json tools = Json::parse(
      R"([{"type": "function", "function": {"name": "bash", "parameters": {"type": "object",
      "properties": {"command": {"type": "string"}}}}}, {"type": "function", "function": {"name":
      "own", "parameters": {"type": "object", "properties": {"input": {"type": "string"}}}}}])");
  const auto read = [&](const std::string& name, const std::string& body) {
    const auto calls = read_tool_calls(CallBody::dsml, name + "\">\n" + body + "\n", tools);
    return calls ? calls->front().arguments : "no call";
  };
  const auto parameter = [](const std::string& name, const std::string& text, bool string) {
    return "<｜DSML｜parameter name=\"" + name + "\" string=\"" + (string ? "true" : "false") +
           "\">" + text + "</｜DSML｜parameter>";
  };
  const std::string right = R"({"command":"ls -la"})";
  for (const std::string name : {"arguments", "input"}) {
    EXPECT_EQ(read("bash", parameter(name, right, false)), right);
    EXPECT_EQ(read("bash", parameter(name, right, true)), right);
    EXPECT_EQ(read("bash", parameter(name, "ls -la", true)), right);
    EXPECT_EQ(read("bash", "{\"" + name + "\": " + right + "}"), right);
    EXPECT_EQ(read("bash", "{\"" + name + "\": \"ls -la\"}"), right);
  }
  EXPECT_EQ(read("own", parameter("input", "ls -la", true)), R"({"input":"ls -la"})");
  EXPECT_EQ(read("bash", parameter("command", "ls -la", true)), right);
}

// Without calls, only marks and the newline after one are dropped.
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

}  // namespace
}  // namespace lathe
