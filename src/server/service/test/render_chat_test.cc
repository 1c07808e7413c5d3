// Chat requests as prompts: continued messages, histories of calls, the same in every route.
#include "server/service/render_chat.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "io/template/chat_prompt.h"
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

// What a request names as ignored: the body's fields, and what its prompt leaves out.
std::vector<std::string> ignored(const std::string& chat_template, const std::string& body) {
  const ChatTemplateFile chat{*ChatTemplate::parse(chat_template), "", ""};
  const auto request = parse_request(ApiRoute::chat, body, {});
  EXPECT_TRUE(request) << request.error().message;
  std::vector<std::string> names, out = request->ignored;
  EXPECT_TRUE(render_chat(*request, Json::object(), chat, &names));
  out.insert(out.end(), names.begin(), names.end());
  return out;
}

TEST(RenderChat, MembersThatNobodyReadsAreNamed) {
  const std::string body = R"({"messages": [{"role": "user", "content": "an order of apples",
      "name": "bob", "zzz": 1}, {"role": "assistant", "tool_calls": [{"id": "c", "index": 0,
      "type": "function", "function": {"name": "f", "arguments": "{}", "zzz": 1}}]},
      {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "three of them",
      "zzz": 1}]}], "tools": [{"type": "function", "cache_control": {}, "zzz": 1,
      "function": {"name": "f", "returns": "text"}}], "reasoning_effort": "low",
      "tool_choice": {"type": "function", "zzz": 1, "function": {"name": "f", "zzz": 1}}})";
  const std::string plain =
      "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
      "{% endfor %}{% endfor %}{% for t in tools %}{{ t.function.name }}{% endfor %}";
  EXPECT_THAT(
      ignored(plain, body),
      testing::UnorderedElementsAre(
          "tool_choice.zzz", "tool_choice.function.zzz", "reasoning_effort", "messages[0].name",
          "messages[0].zzz", "messages[2].content[0].zzz", "messages[1].tool_calls[0].index",
          "messages[1].tool_calls[0].function.zzz", "tools[0].zzz", "tools[0].function.returns"));
  // Whole objects as JSON show their members, and one that is read by name is no loss.
  const std::string shown =
      "{{ reasoning_effort }}{% for m in messages %}{{ m.name }}{{ m.content }}"
      "{{ (m.tool_calls or []) | tojson }}{% endfor %}{% for t in tools %}{{ t.function.returns "
      "}}{% endfor %}";
  EXPECT_THAT(ignored(shown, body),
              testing::UnorderedElementsAre("tool_choice.zzz", "tool_choice.function.zzz",
                                            "messages[0].zzz", "messages[2].content[0].zzz"));
}

// A value with more levels than a template may get is named by its path in the body.
TEST(RenderChat, ValuesThatAreTooDeepAreNamed) {
  const std::string deep = std::string(250, '[') + std::string(250, ']');
  const std::string messages = R"("messages": [{"role": "user", "content": "a"}])";
  const std::string calls =
      R"("messages": [{"role": "assistant", "tool_calls": [{"type": "function",
      "function": {"name": "f", "arguments": "{\"x\": )" +
      deep + R"(}"}}]}])";
  const std::string tools = messages +
                            R"(, "tools": [{"type": "function", "function": {"name": "f"}},
      {"type": "function", "function": {"name": "g", "parameters": {"default": )" +
                            deep + "}}}]";
  const std::string variables =
      messages + R"(, "chat_template_kwargs": {"k": {"l": )" + deep + "}}";
  const struct {
    std::string body, path;
  } cases[] = {{calls, "messages[0].tool_calls[0].function.arguments.x[0][0]"},
               {tools, "tools[1].function.parameters.default[0][0]"},
               {variables, "chat_template_kwargs.k.l[0][0]"}};
  for (const auto& [body, path] : cases) {
    for (const bool v4 : {false, true}) {
      if (v4 && path.starts_with("chat")) continue;  // V4 renders no such variable
      const ChatTemplateFile chat{v4 ? ChatTemplate::deepseek_v4(V4Encoding::preview)
                                     : *ChatTemplate::parse("{{ messages }}{{ tools }}"),
                                  "", ""};
      const auto request = parse_request(ApiRoute::chat, "{" + body + "}", {});
      ASSERT_TRUE(request) << request.error().message;
      const auto text = render_chat(*request, Json::object(), chat);
      ASSERT_FALSE(text) << path;
      EXPECT_EQ(text.error().code, "template_error");
      EXPECT_THAT(text.error().param, testing::StartsWith(path));
      EXPECT_EQ(text.error().message,
                text.error().param + ": wanted at most 200 levels of nesting, got more");
    }
  }
  // Harmony writes a schema as types.
  std::string schema = R"({"type": "string"})";
  for (int i = 0; i < 150; ++i) schema = R"({"type": "array", "items": )" + schema + "}";
  const std::string types =
      R"(, "tools": [{"type": "function", "function": {"name": "f", "parameters": )";
  const auto request = parse_request(ApiRoute::chat, "{" + messages + types + schema + "}}]}", {});
  const auto text = render_chat(*request, Json::object(), {ChatTemplate::harmony(), "", ""});
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().param, "tools[0].function.parameters");
  EXPECT_THAT(text.error().message, testing::HasSubstr("a schema of at most 100 levels"));
}

