// Constrained calls of tools, and answers that may be calls, through the whole server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/test_scale.h"
#include "server/scripted/scripted_server.h"
#include "server/scripted/test/http_client_test_util.h"
#include "server/service/test/constrained_test_util.h"

namespace lathe {
namespace {

using constrained_test::chat;
using constrained_test::expect_valid;
using constrained_test::format_of;
using constrained_test::kSchema;
using constrained_test::lover_of_newlines;
using ::testing::HasSubstr;
using PlainJson = nlohmann::json;

constexpr std::int32_t kToolCall = kScriptEos + 3;

const PlainJson kCalledTools = PlainJson::parse(
    R"([{"type": "function", "function": {"name": "add", "strict": true, "parameters": {"type": "object",
    "properties": {"x": {"$ref": "#/$defs/n"}, "y": {"$ref": "#/$defs/n"}}, "required": ["x", "y"],
    "additionalProperties": false, "$defs": {"n": {"type": "integer", "minimum": 3, "maximum": 12}}}}},
    {"type": "function", "function": {"name": "now"}}])");

void expect_calls(const PlainJson& calls, bool named) {
  ASSERT_FALSE(calls.empty());
  for (const PlainJson& call : calls) {
    const PlainJson arguments = PlainJson::parse(call["function"]["arguments"].get<std::string>());
    if (call["function"]["name"] == "now") {
      EXPECT_FALSE(named);
      EXPECT_EQ(arguments, PlainJson::object());
      continue;
    }
    EXPECT_EQ(call["function"]["name"], "add");
    EXPECT_EQ(arguments.size(), 2u);
    for (const char* name : {"x", "y"}) {
      ASSERT_TRUE(arguments.contains(name)) << arguments;
      EXPECT_GE(arguments[name].get<int>(), 3);
      EXPECT_LE(arguments[name].get<int>(), 12);
    }
  }
}

