// The routes /v1/responses and /v1/messages over a scripted model: requests, fields, and errors,
// which have the protocol's shape.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/scripted/scripted_server.h"
#include "server/scripted/test/http_client_test_util.h"
#include "server/service/test/protocol_test_util.h"

namespace lathe {
namespace {

using protocol_test::kSaid;
using protocol_test::speaks;
using ::testing::HasSubstr;
using PlainJson = nlohmann::json;

TEST(Protocols, AnswersHaveTheirParts) {
  const std::string text = kSaid;
  ScriptedServer s(speaks(text, 1));
  const auto response =
      ask(s.port(), "POST", "/v1/responses",
          fmt::format(R"({{"input":"x","max_output_tokens":{},"ignore_eos":true,"temperature":0,)"
                      R"("tools":[{{"type":"function","name":"f","parameters":{{}}}}]}})",
                      text.size()))
          .json();
  const PlainJson output = response["output"];
  ASSERT_EQ(output.size(), 5u);
  EXPECT_EQ(output[0]["content"][0]["text"], "why");
  EXPECT_EQ(output[1]["content"][0]["text"], "ok");
  EXPECT_EQ(output[2]["arguments"], R"({"x":[1,"é"]})");
  EXPECT_EQ(output[3]["content"][0]["text"], " and");
  EXPECT_EQ(output[4]["type"], "function_call");
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(response["usage"]["output_tokens"], text.size());
  EXPECT_EQ(response["temperature"], 0);
  EXPECT_EQ(response["tools"].size(), 1u);
  const std::string message = R"({"messages":[{"role":"user","content":"x"}],"max_tokens":999,)";
  const auto stopped =
      ask(s.port(), "POST", "/v1/messages", message + R"("stop_sequences":["k <"]})").json();
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], "k <");
  EXPECT_EQ(stopped["content"][1]["text"], "o");
}

// Prompts of agents in a loop: a call's result comes back.
TEST(Protocols, CallsGoBack) {
  const std::string text = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  ScriptedServer s(speaks(text, 1));
  const std::string tools =
      fmt::format(R"("tools":[{{"name":"f","input_schema":{{}}}}],"max_tokens":{})", text.size());
  const auto first = ask(s.port(), "POST", "/v1/messages",
                         R"({"messages":[{"role":"user","content":"x"}],)" + tools + "}")
                         .json();
  EXPECT_EQ(first["stop_reason"], "max_tokens");
  ASSERT_EQ(first["content"].size(), 1u) << first.dump(1);
  const PlainJson next = {{"max_tokens", 1},
                          {"messages",
                           {{{"role", "user"}, {"content", "x"}},
                            {{"role", "assistant"}, {"content", first["content"]}},
                            {{"role", "user"},
                             {"content",
                              {{{"type", "tool_result"},
                                {"tool_use_id", first["content"][0]["id"]},
                                {"content", "y"}}}}}}}};
  EXPECT_EQ(ask(s.port(), "POST", "/v1/messages", next.dump()).status, 200);
}