// A template that writes tools as JSON shows a misspelt member, but the server does not follow it.
TEST(RenderChat, MisspeltMembersOfToolsAreNamed) {
  const std::string body = R"({"messages": [{"role": "user", "content": "a"}], "tools": [
      {"type": "function", "strickt": true, "function": {"name": "f", "paramters": {},
       "examples": ["b"]}}]})";
  EXPECT_THAT(ignored("{{ messages[0].content }}{{ tools | tojson }}", body),
              testing::UnorderedElementsAre("tools[0].strickt", "tools[0].function.paramters"));
}

// An answer's empty lists come back from clients; others are a client's own.
TEST(RenderChat, EmptyMembersOfAnswersAreNotNamed) {
  const std::string body = R"({"messages": [{"role": "user", "content": "an order of apples"},
      {"role": "assistant", "content": "three", "tool_calls": [], "annotations": [], "audio": null,
      "zzz": {}, "list": []}, {"role": "user", "content": "why?", "annotations": ["a"]}]})";
  EXPECT_THAT(ignored("{% for m in messages %}{{ m.content }}{% endfor %}", body),
              testing::UnorderedElementsAre("messages[1].zzz", "messages[1].list",
                                            "messages[2].annotations"));
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
// OpenAI's server refuses a result whose id is not of a call in the assistant's message before it.
TEST(RenderChat, ResultsAnswerCalls) {
  const std::string shown = "{% for m in messages %}{{ m.content }};{% endfor %}";
  const std::string user = R"({"role": "user", "content": "a"})";
  const std::string calls =
      R"({"role": "assistant", "content": "b", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f"}},)"
      R"( {"id": "d", "type": "function", "function": {"name": "f"}}]})";
  const auto result = [](const std::string& id) {
    return R"({"role": "tool", "content": "r")" + (id.empty() ? "" : ", \"tool_call_id\": " + id) +
           "}";
  };
  const auto text = [&](const std::vector<std::string>& messages) {
    return rendered(shown, fmt::format(R"({{"messages": [{}]}})", fmt::join(messages, ", ")));
  };
  EXPECT_EQ(text({user, calls, result("\"d\""), result("\"c\""), user}), "a;b;r;r;a;");
  EXPECT_EQ(text({user, calls, result(""), result("null")}), "a;b;r;r;");
  EXPECT_EQ(text({user, result("")}), "a;r;");
  const std::string plain =
      R"({"role": "assistant", "content": "b", "tool_calls": [{"function": {"name": "f"}}]})";
  EXPECT_EQ(text({user, plain, result("\"x\"")}), "a;b;r;");
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{user, calls, result("\"x\"")}, "messages[2].tool_call_id"},
      {{user, result("\"c\"")}, "messages[1].tool_call_id"},
      {{user, calls, user, result("\"c\"")}, "messages[3].tool_call_id"},
      {{user, calls, result("\"c\""), plain, user, calls, plain, user, result("\"c\"")},
       "messages[8].tool_call_id"},
      {{user, R"({"role": "assistant", "content": "b"})", result("\"c\"")},
       "messages[2].tool_call_id"},
      {{user, calls, result("7")}, "messages[2].tool_call_id"},
      {{user,
        R"({"role": "assistant", "content": "b", "tool_calls": [{"id": 7, "function": {"name": "f"}}]})"},
       "messages[1].tool_calls[0].id"},
  };
  for (const auto& [messages, path] : cases) {
    EXPECT_THAT(text(messages), testing::StartsWith(std::string(path) + ": wanted"));
  }
}

