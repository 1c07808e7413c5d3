#include "server/responses/response_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/responses/reasoning_text.h"

namespace lathe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

ApiRequest response_of(const std::string& body) {
  auto request = responses_api::parse_request(body, {});
  EXPECT_TRUE(request.ok()) << body << ": " << (request.ok() ? "" : request.error().message);
  return request.ok() ? *request : ApiRequest{};
}

ApiError wrong_response(const std::string& body) {
  const auto request = responses_api::parse_request(body, {});
  EXPECT_FALSE(request.ok()) << body;
  return request.ok() ? ApiError{} : request.error();
}

TEST(ResponseRequest, ItemsOfOneTurnAreOneMessage) {
  const ApiRequest r = response_of(R"({
    "instructions": "Be short.",
    "input": [
      {"role": "developer", "content": "In English."},
      {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
      {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "why"}]},
      {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x", "annotations": []}]},
      {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"n\": 1}"},
      {"type": "function_call", "call_id": "c2", "name": "g", "arguments": ""},
      {"type": "function_call_output", "call_id": "c2", "output": "two"},
      {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "one"}]},
      {"type": "message", "role": "user", "content": "go on"}]})");
  const Json wanted = Json::parse(R"([
    {"role": "system", "content": "Be short.\n\nIn English."},
    {"role": "user", "content": "a\nb"},
    {"role": "assistant", "content": "x", "reasoning_content": "why", "tool_calls": [
      {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"n\": 1}"}},
      {"id": "c2", "type": "function", "function": {"name": "g", "arguments": ""}}]},
    {"role": "tool", "tool_call_id": "c2", "content": "two"},
    {"role": "tool", "tool_call_id": "c1", "content": "one"},
    {"role": "user", "content": "go on"}])");
  EXPECT_EQ(nlohmann::json(r.messages), nlohmann::json(wanted)) << r.messages.dump(1);
  EXPECT_THAT(r.ignored, ElementsAre());
}

// Texts of items that nobody reads are named where they are none.
TEST(ResponseRequest, AnObjectInPlaceOfATextIsNamed) {
  const ApiRequest r = response_of(R"({"input": [
      {"type": "message", "role": "user", "content": "a", "id": {"zzz": 1}, "status": "completed"},
      {"type": "reasoning", "id": "r1", "status": ["x"], "summary": [{"type": "summary_text", "text": "why"}]},
      {"role": "user", "content": "c", "id": null}]})");
  EXPECT_THAT(r.ignored, ElementsAre("input[0].id", "input[1].status"));
}

// Reasoning that only another server can read is named; this one's own is read.
TEST(ResponseRequest, ReasoningWithoutTextIsNoInput) {
  const ApiError error = wrong_response(R"({"input": [{"type": "reasoning", "summary": []}]})");
  EXPECT_EQ(error.status, 400);
  EXPECT_THAT(error.message, HasSubstr("input: wanted an item besides reasoning without text"));
  EXPECT_THAT(error.message, HasSubstr("\"reasoning\""));
}

TEST(ResponseRequest, SealedReasoningIsNamed) {
  const ApiRequest r = response_of(R"({"input": [
      {"role": "user", "content": "a"},
      {"type": "reasoning", "id": "r1", "summary": [], "encrypted_content": "gAAAA"},
      {"type": "reasoning", "id": "r2", "summary": [{"type": "summary_text", "text": "why"}], "encrypted_content": "gAAAA"},
      {"type": "reasoning", "id": "r3", "summary": [], "encrypted_content": null},
      {"type": "message", "role": "assistant", "content": "b"},
      {"role": "user", "content": "c"}]})");
  EXPECT_THAT(r.idle, ElementsAre("input[1].encrypted_content"));
  EXPECT_EQ(r.messages[1]["reasoning_content"], "why");
}