TEST(Protocols, ErrorsHaveTheProtocolsShape) {
  ScriptedOptions options;
  options.server.api_keys = {"secret"};
  options.server.http.max_body_bytes = 1000;
  ScriptedServer s(std::move(options));
  const std::string good = R"({"messages":[{"role":"user","content":"x"}],"max_tokens":3})";
  const auto type_of = [&](const std::string& method, const std::string& body,
                           const std::string& headers, int status, const char* below = "") {
    const TestAnswer answer =
        ask(s.port(), method, std::string("/v1/messages") + below, body, headers);
    EXPECT_EQ(answer.status, status) << answer.body;
    EXPECT_EQ(answer.json().value("type", ""), "error") << answer.body;
    EXPECT_EQ(answer.json().contains("request_id"), true);
    return answer.json()["error"].value("type", "");
  };
  const std::string key = "x-api-key: secret\r\nanthropic-version: 2023-06-01\r\n";
  EXPECT_EQ(type_of("POST", good, "", 401), "authentication_error");
  EXPECT_EQ(type_of("POST", "{", key, 400), "invalid_request_error");
  EXPECT_EQ(type_of("GET", "", key, 405), "invalid_request_error");
  EXPECT_EQ(type_of("POST", good, key + "Content-Encoding: gzip\r\n", 415),
            "invalid_request_error");
  EXPECT_EQ(type_of("POST", std::string(2000, ' '), key, 413), "request_too_large");
  EXPECT_EQ(type_of("POST", R"({"model":"gpt",)" + good.substr(1), key, 404), "not_found_error");
  EXPECT_EQ(type_of("GET", "", key, 404, "/batches"), "not_found_error");
  EXPECT_EQ(type_of("POST", good, key, 404, "/x?beta=true"), "not_found_error");
  EXPECT_EQ(ask(s.port(), "POST", "/v1/messages", good, key).status, 200);
  // An error that chat's checks find has the route's own name.
  const TestAnswer tool =
      ask(s.port(), "POST", "/v1/responses", R"({"input":"x","max_output_tokens":99999999})",
          "Authorization: Bearer secret\r\n");
  EXPECT_EQ(tool.json()["error"]["param"], "max_output_tokens") << tool.body;
  EXPECT_THAT(tool.json()["error"]["message"].get<std::string>(),
              ::testing::Not(HasSubstr(" max_tokens")));
}

// A model that thinks for ever, and ends its answer after the reasoning. Its marks are special
// tokens or added ones that are none.
TEST(Protocols, ABudgetEndsReasoning) {
  constexpr std::int32_t kBegin = kScriptEos + 1, kEnd = kScriptEos + 2;
  for (const bool special : {true, false}) {
    ScriptedOptions options;
    options.special_marks = special;
    options.template_prefix = "{# </think> #}";
    options.next = [](std::int32_t token, std::int32_t) {
      if (token == kEnd) return kFirstWord;
      if (token == kFirstWord) return kScriptEos;
      return token == kBegin || token > kFirstWord ? kFirstWord + 1 : kBegin;
    };
    ScriptedServer s(std::move(options));
    for (const int budget : {1, 4, 90}) {
      for (const char* more :
           {"", R"(,"bad_words":["w9"])", R"(,"structured_outputs":{"regex":" w0"})"}) {
        const auto message =
            ask(s.port(), "POST", "/v1/messages",
                fmt::format(R"({{"messages":[{{"role":"user","content":"x"}}],"max_tokens":99,)"
                            R"("thinking":{{"type":"enabled","budget_tokens":{}}}{}}})",
                            budget, more))
                .json();
        SCOPED_TRACE(special);
        ASSERT_EQ(message["content"].size(), 2u) << message.dump(1);
        std::string thoughts;
        for (int i = 0; i < budget; ++i) thoughts += " w1";
        EXPECT_EQ(message["content"][0]["thinking"], thoughts);
        EXPECT_EQ(message["content"][1]["text"], " w0");
        EXPECT_EQ(message["stop_reason"], "end_turn");
      }
    }
  }
}

TEST(Protocols, ABudgetOfAModelWithoutReasoningIsNamed) {
  ScriptedServer s{ScriptedOptions()};
  const TestAnswer answer = ask(s.port(), "POST", "/v1/messages",
                                R"({"messages":[{"role":"user","content":"x"}],"max_tokens":3,)"
                                R"("thinking":{"type":"enabled","budget_tokens":2}})");
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_THAT(answer.head, HasSubstr("thinking.budget_tokens"));
}

