// Arguments that quote marks, as those of a program that edits chat templates.
#include <gtest/gtest.h>

#include <algorithm>

#include "server/markup/test/markup_test_util.h"
#include "server/markup/tool_format.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

const Json kWriteTools = Json::parse(R"([{"type": "function", "function": {"name": "function",
    "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}])");

// A call with one argument between `before` and `after`, as JSON's text if `before` ends in a
// quote. The argument cannot have the marks in `own`.
struct Written {
  ToolFormat format;
  std::string before, after;
  std::vector<std::string> own = {};
};

std::vector<Written> written_calls() {
  using enum ToolFormat;
  const std::string call = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
                    end = "<｜tool▁call▁end｜>";
  const std::string fenced = call + "function\n```json\n{\"a\": \"";
  const std::string invoke = "<invoke name=\"function\">\n", shut = "\n</invoke>";
  const std::string kimi_call =
      "<|tool_call_begin|>functions.function:0<|tool_call_argument_begin|>{\"a\": \"";
  const std::string dsml_call = "<｜DSML｜invoke name=\"function\">\n";
  const std::string dsml_parameter = dsml_call + "<｜DSML｜parameter name=\"a\" string=";
  const std::string json = R"({"name": "function", "arguments": {"a": ")";
  return {
      {tag, json, "\"}}"},
      {tag, "<tool_call>" + json, "\"}}"},
      {tag, "<tool_call>" + json, "\"}}</tool_call>"},
      {tag, "<tool_call>\n<function=function>\n<parameter=a>\n",
       "\n</parameter>\n</function>\n</tool_call>"},
      {tag, "<function=function>\n<parameter=a>\n", "\n</parameter>\n</function>", {"</function>"}},
      {tag,
       "<tool_call>function\n<arg_key>a</arg_key>\n<arg_value>",
       "</arg_value>\n</tool_call>",
       {"</arg_value>"}},
      {deepseek, call + "{\"a\": \"", "\"}" + end},
      {deepseek, call + "{\"a\": \"", "\"}"},
      {deepseek, fenced, "\"}\n```" + end},
      {deepseek, fenced, "\"}" + end},
      {deepseek, fenced, "\"}\n```"},
      {deepseek, fenced, "\"}"},
      {dsml,
       dsml_parameter + "\"true\">",
       "</｜DSML｜parameter>\n</｜DSML｜invoke>",
       {"</｜DSML｜parameter>"}},
      {dsml,
       dsml_parameter + "\"false\">\"",
       "\"</｜DSML｜parameter>\n</｜DSML｜invoke>",
       {"</｜DSML｜parameter>"}},
      {dsml, dsml_call + "{\"a\": \"", "\"}\n</｜DSML｜invoke>"},
      {dsml, dsml_call + "{\"a\": \"", "\"}"},
      {llama, json, "\"}}"},
      {llama, "<|python_tag|>" + json, "\"}}"},
      {llama, "<|python_tag|>function.call(a=\"", "\")"},
      {pythonic, "[function(a=\"", "\")]"},
      {pythonic, "<|python_start|>[function(a=\"", "\")]<|python_end|>"},
      {pythonic, "<|tool_call_start|>[function(a=\"", "\")]<|tool_call_end|>"},
      {pythonic, "```tool_code\nfunction(a=\"", "\")\n```"},
      {mistral, "[TOOL_CALLS] [" + json, "\"}}]"},
      {mistral, "[" + json, "\"}}]"},
      {mistral, R"([TOOL_CALLS]function[ARGS]{"a": ")", "\"}"},
      {mistral, R"([TOOL_CALLS]function[CALL_ID]abcdefghi[ARGS]{"a": ")", "\"}"},
      {mistral, R"([TOOL_CALLS]function{"a": ")", "\"}"},
      {gemma, "<|tool_call>call:function{a:<|\"|>", "<|\"|>}<tool_call|>", {"<|\"|>"}},
      {gemma, "<|tool_call>call:function{a:\"", "\"}<tool_call|>", {"<tool_call|>"}},
      {gemma,
       "<start_function_call>call:function{a:<escape>",
       "<escape>}<end_function_call>",
       {"<escape>"}},
      {kimi, kimi_call, "\"}<|tool_call_end|>"},
      {kimi, kimi_call, "\"}"},
      {minimax, invoke + "<parameter name=\"a\">", "</parameter>" + shut, {"</parameter>"}},
      {minimax, invoke + "{\"a\": \"", "\"}" + shut},
      {minimax, invoke + "{\"a\": \"", "\"}"},
      {minimax, "<tool_calls>\n" + json, "\"}}\n</tool_calls>"},
  };
}

