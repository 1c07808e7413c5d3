#include "server/messages/message_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
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
  EXPECT_THAT(r.idle, ElementsAre("messages[2].content[1].is_error"));
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
  EXPECT_EQ(r->sources.of("tools[0].function.parameters.type"), "tools[1].input_schema.type");
  EXPECT_THAT(r->ignored, ::testing::IsEmpty());
  EXPECT_THAT(r->idle, ::testing::UnorderedElementsAre("messages[1].content[0]", "tools[0]",
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
      {R"({"max_tokens": 1, "messages": [{"role": "user", "content": "a"}], "tools": [
           {"type": "function", "name": "w"}, {"type": "web_search_1", "name": "x"}]})",
       "tools[0].type"},
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
      {R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "rid": ["x", "y"]})",
       "rid"},
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

std::string body_of_turns(const std::string& more) {
  return R"({"max_tokens": 9, "messages": [{"role": "user", "content": "a"}, )" + more + "]}";
}
std::string turn_of_calls(const std::string& ids) {
  std::string blocks;
  for (const char id : ids) {
    blocks += std::string(blocks.empty() ? "" : ", ") + R"({"type": "tool_use", "id": ")" + id +
              R"(", "name": "f", "input": {}})";
  }
  return R"({"role": "assistant", "content": [)" + blocks + "]}";
}
std::string turn_of_results(const std::string& ids, const std::string& more = "") {
  std::string blocks;
  for (const char id : ids) {
    blocks += std::string(blocks.empty() ? "" : ", ") +
              R"({"type": "tool_result", "tool_use_id": ")" + id + "\"" + more + "}";
  }
  return R"({"role": "user", "content": [)" + blocks + "]}";
}

// Anthropic's server refuses these with 400: a tool_result without a tool_use in the message before
// it, a tool_use without a tool_result in the message after it, two results of one call, and equal
// ids. It joins messages of one role that follow each other.
TEST(MessageRequest, CallsHaveOneResultEach) {
  for (const std::string& good :
       {body_of_turns(turn_of_calls("c") + ", " + turn_of_results("c")),
        body_of_turns(turn_of_calls("cd") + ", " + turn_of_results("dc")),
        body_of_turns(turn_of_calls("c") + ", " + turn_of_calls("d") + ", " + turn_of_results("d") +
                      ", " + turn_of_results("c")),
        body_of_turns(turn_of_calls("c") + ", " + turn_of_results("c") + ", " + turn_of_calls("d") +
                      ", " + turn_of_results("d", R"(, "is_error": false)")),
        body_of_turns(turn_of_calls("c") + ", " + turn_of_results("c", R"(, "is_error": null)"))}) {
    message_of(good);
  }
  const std::pair<std::string, const char*> cases[] = {
      {body_of_turns(turn_of_calls("c") + ", " + turn_of_results("cc")),
       "messages[2].content[1].tool_use_id"},
      {body_of_turns(turn_of_calls("c") + ", " + turn_of_results("c") + ", " +
                     turn_of_results("c")),
       "messages[3].content[0].tool_use_id"},
      {body_of_turns(turn_of_calls("c") + ", " + turn_of_results("d")),
       "messages[2].content[0].tool_use_id"},
      {body_of_turns(turn_of_calls("c") + ", " + turn_of_results("c") + ", " + turn_of_calls("d") +
                     ", " + turn_of_results("c")),
       "messages[4].content[0].tool_use_id"},
      {body_of_turns(turn_of_calls("cd") + ", " + turn_of_results("c")), "messages[1].content"},
      {body_of_turns(turn_of_calls("cd") + ", " + turn_of_results("c") + ", " +
                     R"({"role": "assistant", "content": "b"})"),
       "messages[1].content"},
      {body_of_turns(turn_of_calls("c") + R"(, {"role": "user", "content": "b"})"),
       "messages[1].content"},
      {body_of_turns(turn_of_calls("cc") + ", " + turn_of_results("c")),
       "messages[1].content[1].id"},
      {body_of_turns(turn_of_calls("c") + ", " + turn_of_results("c") + ", " + turn_of_calls("c") +
                     ", " + turn_of_results("c")),
       "messages[3].content[0].id"},
      {body_of_turns(turn_of_calls("c") + ", " + turn_of_results("c", R"(, "is_error": "yes")")),
       "messages[2].content[0].is_error"},
      {body_of_turns(turn_of_calls("c") + ", " + turn_of_results("c", R"(, "is_error": 1)")),
       "messages[2].content[0].is_error"},
  };
  for (const auto& [body, param] : cases) {
    const auto request = anthropic::parse_request(body, {});
    ASSERT_FALSE(request.ok()) << body;
    EXPECT_EQ(request.error().param, param) << body;
    EXPECT_THAT(request.error().message, HasSubstr("wanted")) << body;
  }
}