// transformers: "kwargs overwrite special tokens if both are present".
TEST(RenderChat, AClientsSpecialTokensTakeTheTokenizersPlace) {
  const ChatTemplateFile chat{*ChatTemplate::parse("{{ bos_token }}|{{ eos_token }}"), "<s>",
                              "</s>"};
  const std::string messages = R"("messages": [{"role": "user", "content": "a"}])";
  const auto text = [&](const std::string& kwargs, const Json& defaults) {
    const auto request = parse_request(
        ApiRoute::chat, "{" + messages + R"(, "chat_template_kwargs": )" + kwargs + "}", {});
    EXPECT_TRUE(request);
    return *render_chat(*request, defaults, chat);
  };
  EXPECT_EQ(text("{}", Json::object()), "<s>|</s>");
  EXPECT_EQ(text(R"({"bos_token": "X", "eos_token": "Y"})", Json::object()), "X|Y");
  EXPECT_EQ(text(R"({"bos_token": ""})", {{"eos_token", "Z"}}), "|Z");
  EXPECT_EQ(text(R"({"eos_token": null})", {{"eos_token", "Z"}}), "<s>|None");
  const Json conversation = Json::parse("{" + messages + "}")["messages"];
  EXPECT_EQ(*render_chat(conversation, chat, Json({{"bos_token", "X"}})), "X|</s>");
}

std::vector<std::string> left_out(const ChatTemplate& chat_template, const std::string& body,
                                  const Json& defaults = Json::object()) {
  const ChatTemplateFile chat{chat_template, "", ""};
  const auto request = parse_request(ApiRoute::chat, body, {});
  EXPECT_TRUE(request) << body;
  std::vector<std::string> out;
  if (request) {
    const auto text = render_chat(*request, defaults, chat, &out);
    EXPECT_TRUE(text) << body << (text ? "" : text.error().message);
  }
  return out;
}