// A client may have to send them, so --strict-fields does not take them for mistakes.
TEST(Protocols, PublishedFieldsWithoutEffectAreNamed) {
  const std::string messages = R"("messages":[{"role":"user","content":"a"}])";
  const std::tuple<const char*, std::string, const char*> cases[] = {
      {"/v1/responses", R"("input":"a","max_output_tokens":1,"text":{"verbosity":"low"})",
       "text.verbosity"},
      {"/v1/responses", R"("input":"a","max_output_tokens":1,"reasoning":{"summary":"auto"})",
       "reasoning.summary"},
      {"/v1/chat/completions", messages + R"(,"max_tokens":1,"verbosity":"high")", "verbosity"},
      {"/tokenize", messages + R"(,"verbosity":"high")", "verbosity"},
      {"/v1/messages", messages + R"(,"max_tokens":1,"context_management":{"edits":[]})",
       "context_management"},
      {"/v1/messages",
       messages + R"(,"max_tokens":1,"thinking":{"type":"disabled","budget_tokens":9})",
       "thinking.budget_tokens,thinking.type"},
      {"/v1/messages",
       messages +
           R"(,"max_tokens":1,"tools":[{"name":"f","input_schema":{"type":"object"}},)"
           R"({"type":"web_search_20250305","name":"web_search"}],"tool_choice":{"type":"none"})",
       "tools[1]"},
      {"/v1/messages",
       R"("max_tokens":1,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":)"
       R"([{"type":"redacted_thinking","data":"x"},{"type":"text","text":"b"}]},)"
       R"({"role":"user","content":"c"}])",
       "messages[1].content[0]"},
      {"/v1/responses",
       R"("input":[{"role":"user","content":"a"},{"type":"reasoning","summary":[],)"
       R"("encrypted_content":"another server's"},{"role":"user","content":"b"}])",
       "input[1].encrypted_content"},
      {"/v1/responses",
       R"("input":"a","max_output_tokens":1,"tools":[{"type":"custom","name":"f","format":)"
       R"({"type":"grammar","syntax":"lark","definition":"start: \"a\""}}],"tool_choice":"none")",
       "tools[0].format"}};
  for (const bool strict : {false, true}) {
    ScriptedOptions options;
    options.server.fields.strict = strict;
    ScriptedServer s(std::move(options));
    EXPECT_TRUE(comes([&] { return ask(s.port(), "GET", "/ready").status == 200; }));
    for (const auto& [path, body, name] : cases) {
      const TestAnswer answer = ask(s.port(), "POST", path, "{" + body + "}");
      EXPECT_EQ(answer.status, 200) << answer.body;
      EXPECT_THAT(answer.head + "\r\n", HasSubstr(std::string("X-Lathe-Ignored: ") + name + "\r\n"))
          << body;
      // A misspelt one beside it is a mistake.
      const TestAnswer wrong = ask(s.port(), "POST", path, "{" + body + R"(,"verbosty":1})");
      EXPECT_EQ(wrong.status, strict ? 400 : 200) << wrong.body;
    }
    EXPECT_EQ(ask(s.port(), "POST", "/v1/responses", R"({"input":"a","text":{"verbosity":5}})")
                  .json()["error"]["param"],
              "text.verbosity");
  }
}

// Templates may read any member of a message, so a name is a mistake where neither the template nor
// OpenAI has it.
TEST(Protocols, UnknownMembersAreMistakesForStrictFields) {
  ScriptedOptions options;
  options.server.fields.strict = true;
  ScriptedServer s(std::move(options));
  EXPECT_TRUE(comes([&] { return ask(s.port(), "GET", "/ready").status == 200; }));
  for (const auto& [message, path] :
       {std::pair{R"({"role":"user","content":"a","nope":1})", "messages[0].nope"},
        std::pair{R"({"role":"user","content":"a","":1})", "messages[0].\"\""},
        std::pair{R"({"role":"user","content":[{"type":"text","text":"a","nope":1}]})",
                  "messages[0].content[0].nope"},
        std::pair{R"({"role":"user","content":"a","refusal":"","annotations":[]})", ""},
        std::pair{R"({"role":"user","content":"a","name":"b"})", ""}}) {
    for (const char* route : {"/v1/chat/completions", "/tokenize"}) {
      const TestAnswer answer =
          ask(s.port(), "POST", route, fmt::format(R"({{"messages":[{}]}})", message));
      const bool right = *path == '\0';
      EXPECT_EQ(answer.status, right ? 200 : 400) << message;
      if (!right) {
        EXPECT_EQ(answer.json()["error"]["param"], path) << answer.body;
      }
    }
  }
}

