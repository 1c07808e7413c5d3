#include "server/messages/message_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/messages/message_error.h"

namespace lathe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

ApiRequest message_of(const std::string& body) {
  auto request = anthropic::parse_request(body, {});
  EXPECT_TRUE(request.ok()) << body << ": " << (request.ok() ? "" : request.error().message);
  return request.ok() ? *request : ApiRequest{};
}

TEST(MessageRequest, BlocksBecomeMessages) {
  const ApiRequest r = message_of(R"({"max_tokens": 9,
    "system": [{"type": "text", "text": "s"}, {"type": "text", "text": "t", "cache_control": {"type": "ephemeral"}}],
    "messages": [
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "why", "signature": "x"}, {"type": "text", "text": "x"},
        {"type": "tool_use", "id": "c1", "name": "f", "input": {"n": 1}},
        {"type": "tool_use", "id": "c2", "name": "g", "input": {}}]},
      {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "c1", "content": "one"},
        {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "two"}], "is_error": true},
        {"type": "text", "text": "go on"}]}]})");
  const Json wanted = Json::parse(R"([
    {"role": "system", "content": "s\nt"},
    {"role": "user", "content": "a\nb"},
    {"role": "assistant", "content": "x", "reasoning_content": "why", "tool_calls": [
      {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"n": 1}}},
      {"id": "c2", "type": "function", "function": {"name": "g", "arguments": {}}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "one"},
    {"role": "tool", "tool_call_id": "c2", "content": "two"},
    {"role": "user", "content": "go on"}])");
  EXPECT_EQ(nlohmann::json(r.messages), nlohmann::json(wanted)) << r.messages.dump(1);
  EXPECT_THAT(r.ignored, ElementsAre("messages[2].content[1].is_error"));
  EXPECT_FALSE(r.continue_final_message);
}

TEST(MessageRequest, FieldsHaveTheirOwnNames) {
  const ApiRequest r = message_of(R"({"max_tokens": 9, "messages": [
      {"role": "user", "content": "a"}, {"role": "assistant", "content": "The answer is"}],
    "stop_sequences": ["x"], "thinking": {"type": "disabled"}, "chat_template_kwargs": {"thinking": true},
    "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": true}})");
  EXPECT_TRUE(r.continue_final_message);
  EXPECT_THAT(r.stop, ElementsAre("x"));
  EXPECT_EQ(r.template_kwargs, Json::parse(R"({"thinking": true, "enable_thinking": false})"));
  EXPECT_EQ(r.tools, Json::parse(R"([{"type": "function", "function":
    {"name": "f", "description": "d", "parameters": {"type": "object"}}}])"));
  EXPECT_EQ(r.tool_choice, "required");
  EXPECT_FALSE(r.parallel_tool_calls);
}

TEST(MessageRequest, WhatOnlyAnthropicHasIsLeftOut) {
  const auto r = anthropic::parse_request(
      R"({"max_tokens": 1, "messages": [{"role": "user", "content": "a"}, {"role": "assistant",
      "content": [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "b"}]},
      {"role": "user", "content": "c"}], "tools": [{"type": "web_search_20250305", "name": "web_search"},
      {"name": "f", "input_schema": {"type": "object"}}], "context_management": {"edits": []},
      "output_format": null})",
      {});
  ASSERT_TRUE(r.ok()) << r.error().message;
  EXPECT_EQ(r->tools.size(), 1u);
  EXPECT_THAT(r->tool_paths, ::testing::ElementsAre("tools[1]"));
  EXPECT_THAT(r->ignored, ::testing::UnorderedElementsAre("messages[1].content[0]", "tools[0]",
                                                          "context_management"));
}

TEST(MessageRequest, CountsNeedNoLimit) {
  const std::string body = R"({"messages": [{"role": "user", "content": "a"}]})";
  EXPECT_TRUE(anthropic::parse_request(body, {}, /*counts=*/true));
  EXPECT_FALSE(anthropic::parse_request(body, {}));
}

TEST(MessageRequest, MistakesAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "messages"},
      {R"({"messages": []})", "messages"},
      {R"({"messages": ["a"]})", "messages[0]"},
      {R"({"messages": [{"role": "system", "content": "a"}]})", "messages[0].role"},
      {R"({"messages": [{"role": "user"}]})", "messages[0].content"},
      {R"({"messages": [{"role": "user", "content": []}]})", "messages[0].content"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]})",
       "messages[0].content[0].type"},
      {R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})",
       "messages[0].content[0].text"},
      {R"({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}]}]})",
       "messages[0].content[0].tool_use_id"},
      {R"({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]}]})",
       "messages[0].content"},
      {R"({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": "{}"}]}]})",
       "messages[0].content[0].input"},
      {R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 0})", "max_tokens"},
      {R"({"messages": [{"role": "user", "content": "a"}]})", "max_tokens"},
      {R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "system": [{"type": "image"}]})",
       "system[0].type"},
      {R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "tools": [{"type": "bash_20250124", "name": "bash"}]})",
       "tools[0].type"},
      {R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "tools": [{"name": "f"}]})",
       "tools[0].input_schema"},
      {R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "tool_choice": {"type": "all"}})",
       "tool_choice.type"},
      {R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "thinking": {"type": "on"}})",
       "thinking.type"},
      {R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "mcp_servers": [{"type": "url"}]})",
       "mcp_servers"},
  };
  for (const auto& [body, param] : cases) {
    const auto request = anthropic::parse_request(body, {});
    ASSERT_FALSE(request.ok()) << body;
    EXPECT_EQ(request.error().param, param) << body;
    EXPECT_EQ(request.error().status, 400) << body;
    EXPECT_THAT(request.error().message, HasSubstr("wanted")) << body;
  }
}

// Anthropic's types, by status.
TEST(MessageError, TypesFollowTheStatus) {
  const std::pair<int, const char*> cases[] = {
      {400, "invalid_request_error"}, {401, "authentication_error"},  {403, "permission_error"},
      {404, "not_found_error"},       {405, "invalid_request_error"}, {413, "request_too_large"},
      {415, "invalid_request_error"}, {429, "rate_limit_error"},      {500, "api_error"},
      {503, "overloaded_error"}};
  for (const auto& [status, type] : cases) {
    const auto body =
        nlohmann::json::parse(anthropic::error_body({status, "x", "words", ""}, "r1"));
    EXPECT_EQ(body, nlohmann::json({{"type", "error"},
                                    {"error", {{"type", type}, {"message", "words"}}},
                                    {"request_id", "r1"}}));
  }
}

}  // namespace
}  // namespace lathe