// Nothing that a client says is dropped without a word.
TEST(RenderChat, WhatAPromptLeavesOutIsNamed) {
  using testing::ElementsAre;
  const ChatTemplate users = *ChatTemplate::parse(
      "{% for m in messages %}{% if m.role == 'user' %}U:{{ m.content }}{% elif m.role == "
      "'assistant' %}A:{{ m['content'] }}{% endif %}{% endfor %}");
  const ChatTemplate all = *ChatTemplate::parse(
      "{{ enable_thinking }}{% for m in messages %}{{ m.role }}:{{ m.content | tojson }}"
      "{{ m.tool_calls }}{{ m.name }}{{ m['reasoning_content'] }}{% endfor %}");
  const std::string system = R"({"role": "system", "content": "Be short."})";
  const std::string user = R"({"role": "user", "content": "say \"a\"\n, then b, and so on"})";
  const auto body = [](const std::string& messages, const std::string& more = "") {
    return R"({"messages": [)" + messages + "]" + more + "}";
  };
  EXPECT_THAT(left_out(users, body(system + ", " + user)), ElementsAre("messages[0].content"));
  EXPECT_THAT(
      left_out(users,
               body(R"({"role": "developer", "content": "A long instruction, of a developer."}, )" +
                    user)),
      ElementsAre("messages[0].content"));
  EXPECT_THAT(left_out(all, body(system + ", " + user)), ElementsAre());
  EXPECT_THAT(left_out(users, body(user)), ElementsAre());
  // A message is looked for after the one before it.
  EXPECT_THAT(left_out(users, body(user + ", " + system + ", " + user)),
              ElementsAre("messages[1].content"));
  EXPECT_THAT(
      left_out(
          users,
          body(
              user +
              R"(, {"role": "assistant", "content": "x", "tool_calls": [{"id": "c", "function": {"name": "f"}}]},)"
              R"( {"role": "tool", "tool_call_id": "c", "content": "It is 15 degrees."})")),
      ElementsAre("messages[1].tool_calls", "messages[2].content"));
  EXPECT_THAT(
      left_out(
          all,
          body(R"({"role": "user", "content": "a", "name": "n", "tool_calls": [{"id": "c"}]})")),
      ElementsAre("messages[0].tool_calls"));
  EXPECT_THAT(
      left_out(
          users,
          body(
              user +
              R"(, {"role": "assistant", "content": "x", "reasoning": "y", "refusal": null, "prefix": true, "audio": {"id": "a"}})")),
      ElementsAre("messages[1].reasoning", "messages[1].prefix", "messages[1].audio"));
  EXPECT_THAT(
      left_out(all, body(user + R"(, {"role": "assistant", "content": "x", "reasoning": "y"})")),
      ElementsAre());
  EXPECT_THAT(
      left_out(
          all,
          body(
              R"({"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}, "id": 3}]})")),
      ElementsAre("messages[0].content[0].id"));
  EXPECT_THAT(
      left_out(
          all,
          body(
              user,
              R"(, "reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": true, "odd": 1})")),
      ElementsAre("reasoning_effort", "chat_template_kwargs.odd"));
  EXPECT_EQ(rendered("{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.x.y }}{% endfor "
                     "%}{{ m.content }}{% endfor %}",
                     body(R"({"role": "user", "content": "a", "tool_calls": [3]})")),
            "a");
  // The server's own variables are its user's concern.
  EXPECT_THAT(left_out(all, body(user), {{"odd", 1}}), ElementsAre());
  // Encodings without a template.
  for (const ChatTemplate& own :
       {ChatTemplate::deepseek_v4(V4Encoding::preview), ChatTemplate::harmony()}) {
    EXPECT_THAT(
        left_out(
            own,
            body(
                system + ", " + user +
                    R"(, {"role": "assistant", "content": "x", "prefix": true}, {"role": "user", "content": "c"})",
                R"(, "reasoning_effort": "high", "chat_template_kwargs": {"odd": 1})")),
        ElementsAre("chat_template_kwargs.odd", "messages[2].prefix"));
  }
}

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
  for (const char* digits : {"18446744073709551616", "-18446744073709551616", "9223372036854775808",
                             "0.1234567890123456789", "1e5", "1E+2", "1.10", "-0.0", "-0",
                             "12345678901234567890123.5", "7"}) {
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

TEST(RenderChat, TokenizeShortensAsChatDoes) {
  ScriptedServer s{ScriptedOptions()};
  EXPECT_TRUE(comes([&] { return ask(s.port(), "GET", "/ready").status == 200; }));
  const std::string body =
      R"({"messages":[{"role":"user","content":"abcdef"}],"truncate_prompt_tokens":)";
  const auto answer = ask(s.port(), "POST", "/tokenize", body + "2}").json();
  EXPECT_EQ(answer["count"], 2) << answer;
  EXPECT_EQ(answer["tokens"], nlohmann::json({'e', 'f'})) << answer;
  EXPECT_EQ(ask(s.port(), "POST", "/v1/chat/completions", body + R"(2,"max_tokens":1})")
                .json()["usage"]["prompt_tokens"],
            2);
  EXPECT_EQ(ask(s.port(), "POST", "/tokenize", body + "-1}").json()["count"], 6);
  for (const char* path : {"/tokenize", "/v1/chat/completions"}) {
    const TestAnswer wrong = ask(s.port(), "POST", path, body + "100000}");
    EXPECT_EQ(wrong.status, 400) << path;
    EXPECT_EQ(wrong.json()["error"]["param"], "truncate_prompt_tokens") << path;
  }
  // A prompt of any length is counted.
  const std::string text(20'000, 'a');
  EXPECT_EQ(ask(s.port(), "POST", "/tokenize",
                R"({"messages":[{"role":"user","content":")" + text + "\"}]}")
                .json()["count"],
            20'000);
}

TEST(RenderChat, SmallRoutesNameUnknownFields) {
  const struct {
    const char* path;
    const char* body;
    const char* ignored;
  } cases[] = {
      {"/tokenize", R"({"prompt":"a","model":"default","zzz":1})", "zzz"},
      {"/tokenize",
       R"({"messages":[{"role":"user","content":"a"}],"zzz":1,"return_token_strs":true})", "zzz"},
      {"/detokenize", R"({"tokens":[97],"skip_special_token":true})", "skip_special_token"},
      {"/abort_request", R"({"rid":"x","zzz":1})", "zzz"},
      {"/abort_request", R"({"rid":"x","":1})", "\"\""},
      {"/tokenize", R"({"messages":[{"role":"user","content":"a"}],"":1})", "\"\""},
      {"/v1/completions", R"({"prompt":"a","max_tokens":1,"":1})", "\"\""},
      {"/generate", R"({"text":"a","sampling_params":{"max_new_tokens":1,"":1}})",
       "sampling_params.\"\""},
  };
  for (const bool strict : {false, true}) {
    ScriptedOptions options;
    options.server.fields.strict = strict;
    ScriptedServer s(std::move(options));
    EXPECT_TRUE(comes([&] { return ask(s.port(), "GET", "/ready").status == 200; }));
    for (const auto& c : cases) {
      const TestAnswer answer = ask(s.port(), "POST", c.path, c.body);
      EXPECT_EQ(answer.status, strict ? 400 : 200) << c.path << answer.body;
      if (strict) {
        EXPECT_EQ(answer.json()["error"]["param"], c.ignored) << c.path;
      } else {
        EXPECT_THAT(answer.head + "\r\n",
                    testing::HasSubstr(fmt::format("X-Lathe-Ignored: {}\r\n", c.ignored)))
            << c.body;
      }
    }
    // A header has no control characters, and a comma stands between names.
    const TestAnswer odd = ask(s.port(), "POST", "/tokenize", R"({"prompt":"a","\n":1,"b,c":1})");
    if (strict) {
      EXPECT_EQ(odd.json()["error"]["param"], "\n");
    } else {
      EXPECT_THAT(odd.head + "\r\n", testing::HasSubstr("X-Lathe-Ignored: ?,b?c\r\n"));
    }
    const TestAnswer part =
        ask(s.port(), "POST", "/tokenize",
            R"({"messages":[{"role":"user","content":[{"type":"text","text":"a","zzz":1}]}]})");
    EXPECT_THAT(strict ? part.body : part.head, testing::HasSubstr("messages[0].content[0].zzz"));
    // What the prompt leaves out is named with and without the flag.
    const TestAnswer name = ask(s.port(), "POST", "/tokenize",
                                R"({"messages":[{"role":"user","content":"a","name":"b"}]})");
    EXPECT_THAT(name.head, testing::HasSubstr("X-Lathe-Ignored: messages[0].name"));
    const TestAnswer shortened =
        ask(s.port(), "POST", "/tokenize", R"({"prompt":["ab","c"],"truncate_prompt_tokens":1})");
    EXPECT_EQ(shortened.status, strict ? 400 : 200);
    EXPECT_THAT(strict ? shortened.body : shortened.head,
                testing::HasSubstr(strict ? "truncate_prompt_tokens: wanted messages with it"
                                          : "X-Lathe-Ignored: truncate_prompt_tokens"));
    const TestAnswer both = ask(s.port(), "POST", "/tokenize",
                                R"({"prompt":"a","messages":[{"role":"user","content":"a"}]})");
    EXPECT_EQ(both.status, 400);
    EXPECT_THAT(both.body, testing::HasSubstr("prompt: wanted prompt or messages, got both"));
    EXPECT_EQ(ask(s.port(), "POST", "/detokenize", R"({"tokens":[97],"model":"other"})").status,
              404);
  }
}

TEST(RenderChat, MembersWithNamesOfOthersAreNamed) {
  const std::string content = "{% for m in messages %}{{ m.content }}";
  const std::string calls =
      "{% for c in m.tool_calls or [] %}{{ c.function.name ~ c.function.arguments }}{% endfor %}";
  const std::string body = R"({"messages": [{"role": "user", "content": "an order of apples",
      "name": "bob", "arguments": {"a": 1}, "function": {"name": "f"}}]})";
  EXPECT_THAT(ignored(content + calls + "{% endfor %}", body),
              testing::UnorderedElementsAre("messages[0].name", "messages[0].arguments",
                                            "messages[0].function"));
  EXPECT_THAT(ignored(content + calls + "{{ m.function.name }}{% endfor %}", body),
              testing::UnorderedElementsAre("messages[0].name", "messages[0].arguments"));
  // A template may look at a member that it does not show.
  EXPECT_THAT(ignored(content + calls + "{% if m.arguments %}!{% endif %}{% endfor %}", body),
              testing::UnorderedElementsAre("messages[0].name", "messages[0].function"));
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