TEST(MessageRequest, AnIntegerBeyondItsRangeIsToldTheRange) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"("seed": 18446744073709551615)",
       "seed: wanted an integer from -9223372036854775808 to 9223372036854775807, got "
       "18446744073709551615"},
      {R"("seed": 9223372036854775808)",
       "seed: wanted an integer from -9223372036854775808 to 9223372036854775807, got "
       "9223372036854775808"},
      {R"("seed": -9223372036854775809)",
       "seed: wanted an integer from -9223372036854775808 to 9223372036854775807, got "
       "-9223372036854775809"},
      {R"("seed": "7")", "seed: wanted an integer, got \"7\""},
      {R"("max_tokens": 1000000000000000000000000000000)",
       "max_tokens: wanted an integer from 1 to 2147483647, got 1000000000000000000000000000000"},
      {R"("top_k": 2147483648)", "top_k: wanted an integer from -1 to 2147483647, got 2147483648"},
      {R"("thinking": {"type": "enabled", "budget_tokens": 2147483648})",
       "thinking.budget_tokens: wanted an integer from 1 to 2147483647, got 2147483648"},
  };
  for (const auto& [field, message] : cases) {
    const auto request = anthropic::parse_request(
        R"({"messages": [{"role": "user", "content": "a"}], )" + field + "}", {});
    ASSERT_FALSE(request.ok()) << field;
    EXPECT_EQ(request.error().message, message);
  }
}

// What may be said twice is not said differently.
TEST(MessageRequest, SpellingsOfOneThingAgree) {
  const auto body = [](const std::string& fields) {
    return R"({"max_tokens": 9, "messages": [{"role": "user", "content": "a"}], )" + fields + "}";
  };
  const std::string a = R"({"type": "json_schema", "schema": {"type": "object"}})";
  const std::string b = R"({"type": "json_schema", "schema": {"type": "array"}})";
  const std::string on = R"({"type": "enabled", "budget_tokens": 5})",
                    off = R"({"type": "disabled"})";
  for (const std::string& good :
       {R"("output_config": {"format": )" + a + R"(}, "output_format": )" + a,
        R"("json_schema": {"type": "object"}, "output_format": )" + a,
        R"("chat_template_kwargs": {"enable_thinking": true, "x": 1}, "thinking": )" + on,
        R"("chat_template_kwargs": {"thinking": false}, "thinking": )" + off}) {
    EXPECT_THAT(message_of(body(good)).ignored, ElementsAre());
  }
  // The template's own variable goes first, and the switch is named.
  for (const std::string& other :
       {R"("chat_template_kwargs": {"enable_thinking": true}, "thinking": )" + off,
        R"("chat_template_kwargs": {"thinking": false}, "thinking": )" + on}) {
    EXPECT_THAT(message_of(body(other)).idle, ElementsAre("thinking.type"));
  }
  for (
      const auto& [bad, param] :
      {std::pair{R"("output_config": {"format": )" + a + R"(}, "output_format": )" + b,
                 "output_format.schema"},
       {R"("json_schema": {"type": "array"}, "output_format": )" + a, "output_format.schema"},
       {R"("regex": "a", "output_config": {"format": )" + a + "}", "regex"},
       {std::string(
            R"("output_config": {"effort": "low"}, "chat_template_kwargs": {"reasoning_effort": "high"})"),
        "output_config.effort"}}) {
    const auto request = anthropic::parse_request(body(bad), {});
    ASSERT_FALSE(request.ok()) << bad;
    EXPECT_EQ(request.error().param, param) << bad;
  }
}

// Anthropic's server wants a budget with type enabled.
TEST(MessageRequest, ThinkingHasABudget) {
  const auto thinking = [](const std::string& value) {
    return R"({"max_tokens": 9, "messages": [{"role": "user", "content": "a"}], "thinking": )" +
           value + "}";
  };
  const auto without = anthropic::parse_request(thinking(R"({"type": "enabled"})"), {});
  ASSERT_FALSE(without.ok());
  EXPECT_EQ(without.error().param, "thinking.budget_tokens");
  EXPECT_EQ(message_of(thinking(R"({"type": "enabled", "budget_tokens": 5})")).thinking_budget, 5);
  EXPECT_EQ(message_of(thinking(R"({"type": "adaptive"})")).thinking_budget, std::nullopt);
  const ApiRequest off = message_of(thinking(R"({"type": "disabled", "budget_tokens": 5})"));
  EXPECT_EQ(off.thinking_budget, std::nullopt);
  EXPECT_THAT(off.idle, ElementsAre("thinking.budget_tokens"));
}

// What a double would change: the input of a call, and numbers of schemas.
TEST(MessageRequest, A8NumbersKeepTheirDigits) {
  const ApiRequest r =
      message_of(R"({"max_tokens": 9, "top_p": 0.70000000000000000001, "messages": [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f",
      "input": {"n": 18446744073709551616, "x": [0.1234567890123456789, 1.5]}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}]}],
    "tools": [{"name": "f", "input_schema": {"type": "object", "properties": {"n": {"const": -9223372036854775809}}}}],
    "tool_choice": {"type": "none"},
    "output_config": {"format": {"type": "json_schema", "schema": {"maximum": 36893488147419103233}}}})");
  EXPECT_EQ(json_text(r.messages[1]["tool_calls"][0]["function"]["arguments"]),
            R"({"n":18446744073709551616,"x":[0.1234567890123456789,1.5]})");
  EXPECT_THAT(json_text(r.tools), HasSubstr(R"("const":-9223372036854775809)"));
  EXPECT_EQ(json_text(r.constraint->schema), R"({"maximum":36893488147419103233})");
  EXPECT_FLOAT_EQ(*r.top_p, 0.7f);
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