// The marks of all formats, and texts that calls have between them.
std::vector<std::string> quoted_marks() {
  std::vector<std::string> out = {"```json",
                                  "```json\n{",
                                  "```",
                                  "{",
                                  "}",
                                  "[",
                                  "]",
                                  "(",
                                  ")",
                                  "'",
                                  ":",
                                  ">",
                                  "<parameter=",
                                  "<parameter name=",
                                  "</parameter>",
                                  "<arg_key>",
                                  "</arg_key>",
                                  "<arg_value>",
                                  "</arg_value>",
                                  "<｜DSML｜parameter",
                                  "</｜DSML｜parameter>"};
  for (std::size_t f = 0; f < enum_count<ToolFormat>; ++f) {
    const ToolMarks& marks = tool_marks(static_cast<ToolFormat>(f));
    for (const CallMarks& call : marks.calls) {
      out.emplace_back(call.begin);
      out.emplace_back(call.end);
    }
    for (const auto& list : {marks.around, marks.inner}) {
      out.insert(out.end(), list.begin(), list.end());
    }
  }
  return out;
}

TEST(MarksInArguments, AreTextInEveryForm) {
  for (const Written& call : written_calls()) {
    MarkupRules rules;
    rules.tools = call.format;
    rules.schemas = std::make_shared<const Json>(kWriteTools);
    for (const std::string& mark : quoted_marks()) {
      if (std::ranges::find(call.own, mark) != call.own.end()) continue;
      const std::string plain = "x" + mark + "y", json = Json(plain).dump();
      const bool quotes = call.before.ends_with('"');
      const std::string text =
          call.before + (quotes ? json.substr(1, json.size() - 2) : plain) + call.after;
      const std::string wanted = "reasoning: \ncontent: \nfunction{\"a\":" + json + "}\n";
      EXPECT_EQ(text_of(read_pieces(rules, {text})), wanted) << text;
      std::vector<std::string> bytes;
      for (char c : text) bytes.emplace_back(1, c);
      EXPECT_EQ(text_of(read_pieces(rules, bytes)), wanted) << "by bytes: " << text;
    }
  }
}

// Of two calls, the first's value lacks its end tag: it would go on to the second one's.
void expect_two_calls(const std::string& first, const std::string& second,
                      const std::string& second_value) {
  MarkupRules rules;
  rules.tools = ToolFormat::tag;
  rules.schemas = std::make_shared<const Json>(kWriteTools);
  expect_answer(rules, first + "\n" + second,
                "reasoning: \ncontent: \nfunction{\"a\":\"x\"}\n"
                "function{\"a\":\"" +
                    second_value + "\"}\n");
}

TEST(MarksInArguments, AValueWithoutAnEndTagEndsWithItsFunction) {
  const std::string front = "<tool_call>\n<function=function>\n<parameter=a>\n",
                    end = "\n</function>\n</tool_call>";
  expect_two_calls(front + "x" + end, front + "y</tool_call>\n</parameter>" + end, "y</tool_call>");
}

TEST(MarksInArguments, APairWithoutAnEndTagEndsWithItsCall) {
  const std::string front = "<tool_call>function\n<arg_key>a</arg_key>\n<arg_value>";
  expect_two_calls(front + "x</tool_call>", front + "y</tool_call> z</arg_value>\n</tool_call>",
                   "y</tool_call> z");
}

// Text beside the JSON is not lost.
TEST(MarksInArguments, AFenceHasNothingAfterIt) {
  MarkupRules rules;
  rules.tools = ToolFormat::deepseek;
  rules.schemas = std::make_shared<const Json>(kWriteTools);
  const std::string call =
      "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n``` z<｜tool▁call▁end｜>";
  expect_answer(rules, call, "reasoning: \ncontent: " + call + "\n");
}

}  // namespace
}  // namespace lathe