TEST(ResponseRequest, FieldsHaveTheirOwnNames) {
  const ApiRequest r = response_of(R"({"input": "a", "max_output_tokens": 7, "top_p": 0.5,
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"}, "parallel_tool_calls": false,
    "include": ["reasoning.encrypted_content"], "store": false, "background": false, "truncation": "disabled"})");
  EXPECT_EQ(r.max_tokens, 7);
  EXPECT_FALSE(r.parallel_tool_calls);
  EXPECT_EQ(r.reasoning_effort, "low");
  ASSERT_TRUE(r.constraint);
  EXPECT_EQ(r.constraint->path, "text.format.schema");
  EXPECT_THAT(r.ignored, ElementsAre());
  EXPECT_THAT(r.idle, ElementsAre("text.verbosity", "reasoning.summary"));
  EXPECT_EQ(r.echoed["max_output_tokens"], 7);
}

TEST(ResponseRequest, ToolsHaveChatsForm) {
  const ApiRequest r = response_of(R"({"input": "a",
    "tools": [{"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": null}],
    "tool_choice": {"type": "function", "name": "f"}})");
  EXPECT_EQ(r.tools, Json::parse(R"([{"type": "function", "function":
    {"name": "f", "description": "d", "parameters": {"type": "object"}}}])"));
  EXPECT_TRUE(r.forces_call());
}

TEST(ResponseRequest, ToolsOfAgentsAreFunctions) {
  const ApiRequest r = response_of(R"({"input": [
      {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "h"}]},
      {"role": "user", "content": "a"}],
    "tools": [{"type": "web_search", "external_web_access": false},
      {"type": "custom", "name": "patch", "description": "d", "format": {"type": "grammar",
       "syntax": "lark", "definition": "start: \"x\""}},
      {"type": "namespace", "name": "docs", "tools": [{"type": "function", "name": "find", "strict": true,
       "parameters": {"type": "object"}}, {"type": "computer"}]}],
    "tool_choice": {"type": "custom", "name": "patch"}})");
  ASSERT_EQ(r.tools.size(), 3u);
  EXPECT_EQ(r.tools[0]["function"]["name"], "h");
  EXPECT_EQ(r.tools[1]["function"], Json::parse(R"({"name": "patch", "description": "d",
    "parameters": {"type": "object", "properties": {"input": {"type": "string", "description":
    "The tool's input, a text of this lark grammar:\nstart: \"x\""}}, "required": ["input"],
    "additionalProperties": false}})"));
  EXPECT_EQ(
      r.tools[2]["function"],
      Json::parse(R"({"name": "docs__find", "parameters": {"type": "object"}, "strict": true})"));
  EXPECT_EQ(r.sources.of("tools[0].function.name"), "input[0].tools[0].name");
  EXPECT_EQ(r.sources.of("tools[1].function.parameters.properties.input"), "tools[1]");
  EXPECT_EQ(r.sources.of("tools[2].function.parameters.a"), "tools[2].tools[0].parameters.a");
  EXPECT_THAT(r.idle, ElementsAre("tools[0]", "tools[1].format", "tools[2].tools[1]"));
  EXPECT_TRUE(r.other_tools.at("patch").custom);
  EXPECT_EQ(r.other_tools.at("docs__find").space, "docs");
  EXPECT_EQ(r.other_tools.at("docs__find").name, "find");
  EXPECT_TRUE(r.forces_call());
}

TEST(ResponseRequest, CallsOfOtherToolsAreCalls) {
  const std::string thought = responses_api::encode_reasoning("why");
  const ApiRequest r = response_of(R"({"input": [{"role": "user", "content": "a"},
    {"type": "reasoning", "summary": [], "encrypted_content": ")" +
                                   thought + R"("},
    {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "x\n"},
    {"type": "function_call", "call_id": "c2", "namespace": "mcp__docs__", "name": "find", "arguments": "{}"},
    {"type": "custom_tool_call_output", "call_id": "c1", "name": "patch", "output": "one"},
    {"type": "function_call_output", "call_id": "c2", "output": "two"},
    {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}], "include": ["reasoning.encrypted_content"]})");
  const Json wanted = Json::parse(R"([
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "", "reasoning_content": "why", "tool_calls": [
      {"id": "c1", "type": "function", "function": {"name": "patch", "arguments": {"input": "x\n"}}},
      {"id": "c2", "type": "function", "function": {"name": "mcp__docs__find", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "one"},
    {"role": "tool", "tool_call_id": "c2", "content": "two"}])");
  EXPECT_EQ(nlohmann::json(r.messages), nlohmann::json(wanted)) << r.messages.dump(1);
  EXPECT_THAT(r.idle, ElementsAre("input[6].encrypted_content"));
  EXPECT_TRUE(r.encode_reasoning);
}