TEST(Protocols, TokensAreCounted) {
  ScriptedServer s{ScriptedOptions()};
  const TestAnswer counted = ask(s.port(), "POST", "/v1/messages/count_tokens",
                                 R"({"messages":[{"role":"user","content":"12345"}],"odd":1})");
  EXPECT_EQ(counted.json(), PlainJson({{"input_tokens", 5}})) << counted.body;
  EXPECT_THAT(counted.head, HasSubstr("X-Lathe-Ignored: odd"));
}

TEST(Protocols, CountingRefusesWhatAMessageIsRefused) {
  ScriptedOptions options;
  options.template_prefix = "{# <tool_call> #}";
  ScriptedServer s(std::move(options));
  EXPECT_TRUE(comes([&] { return ask(s.port(), "GET", "/ready").status == 200; }));
  const std::string body =
      R"({"messages":[{"role":"user","content":"x"}],"max_tokens":3,"tools":[{"name":"f",)"
      R"("input_schema":{"type":"object","zzz":1}}],"tool_choice":{"type":"tool","name":"f"}})";
  const TestAnswer answer = ask(s.port(), "POST", "/v1/messages", body);
  const TestAnswer counted = ask(s.port(), "POST", "/v1/messages/count_tokens", body);
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(counted.status, 400);
  EXPECT_EQ(counted.json()["error"]["message"], answer.json()["error"]["message"]);
}

TEST(Protocols, LengthsHaveTheRoutesNames) {
  ScriptedServer s{ScriptedOptions()};
  EXPECT_TRUE(comes([&] { return ask(s.port(), "GET", "/ready").status == 200; }));
  const std::pair<const char*, const char*> cases[] = {
      {"/v1/messages",
       R"({"messages":[{"role":"user","content":"x"}],"max_tokens":3,"min_tokens":5})"},
      {"/v1/responses", R"({"input":"x","max_output_tokens":3,"min_tokens":5})"},
      {"/v1/chat/completions",
       R"({"messages":[{"role":"user","content":"x"}],"max_tokens":3,"min_tokens":5})"},
      {"/v1/messages",
       R"({"messages":[{"role":"user","content":"x"}],"max_tokens":99999,"min_tokens":88888})"},
      {"/v1/responses", R"({"input":"x","min_tokens":88888})"},
      {"/v1/completions", R"({"prompt":"x","min_tokens":88888})"},
  };
  for (const auto& [path, body] : cases) {
    const TestAnswer answer = ask(s.port(), "POST", path, body);
    EXPECT_EQ(answer.status, 400) << path;
    EXPECT_THAT(answer.body, HasSubstr("min_tokens: wanted at most")) << path;
    EXPECT_THAT(answer.body, testing::Not(HasSubstr("new_tokens"))) << path;
  }
}

TEST(Protocols, FormatsWithoutSchemasNameTheirMembers) {
  for (const bool strict : {false, true}) {
    ScriptedOptions options;
    options.server.fields.strict = strict;
    ScriptedServer s(std::move(options));
    EXPECT_TRUE(comes([&] { return ask(s.port(), "GET", "/ready").status == 200; }));
    for (const std::string type : {"text", "json_object"}) {
      const TestAnswer answer = ask(s.port(), "POST", "/v1/responses",
                                    R"({"input":"x","max_output_tokens":1,"text":{"format":)"
                                    R"({"zzz":1,"type":")" +
                                        type + "\"}}}");
      EXPECT_EQ(answer.status, strict ? 400 : 200) << answer.body;
      EXPECT_THAT(strict ? answer.body : answer.head, HasSubstr("text.format.zzz"));
    }
  }
}

}  // namespace
}  // namespace lathe