TEST(ConstrainedCalls, ForcedToolCalls) {
  ScriptedServer s(lover_of_newlines("{# <tool_call> #}"));
  const PlainJson named{{"type", "function"}, {"function", {{"name", "add"}}}};
  for (int seed = 0; seed < 8; ++seed) {
    for (const PlainJson& choice : {PlainJson("required"), named}) {
      PlainJson body{{"tools", kCalledTools}, {"tool_choice", choice}, {"seed", seed}};
      if (seed % 2 == 1) body["parallel_tool_calls"] = false;
      const TestAnswer whole = ask(s.port(), "POST", "/v1/chat/completions", chat(body));
      ASSERT_EQ(whole.status, 200) << whole.body;
      const PlainJson answer = whole.json()["choices"][0];
      EXPECT_EQ(answer["finish_reason"], "tool_calls");
      EXPECT_EQ(answer["message"]["content"], nullptr);
      const PlainJson calls = answer["message"]["tool_calls"];
      expect_calls(calls, choice != "required");
      if (choice != "required" || seed % 2 == 1) {
        EXPECT_EQ(calls.size(), 1u);
      }

      body["stream"] = true;
      PlainJson streamed = PlainJson::array();
      std::string finish;
      for (const PlainJson& event :
           ask(s.port(), "POST", "/v1/chat/completions", chat(body)).events()) {
        const PlainJson& delta = event["choices"][0]["delta"];
        if (delta.contains("content")) {
          EXPECT_EQ(delta["content"], "");
        }
        if (event["choices"][0]["finish_reason"].is_string()) {
          finish = event["choices"][0]["finish_reason"];
        }
        if (!delta.contains("tool_calls")) continue;
        for (const PlainJson& part : delta["tool_calls"]) {
          const std::size_t at = part["index"];
          if (at == streamed.size())
            streamed.push_back({{"function", part["function"]}});
          else {
            const std::string more = part["function"]["arguments"];
            PlainJson& arguments = streamed[at]["function"]["arguments"];
            arguments = arguments.get<std::string>() + more;
          }
        }
      }
      EXPECT_EQ(finish, "tool_calls");
      ASSERT_EQ(streamed.size(), calls.size());
      for (std::size_t i = 0; i < calls.size(); ++i) {
        EXPECT_EQ(streamed[i]["function"], calls[i]["function"]);
      }
    }
  }
  // Cut by length: an incomplete call is text.
  const TestAnswer cut =
      ask(s.port(), "POST", "/v1/chat/completions",
          chat({{"tools", kCalledTools}, {"tool_choice", "required"}, {"max_tokens", 3}}));
  EXPECT_EQ(cut.json()["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(cut.json()["choices"][0]["message"]["content"], "[\n\n");
}

// The constraint of an answer in channels is in its final message, or makes it a call.
TEST(ConstrainedCalls, AnswersInChannels) {
  ScriptedOptions options = lover_of_newlines("{# <|channel|> #}");
  options.next = [](std::int32_t token, std::int32_t position) -> std::int32_t {
    // After <|channel|> the prompt "q" gets reasoning and "qq" none, if it may. Then comes the mark
    // that ends reasoning, again and again.
    constexpr std::string_view kEnd = "<|end|>";
    if (token == '>' && position == 11) return 'a';
    if (token == '>' && position == 12) return 'f';
    const auto at = static_cast<std::size_t>(position);
    return at < 30 ? '\n' : kEnd[(at - 30) % kEnd.size()];
  };
  ScriptedServer s(options);
  const PlainJson named{{"type", "function"}, {"function", {{"name", "add"}}}};
  for (int seed = 0; seed < 6; ++seed) {
    const std::string text = seed % 2 == 0 ? "q" : "qq";
    const TestAnswer format =
        ask(s.port(), "POST", "/v1/chat/completions",
            chat({{"response_format", format_of(kSchema)}, {"seed", seed}}, text));
    ASSERT_EQ(format.status, 200) << format.body;
    const PlainJson message = format.json()["choices"][0]["message"];
    expect_valid(PlainJson::parse(message["content"].get<std::string>()));
    for (const PlainJson& choice : {PlainJson("required"), named}) {
      const PlainJson body{{"tools", kCalledTools}, {"tool_choice", choice}, {"seed", seed}};
      const TestAnswer answer = ask(s.port(), "POST", "/v1/chat/completions", chat(body, text));
      ASSERT_EQ(answer.status, 200) << answer.body;
      const PlainJson called = answer.json()["choices"][0];
      EXPECT_EQ(called["finish_reason"], "tool_calls") << answer.body;
      EXPECT_EQ(called["message"]["content"], nullptr);
      ASSERT_EQ(called["message"]["tool_calls"].size(), 1u) << answer.body;
      expect_calls(called["message"]["tool_calls"], choice != "required");
    }
  }
}

// A model that chooses to call, and would rather write newlines than arguments.
TEST(ConstrainedCalls, StrictArgumentsFollowTheirSchemaIfTheModelCalls) {
  PlainJson tools = kCalledTools;
  tools[1]["function"]["strict"] = true;  // it has no parameters
  ScriptedOptions options = lover_of_newlines("{# <tool_call> #}");
  options.next = [](std::int32_t token, std::int32_t) -> std::int32_t {
    return token == 'q' ? kToolCall : token == 'z' ? std::int32_t{'!'} : std::int32_t{'\n'};
  };
  ScriptedServer s(options);
  int adds = 0;
  for (int seed = 0; seed < 10; ++seed) {
    const PlainJson body{{"tools", tools}, {"seed", seed}, {"parallel_tool_calls", false}};
    const TestAnswer answer = ask(s.port(), "POST", "/v1/chat/completions", chat(body));
    ASSERT_EQ(answer.status, 200) << answer.body;
    const PlainJson choice = answer.json()["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "tool_calls") << answer.body;
    EXPECT_EQ(choice["message"]["content"], nullptr);
    ASSERT_TRUE(choice["message"].contains("tool_calls")) << answer.body;
    const PlainJson calls = choice["message"]["tool_calls"];
    ASSERT_EQ(calls.size(), 1u);
    expect_calls(calls, false);
    adds += calls[0]["function"]["name"] == "add" ? 1 : 0;
  }
  EXPECT_GT(adds, 0);
  // It need not call, and may end anywhere.
  const TestAnswer text = ask(s.port(), "POST", "/v1/chat/completions",
                              chat({{"tools", tools}, {"max_tokens", 3}}, "z"));
  EXPECT_EQ(text.json()["choices"][0]["message"]["content"], "!\n\n") << text.body;
  const TestAnswer odd = ask(s.port(), "POST", "/v1/chat/completions",
                             chat({{"tools", PlainJson::parse(R"([{"type": "function",
                                   "function": {"name": "f", "strict": "yes"}}])")}}));
  EXPECT_EQ(odd.json()["error"]["param"], "tools[0].function.strict") << odd.body;
}

// The model calls for "q", and writes its final message for others.
ScriptedOptions caller(const std::string& prefix) {
  ScriptedOptions options = lover_of_newlines(prefix);
  options.next = [](std::int32_t token, std::int32_t) -> std::int32_t {
    return token == 'q' ? kToolCall : std::int32_t{'\n'};
  };
  return options;
}

// The text of an answer, and the names of what it calls, on any of the routes.
struct Said {
  std::string text;
  std::vector<std::string> calls;
};

Said said(const PlainJson& body) {
  Said out;
  if (body.contains("choices")) {
    const PlainJson& message = body["choices"][0]["message"];
    if (message["content"].is_string()) out.text = message["content"];
    for (const PlainJson& call : message.value("tool_calls", PlainJson::array())) {
      out.calls.push_back(call["function"]["name"]);
    }
    return out;
  }
  for (const PlainJson& part : body.value("output", body.value("content", PlainJson::array()))) {
    if (part["type"] == "message") out.text += part["content"][0]["text"];
    if (part["type"] == "text") out.text += part["text"];
    if (part["type"] == "function_call" || part["type"] == "tool_use") {
      out.calls.push_back(part["name"]);
    }
  }
  return out;
}

// What a request has on the three routes: the user's text, a schema of the final message, tools,
// and perhaps a choice of them.
std::vector<std::pair<const char*, PlainJson>> with_tools(const std::string& text,
                                                          const PlainJson& functions, bool strict) {
  const PlainJson messages = {{{"role", "user"}, {"content", text}}};
  PlainJson nested, flat, blocks;
  for (const PlainJson& f : functions) {
    const PlainJson& schema = f["parameters"];
    nested.push_back(
        {{"type", "function"},
         {"function", {{"name", f["name"]}, {"parameters", schema}, {"strict", strict}}}});
    flat.push_back(
        {{"type", "function"}, {"name", f["name"]}, {"parameters", schema}, {"strict", strict}});
    blocks.push_back({{"name", f["name"]}, {"input_schema", schema}, {"strict", strict}});
  }
  return {{"/v1/chat/completions",
           {{"messages", messages},
            {"max_tokens", 12000},
            {"tools", nested},
            {"response_format", format_of(kSchema)}}},
          {"/v1/responses",
           {{"input", text},
            {"max_output_tokens", 12000},
            {"tools", flat},
            {"store", false},
            {"text",
             {{"format",
               {{"type", "json_schema"}, {"name", "s"}, {"schema", kSchema}, {"strict", true}}}}}}},
          {"/v1/messages",
           {{"messages", messages},
            {"max_tokens", 12000},
            {"tools", blocks},
            {"output_config", {{"format", {{"type", "json_schema"}, {"schema", kSchema}}}}}}}};
}

const PlainJson kFunctions = PlainJson::parse(
    R"([{"name": "add", "parameters": {"type": "object", "properties": {"x": {"type": "integer",
    "minimum": 3, "maximum": 12}}, "required": ["x"], "additionalProperties": false}},
    {"name": "now", "parameters": {"type": "object", "properties": {}, "additionalProperties": false}}])");

TEST(ConstrainedCalls, TheFinalMessageFollowsItsSchemaAlsoWithTools) {
  for (const char* marks : {"{# <tool_call> #}", "{# <|channel|> #}", "{# [TOOL_CALLS] #}"}) {
    ScriptedServer s(caller(marks));
    int called = 0;
    for (int i = 0; i < 12 * test_scale(); ++i) {
      const bool strict = i % 4 < 2;
      for (auto& [route, body] : with_tools(i % 2 == 0 ? "q" : "z", kFunctions, strict)) {
        body["seed"] = i;
        const TestAnswer answer = ask(s.port(), "POST", route, body.dump());
        ASSERT_EQ(answer.status, 200) << route << answer.body;
        const Said out = said(answer.json());
        called += out.calls.empty() ? 0 : 1;
        // Newlines are liked best: an object of a tool that is not strict may reach the limit.
        const bool cut = answer.body.find("\"length\"") != std::string::npos ||
                         answer.body.find("incomplete") != std::string::npos ||
                         answer.body.find("\"max_tokens\"") != std::string::npos;
        if (cut) continue;
        if (out.calls.empty()) {
          expect_valid(PlainJson::parse(out.text));
        } else {
          EXPECT_EQ(out.text, "") << answer.body;
        }
        for (const std::string& name : out.calls) EXPECT_TRUE(name == "add" || name == "now");
      }
    }
    EXPECT_GT(called, 3) << marks;
  }
}

TEST(ConstrainedCalls, TheFinalMessageMayQuoteACall) {
  const PlainJson quoted{{"note", "<tool_call>now</tool_call>"}};
  const PlainJson schema{{"type", "object"},
                         {"properties", {{"note", {{"const", quoted["note"]}}}}},
                         {"required", {"note"}},
                         {"additionalProperties", false}};
  ScriptedOptions options = lover_of_newlines("{# <tool_call> #}");
  options.next = [](std::int32_t token, std::int32_t) -> std::int32_t {
    return token == 'z' ? '{' : '\n';
  };
  ScriptedServer s(options);
  for (auto& [route, body] : with_tools("z", kFunctions, false)) {
    if (body.contains("response_format")) body["response_format"] = format_of(schema);
    if (body.contains("text")) body["text"]["format"]["schema"] = schema;
    if (body.contains("output_config")) body["output_config"]["format"]["schema"] = schema;
    const TestAnswer answer = ask(s.port(), "POST", route, body.dump());
    ASSERT_EQ(answer.status, 200) << route << answer.body;
    const Said out = said(answer.json());
    EXPECT_TRUE(out.calls.empty()) << answer.body;
    EXPECT_EQ(PlainJson::parse(out.text), quoted) << answer.body;
  }
}

// Codex and OpenAI's SDKs name the tools that may be called now; the prompt has all of them.
TEST(ConstrainedCalls, AllowedToolsAloneAreCalled) {
  ScriptedServer s(caller("{# <tool_call> #}{{ tools | tojson if tools else '' }}"));
  for (int seed = 0; seed < 12; ++seed) {
    for (const char* mode : {"auto", "required"}) {
      // The model would call any tool, or none where it must.
      const bool required = std::string_view(mode) == "required";
      for (auto& [route, body] : with_tools(required ? "z" : "q", kFunctions, false)) {
        const bool chat_route = std::string_view(route) == "/v1/chat/completions";
        if (std::string_view(route) == "/v1/messages") continue;  // Anthropic has no such choice
        body.erase("response_format");
        body.erase("text");
        body["seed"] = seed;
        const PlainJson now{{"name", "now"}};
        PlainJson tool{{"type", "function"}};
        if (chat_route) tool["function"] = now;
        if (!chat_route) tool["name"] = "now";
        PlainJson choice{{"mode", mode}, {"tools", {tool}}};
        body["tool_choice"] = {{"type", "allowed_tools"}};
        if (chat_route) body["tool_choice"]["allowed_tools"] = choice;
        if (!chat_route) body["tool_choice"].update(choice);
        const TestAnswer answer = ask(s.port(), "POST", route, body.dump());
        ASSERT_EQ(answer.status, 200) << route << answer.body;
        const std::vector<std::string> calls = said(answer.json()).calls;
        for (const std::string& name : calls) EXPECT_EQ(name, "now");
        EXPECT_FALSE(calls.empty()) << mode << answer.body;
      }
    }
  }
  for (const auto& [choice, param] :
       {std::pair(R"({"mode": "any", "tools": []})", "tool_choice.mode"),
        std::pair(R"({"mode": "auto"})", "tool_choice.tools"),
        std::pair(R"({"mode": "auto", "tools": [{"type": "function", "name": "g"}]})",
                  "tool_choice.tools[0].name"),
        std::pair(R"({"mode": "auto", "tools": [{"type": "mcp"}]})", "tool_choice.tools"),
        std::pair(R"({"mode": "auto", "tools": [{"type": "function"}]})",
                  "tool_choice.tools[0].name")}) {
    PlainJson body = with_tools("q", kFunctions, false)[1].second;
    body["tool_choice"] = PlainJson::parse(choice);
    body["tool_choice"]["type"] = "allowed_tools";
    const TestAnswer answer = ask(s.port(), "POST", "/v1/responses", body.dump());
    EXPECT_EQ(answer.status, 400) << choice;
    EXPECT_EQ(answer.json()["error"]["param"], param) << answer.body;
  }
}

}  // namespace
}  // namespace lathe