TEST(ReasoningText, IsBase64) {
  // RFC 4648, section 10.
  for (const auto& [text, encoded] :
       {std::pair{"f", "Zg=="}, {"fo", "Zm8="}, {"foo", "Zm9v"}, {"foobar", "Zm9vYmFy"}}) {
    EXPECT_EQ(responses_api::encode_reasoning(text), "lathe:" + std::string(encoded));
    EXPECT_EQ(responses_api::decode_reasoning("lathe:" + std::string(encoded)), text);
  }
  for (const char* other : {"Zg==", "lathe:", "lathe:Z", "gAAAA"}) {
    EXPECT_FALSE(responses_api::decode_reasoning(other)) << other;
  }
}

// What is refused, by the path that is wrong.
TEST(ResponseRequest, MistakesAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "input"},
      {R"({"input": null})", "input"},
      {R"({"input": 3})", "input"},
      {R"({"input": []})", "input"},
      {R"({"input": ["a"]})", "input[0]"},
      {R"({"input": [{"type": "item_reference", "id": "x"}]})", "input[0].type"},
      {R"({"input": [{"type": "computer_call"}]})", "input[0].type"},
      {R"({"input": [{"role": "tool", "content": "a"}]})", "input[0].role"},
      {R"({"input": [{"role": "user"}]})", "input[0].content"},
      {R"({"input": [{"role": "user", "content": [{"type": "input_image"}]}]})",
       "input[0].content[0].type"},
      {R"({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "[1]"}]})",
       "input[0].arguments"},
      {R"({"input": [{"type": "function_call", "call_id": "c", "arguments": "{}"}]})",
       "input[0].name"},
      {R"({"input": [{"type": "function_call_output", "call_id": "c", "output": "a"}]})",
       "input[0].call_id"},
      {R"({"input": "a", "tools": [{"type": "web_search"}]})", "tools[0].type"},
      {R"({"input": "a", "tools": [{"type": "namespace", "name": "a", "tools": [
           {"type": "namespace", "name": "b", "tools": []}]}]})",
       "tools[0].tools[0].type"},
      {R"({"input": "a", "tools": [{"type": "web_search"}, {"type": "mcp"}]})", "tools[0].type"},
      {R"({"input": "a", "tools": [{"type": "function", "name": "f"}, {"name": "g"}]})",
       "tools[1].type"},
      {R"({"input": "a", "tools": [{"type": "custom"}]})", "tools[0].name"},
      {R"({"input": "a", "tools": [{"type": "namespace", "name": "n"}]})", "tools[0].tools"},
      {R"({"input": "a", "tools": [{"type": "function", "name": "n__f"}, {"type": "namespace",
          "name": "n", "tools": [{"type": "function", "name": "f"}]}]})",
       "tools[1].tools[0].name"},
      {R"({"input": [{"type": "custom_tool_call", "call_id": "c", "name": "f"}]})",
       "input[0].input"},
      {R"({"input": "a", "tools": [{"type": "function"}]})", "tools[0].name"},
      {R"({"input": "a", "tools": [{"type": "function", "name": "f"}],
          "tool_choice": {"type": "function", "name": "g"}})",
       "tool_choice.name"},
      {R"({"input": "a", "tool_choice": {"type": "web_search"}})", "tool_choice"},
      {R"({"input": "a", "tool_choice": "required"})", "tool_choice"},
      {R"({"input": "a", "text": {"format": {"type": "grammar"}}})", "text.format.type"},
      {R"({"input": "a", "text": {"format": {"type": "json_schema"}}})", "text.format.schema"},
      {R"({"input": "a", "reasoning": {"effort": 3}})", "reasoning.effort"},
      {R"({"input": "a", "include": ["message.output_text.logprobs"]})", "include[0]"},
      {R"({"input": "a", "truncation": "auto"})", "truncation"},
      {R"({"input": "a", "store": true})", "store"},
      {R"({"input": "a", "background": true})", "background"},
      {R"({"input": "a", "previous_response_id": "resp_1"})", "previous_response_id"},
      {R"({"input": "a", "conversation": {"id": "c"}})", "conversation"},
      {R"({"input": "a", "rid": ["x", "y"]})", "rid"},
      {R"({"input": "a", "max_output_tokens": 0})", "max_output_tokens"},
      {R"({"input": "a", "text": {"format": {"type": "json_object"}}, "regex": "a"})", "regex"},
      {R"({"input": "a", "reasoning": {"effort": "low"},
          "chat_template_kwargs": {"reasoning_effort": "high"}})",
       "reasoning.effort"},
  };
  for (const auto& [body, param] : cases) {
    const ApiError error = wrong_response(body);
    EXPECT_EQ(error.param, param) << body;
    EXPECT_EQ(error.status, 400) << body;
    EXPECT_THAT(error.message, HasSubstr("wanted")) << body;
  }
}

