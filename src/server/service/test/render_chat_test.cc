// Chat requests as prompts: continued messages, histories of calls, the same in every route.
#include "server/service/render_chat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/scripted/scripted_server.h"
#include "server/scripted/test/http_client_test_util.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

std::string rendered(const std::string& chat_template, const std::string& body) {
  const ChatTemplateFile chat{*ChatTemplate::parse(chat_template), "", ""};
  const auto request = parse_request(ApiRoute::chat, body, {});
  if (!request) return request.error().message;
  const auto text = render_chat(*request, Json::object(), chat);
  return text ? *text : text.error().message;
}

std::string continued(const std::string& chat_template, const std::string& content) {
  const Json body{
      {"messages",
       {{{"role", "user"}, {"content", content}}, {{"role", "assistant"}, {"content", content}}}},
      {"continue_final_message", true}};
  return rendered(chat_template, body.dump());
}

// As transformers' apply_chat_template(continue_final_message=True): the text stays as it is, or as
// the template trims it.
TEST(RenderChat, B1ContinuesWhereTheMessageEnds) {
  const std::string plain =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
  const std::string trimming =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n"
      "{% endfor %}";
  for (const std::string text : {"def f():\n    ", "<", "|im_end|>", "user", "\n", "a  "}) {
    const std::string before = "<|im_start|>user\n" + text + "<|im_end|>\n<|im_start|>assistant\n";
    EXPECT_EQ(continued(plain, text), before + text);
  }
  EXPECT_EQ(continued(trimming, "a \n "),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\na");
  EXPECT_THAT(continued("{{ messages[0].content }}", "a"), testing::HasSubstr("a template that"));
}

// What an answer may be comes back as history.
TEST(RenderChat, B12ReadsBackWhatAModelWrites) {
  const auto history = [](const std::string& arguments) {
    return rendered("{{ messages[1].tool_calls[0].function.arguments | tojson }}",
                    R"({"messages":[{"role":"user","content":"a"},{"role":"assistant",)"
                    R"("tool_calls":[{"function":{"name":"f","arguments":)" +
                        arguments + "}}]}]}");
  };
  for (const char* none : {R"("")", R"(" ")", "null", R"("{}")", "{}"}) {
    EXPECT_EQ(history(none), "{}") << none;
  }
  EXPECT_EQ(history(R"("{\"a\":1,\"b\":2,\"a\":3}")"), R"({"a": 3, "b": 2})");
  EXPECT_THAT(history(R"("[1]")"), testing::HasSubstr("function.arguments"));
}

// /tokenize counts the prompt that a chat would have.
// vLLM's PR 55743: digits that a double does not hold.
TEST(RenderChat, A8NumbersKeepTheirDigits) {
  const auto shown = [](const std::string& expression, const std::string& arguments) {
    const Json body{
        {"messages",
         {{{"role", "user"}, {"content", "a"}},
          {{"role", "assistant"},
           {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", arguments}}}}}}}}}};
    return rendered("{% set a = messages[1].tool_calls[0].function.arguments %}" + expression,
                    body.dump());
  };
  for (const char* digits :
       {"18446744073709551616", "-18446744073709551616", "9223372036854775808",
        "0.1234567890123456789", "1e5", "1E+2", "1.10", "-0.0", "12345678901234567890123.5", "7"}) {
    const std::string arguments =
        std::string(R"({"x":)") + digits + R"(,"y":["s",)" + digits + "]}";
    EXPECT_EQ(shown("{{ a | tojson }}", arguments),
              std::string(R"({"x": )") + digits + R"(, "y": ["s", )" + digits + "]}");
    EXPECT_EQ(shown("{{ a.x }}", arguments), digits);
    EXPECT_EQ(shown("{{ a.x | string ~ '|' ~ a.x }}", arguments),
              std::string(digits) + "|" + digits);
  }
  // They are numbers all the same.
  EXPECT_EQ(
      shown("{{ a.x is number }} {{ a.x > 2 }} {{ a.x == 2.50 }} {{ a.x + 1 }}", R"({"x": 2.50})"),
      "True True True 3.5");
}

TEST(RenderChat, B13EveryRouteRendersAlike) {
  ScriptedOptions options;
  options.template_prefix =
      "{# <tool_call> #}{{ tools | tojson if tools else '' }}{{ extra if extra else '' }}";
  ScriptedServer s(std::move(options));
  EXPECT_TRUE(comes([&] { return ask(s.port(), "GET", "/ready").status == 200; }));
  const std::string tools =
      R"("tools":[{"type":"function","function":{"name":"f","parameters":{}}}])";
  const std::string messages =
      R"("messages":[{"role":"user","content":"a"},{"role":"assistant","content":"bc "}])";
  for (const std::string& body :
       {"{" + messages + "}", "{" + messages + "," + tools + "}",
        "{" + messages + "," + tools + R"(,"tool_choice":"none"})",
        "{" + messages + R"(,"chat_template_kwargs":{"extra":"more"}})",
        "{" + messages + R"(,"continue_final_message":true,"add_generation_prompt":false})"}) {
    const auto counted = ask(s.port(), "POST", "/tokenize", body).json();
    Json chat = Json::parse(body);
    chat["max_tokens"] = 1;
    const auto answer = ask(s.port(), "POST", "/v1/chat/completions", chat.dump()).json();
    EXPECT_EQ(counted["count"], answer["usage"]["prompt_tokens"]) << body;
  }
}

TEST(RenderChat, B14ALongPromptIsNamed) {
  ScriptedServer s{ScriptedOptions()};
  EXPECT_TRUE(comes([&] { return ask(s.port(), "GET", "/ready").status == 200; }));
  const std::string text(20'000, 'a');
  const auto param = [&](const std::string& path, const std::string& body) {
    const auto error = ask(s.port(), "POST", path, body).json()["error"];
    EXPECT_EQ(error["code"], "context_length_exceeded");
    return error["param"].get<std::string>();
  };
  EXPECT_EQ(param("/v1/completions", R"({"prompt":")" + text + "\"}"), "prompt");
  EXPECT_EQ(param("/v1/completions", R"({"prompt":["a",")" + text + "\"]}"), "prompt[1]");
  EXPECT_EQ(param("/generate", R"({"text":")" + text + "\"}"), "text");
  EXPECT_EQ(
      param("/v1/chat/completions", R"({"messages":[{"role":"user","content":")" + text + "\"}]}"),
      "messages");
  EXPECT_EQ(param("/v1/completions", R"({"prompt":"a","max_tokens":100000})"), "max_tokens");
}

TEST(RenderChat, B11SeedMinusOneIsNoSeed) {
  for (const auto& [route, body] :
       {std::pair{ApiRoute::completions, R"({"prompt":"a","seed":-1})"},
        std::pair{ApiRoute::chat, R"({"messages":[{"role":"user","content":"a"}],"seed":-1})"},
        std::pair{ApiRoute::generate, R"({"text":"a","sampling_params":{"sampling_seed":-1}})"}}) {
    EXPECT_FALSE(parse_request(route, body, {})->sampling.seed) << body;
  }
  EXPECT_TRUE(
      parse_request(ApiRoute::completions, R"({"prompt":"a","seed":-2})", {})->sampling.seed);
}

}  // namespace
}  // namespace lathe
