#include "io/template/chat_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace lathe {
namespace {

using ::testing::StartsWith;
using Json = nlohmann::ordered_json;

// The messages as they are read, or the error.
std::string read(const char* text) {
  Json messages = Json::parse(text);
  auto ok = read_messages(messages);
  if (ok) ok = check_results(messages);
  return ok ? messages.dump() : ok.error().message();
}

TEST(ChatMessages, BecomeTheFormOfTemplates) {
  EXPECT_EQ(read(R"([{"role": "developer", "content": "a"},
                     {"role": "user", "content": [{"type": "text", "text": "b"},
                                                  {"type": "text", "text": "c"}]}])"),
            R"([{"role":"system","content":"a"},{"role":"user","content":"b\nc"}])");
  // Arguments become an object, and a missing content is null.
  EXPECT_EQ(read(R"([{"role": "assistant", "tool_calls": [
                        {"id": "1", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
                     {"role": "tool", "tool_call_id": "1", "content": "2"}])"),
            R"([{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":)"
            R"({"x":1}}}],"content":null},{"role":"tool","tool_call_id":"1","content":"2"}])");
}

TEST(ChatMessages, WhatNoTemplateCouldShowIsRefused) {
  EXPECT_EQ(read("[]"), "messages: wanted a list of messages, at least one, got []");
  EXPECT_EQ(read(R"([{"role": "x", "content": "a"}])"),
            "messages[0].role: wanted system, developer, user, assistant or tool, got \"x\"");
  EXPECT_EQ(read(R"([{"role": "user", "content": null}])"),
            "messages[0].content: wanted text, got nothing");
  EXPECT_EQ(read(R"([{"role": "user", "content": "a"},
                     {"role": "tool", "tool_call_id": "1", "content": "2"}])"),
            "messages[1].tool_call_id: wanted the id of a call in the assistant's message before "
            "it, got \"1\"");
  const auto call_of = [](const std::string& type) {
    return read((R"([{"role": "assistant", "tool_calls": [{"id": "1", "type": )" + type +
                 R"(, "function": {"name": "f", "arguments": {}}}]}])")
                    .c_str());
  };
  EXPECT_THAT(call_of("null"), StartsWith("[{"));
  EXPECT_EQ(call_of(R"({"name": "f"})"),
            R"(messages[0].tool_calls[0].type: wanted "function", got {"name":"f"})");
  EXPECT_EQ(call_of(R"("custom")"),
            R"(messages[0].tool_calls[0].type: wanted "function", got "custom")");
  EXPECT_EQ(read(R"([{"role": "assistant", "tool_calls": [5]}])"),
            "messages[0].tool_calls[0]: wanted a call, got 5");
  EXPECT_EQ(read(R"([{"role": "assistant", "tool_calls": [{"function": 5}]}])"),
            "messages[0].tool_calls[0].function: wanted an object with name and arguments, got 5");
  EXPECT_EQ(read(R"([{"role": "assistant", "content": "", "reasoning": ["a"]}])"),
            R"(messages[0].reasoning: wanted text, got ["a"])");
}

}  // namespace
}  // namespace lathe