TEST(ResponseRequest, KindsOfToolsAndPartsAreNamed) {
  const std::string tools = R"("tools": [{"type": "function", "name": "f"},
      {"type": "custom", "name": "c"}, {"type": "web_search"}])";
  const std::string calls = R"({"role": "user", "content": "a"},
      {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
      {"type": "custom_tool_call", "call_id": "2", "name": "c", "input": "x"},
)";
  const struct {
    std::string body, message;
  } cases[] = {
      {R"({"tool_choice": {"type": "custom", "name": "f"}, "input": "a", )" + tools + "}",
       R"(tool_choice.type: wanted "function", as the tool "f" is, got "custom")"},
      {R"({"tool_choice": {"type": "function", "name": "c"}, "input": "a", )" + tools + "}",
       R"(tool_choice.type: wanted "custom", as the tool "c" is, got "function")"},
      {R"({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [
          {"type": "web_search"}, {"type": "custom", "name": "f"}]}, "input": "a", )" +
           tools + "}",
       R"(tool_choice.tools[1].type: wanted "function", as the tool "f" is, got "custom")"},
      {R"({"input": [)" + calls +
           R"({"type": "custom_tool_call_output", "call_id": "1", "output": "o"}]})",
       R"(input[3].type: wanted "function_call_output", as "1" is a function_call, )"
       R"(got "custom_tool_call_output")"},
      {R"({"input": [)" + calls +
           R"({"type": "function_call_output", "call_id": "2", "output": "o"}]})",
       R"(input[3].type: wanted "custom_tool_call_output", as "2" is a custom_tool_call, )"
       R"(got "function_call_output")"},
      {R"({"input": [{"type": "reasoning", "summary": [{"type": "zzz", "text": "a"}]}]})",
       R"(input[0].summary[0].type: wanted "summary_text", got "zzz")"},
      {R"({"input": [{"type": "reasoning", "content": [{"type": "zzz", "text": "a"}]}]})",
       R"(input[0].content[0].type: wanted "reasoning_text", got "zzz")"},
      {R"({"input": [)" + calls + R"({"type": "function_call_output", "call_id": "1",
          "output": [{"type": "input_image"}]}]})",
       R"(input[3].output[0].type: wanted "input_text", got "input_image")"},
  };
  for (const auto& c : cases) {
    const ApiError error = wrong_response(c.body);
    EXPECT_EQ(error.status, 400) << c.body;
    EXPECT_THAT(error.message, HasSubstr(c.message)) << c.body;
  }
  response_of(R"({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [
      {"type": "function", "name": "f"}, {"type": "custom", "name": "c"}]}, "input": "a", )" +
              tools + "}");
}

// An id that a later turn uses again is of that turn's call.
TEST(ResponseRequest, AnIdMayBeOfAnotherKindLater) {
  const ApiRequest r = response_of(R"({"input": [{"role": "user", "content": "a"},
      {"type": "custom_tool_call", "call_id": "1", "name": "c", "input": "x"},
      {"type": "custom_tool_call_output", "call_id": "1", "output": "o"},
      {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "1", "output": "p"}]})");
  EXPECT_EQ(r.messages.back()["content"], "p");
}

}  // namespace
}  // namespace lathe
