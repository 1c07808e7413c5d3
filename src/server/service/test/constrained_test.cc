// Constrained answers, through the whole server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

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

constexpr std::int32_t kThink = kScriptEos + 1;
constexpr std::int32_t kEndThink = kScriptEos + 2;

TEST(Constrained, JsonIsValidAndEndsThoughNewlinesAreLikedBest) {
  ScriptedServer s(lover_of_newlines());
  int whole = 0;
  for (int seed = 0; seed < 12; ++seed) {
    const TestAnswer schema = ask(s.port(), "POST", "/v1/chat/completions",
                                  chat({{"response_format", format_of(kSchema)},
                                        {"seed", seed},
                                        {"ignore_eos", true},
                                        {"min_tokens", 11000}}));
    ASSERT_EQ(schema.status, 200) << schema.body;
    const PlainJson choice = schema.json()["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "stop");
    EXPECT_EQ(choice["matched_stop"], nullptr);
    expect_valid(PlainJson::parse(choice["message"]["content"].get<std::string>()));

    const TestAnswer object =
        ask(s.port(), "POST", "/v1/chat/completions",
            chat({{"response_format", {{"type", "json_object"}}}, {"seed", seed}}));
    ASSERT_EQ(object.status, 200) << object.body;
    const PlainJson any = object.json()["choices"][0];
    const bool stopped = any["finish_reason"] == "stop";
    whole += stopped ? 1 : 0;
    const std::string text = any["message"]["content"];
    if (stopped) {
      EXPECT_TRUE(PlainJson::parse(text).is_object());
    }
    EXPECT_EQ(text.find(std::string(33, '\n')), std::string::npos);
  }
  EXPECT_GT(whole, 6);
  EXPECT_EQ(metric(s.port(), R"(lathe_grammar_compiles_total{result="ok"})"), 2);
  EXPECT_EQ(metric(s.port(), R"(lathe_grammar_compiles_total{result="cached"})"), 22);
}

TEST(Constrained, EachRouteAndField) {
  ScriptedServer s(lover_of_newlines());
  const auto text_of = [&](const char* route, PlainJson body) -> std::string {
    const bool generate = std::string(route) == "/generate";
    body[generate ? "text" : "prompt"] = "q";
    if (!generate) body["max_tokens"] = 4000;
    if (generate) body["sampling_params"]["max_new_tokens"] = 4000;
    const TestAnswer answer = ask(s.port(), "POST", route, body.dump());
    EXPECT_EQ(answer.status, 200) << answer.body;
    if (generate) {
      EXPECT_EQ(answer.json()["meta_info"]["finish_reason"]["type"], "stop");
      return answer.json()["text"];
    }
    return answer.json()["choices"][0]["text"];
  };
  for (const PlainJson& constraint :
       {PlainJson{{"json_schema", kSchema}}, PlainJson{{"json_schema", kSchema.dump()}},
        PlainJson{{"structured_outputs", {{"json", kSchema}}}}}) {
    expect_valid(PlainJson::parse(text_of("/v1/completions", constraint)));
    expect_valid(PlainJson::parse(text_of("/generate", {{"sampling_params", constraint}})));
  }
  expect_valid(
      PlainJson::parse(text_of("/v1/completions", {{"response_format", format_of(kSchema)}})));
  for (const PlainJson& constraint :
       {PlainJson{{"regex", "[ab]{3}\n?-\\d+\\."}},
        PlainJson{{"structured_outputs", {{"regex", "[ab]{3}\n?-\\d+\\."}}}}}) {
    const std::regex wanted("[ab]{3}\n?-[0-9]+\\.");
    EXPECT_TRUE(std::regex_match(text_of("/v1/completions", constraint), wanted));
    EXPECT_TRUE(std::regex_match(text_of("/generate", {{"sampling_params", constraint}}), wanted));
  }
  const std::string chosen =
      text_of("/v1/completions", {{"structured_outputs", {{"choice", {"yes", "no"}}}}});
  EXPECT_TRUE(chosen == "yes" || chosen == "no") << chosen;
}

// A number that is a multiple of both is allowed, which oneOf is not.
TEST(Constrained, OneOfThatIsFollowedAsAnyOfIsNamedOnAllRoutes) {
  ScriptedServer s(lover_of_newlines());
  const PlainJson loose = PlainJson::parse(R"({"type": "object", "properties": {"a": {"oneOf": [
      {"type": "integer", "multipleOf": 3}, {"type": "integer", "multipleOf": 5}]}},
      "required": ["a"], "additionalProperties": false})");
  const auto format = format_of(loose);
  const PlainJson messages = {{{"role", "user"}, {"content", "q"}}};
  const PlainJson function{{"name", "f"}, {"parameters", loose}, {"strict", true}};
  const PlainJson flat{
      {"type", "function"}, {"name", "f"}, {"parameters", loose}, {"strict", true}};
  const struct {
    const char* route;
    PlainJson body;
    const char* path;
  } cases[] = {
      {"/v1/chat/completions",
       {{"messages", messages}, {"response_format", format}},
       "response_format.json_schema.schema"},
      {"/v1/chat/completions",
       {{"messages", messages}, {"response_format", format}, {"stream", true}},
       "response_format.json_schema.schema"},
      {"/v1/chat/completions",
       {{"messages", messages},
        {"tools", {{{"type", "function"}, {"function", function}}}},
        {"tool_choice", "required"}},
       "tools[0].function.parameters"},
      {"/v1/completions", {{"prompt", "q"}, {"json_schema", loose}}, "json_schema"},
      {"/v1/completions", {{"prompt", "q"}, {"json_schema", loose.dump()}}, "json_schema"},
      {"/generate",
       {{"text", {"q", "r"}},
        {"sampling_params", {{{"regex", "a"}}, {{"json_schema", loose.dump()}}}}},
       "sampling_params[1].json_schema"},
      {"/v1/responses",
       {{"input", "q"},
        {"store", false},
        {"text", {{"format", {{"type", "json_schema"}, {"name", "s"}, {"schema", loose}}}}}},
       "text.format.schema"},
      {"/v1/responses",
       {{"input", "q"}, {"store", false}, {"tools", {flat}}, {"tool_choice", "required"}},
       "tools[0].parameters"},
      {"/v1/messages",
       {{"messages", messages},
        {"max_tokens", 50},
        {"output_config", {{"format", {{"type", "json_schema"}, {"schema", loose}}}}}},
       "output_config.format.schema"},
      {"/v1/messages",
       {{"messages", messages},
        {"max_tokens", 50},
        {"tools", {{{"name", "f"}, {"input_schema", loose}}}},
        {"tool_choice", {{"type", "any"}}}},
       "tools[0].input_schema"},
  };
  for (const auto& c : cases) {
    const TestAnswer answer = ask(s.port(), "POST", c.route, c.body.dump());
    EXPECT_EQ(answer.status, 200) << c.body << answer.body;
    EXPECT_THAT(answer.head,
                HasSubstr(std::string("X-Lathe-Ignored: ") + c.path + ".properties.a.oneOf\r\n"))
        << c.body;
  }
}

// The work of a request's constraints counts, not that of its prompts.
TEST(Constrained, AllOfARequestHaveALimit) {
  ScriptedServer s(lover_of_newlines());
  const auto status = [&](int prompts, int constraints) {
    PlainJson texts = PlainJson::array(), params = PlainJson::array();
    for (int i = 0; i < prompts; ++i) {
      texts.push_back("q");
      params.push_back({{"regex", fmt::format("(a{{0,10000}}b){{0,{}}}", 20 + i % constraints)},
                        {"max_new_tokens", 1}});
    }
    const TestAnswer answer = ask(s.port(), "POST", "/generate",
                                  PlainJson{{"text", texts}, {"sampling_params", params}}.dump());
    EXPECT_EQ(answer.status == 400, answer.body.find("200000000 steps") != std::string::npos)
        << answer.body;
    return answer.status;
  };
  EXPECT_EQ(status(50, 2), 200);
  // Twice, as the cache has some by then.
  EXPECT_EQ(status(50, 50), 400);
  EXPECT_EQ(status(50, 50), 400);
}

TEST(Constrained, EachPromptAndChoiceHasItsOwn) {
  ScriptedServer s(lover_of_newlines());
  const TestAnswer lists = ask(
      s.port(), "POST", "/generate",
      R"({"text":["q","r"],"sampling_params":[{"regex":"a{2}","n":3},{"regex":"b{3}","n":3}]})");
  ASSERT_EQ(lists.status, 200) << lists.body;
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(lists.json()[i]["text"], i < 3 ? "aa" : "bbb");
  }
  // 20 at once that share one grammar.
  const PlainJson body{{"prompt", "q"}, {"n", 20}, {"max_tokens", 3000}, {"json_schema", kSchema}};
  const TestAnswer many = ask(s.port(), "POST", "/v1/completions", body.dump());
  ASSERT_EQ(many.status, 200) << many.body;
  const PlainJson choices = many.json()["choices"];
  for (const PlainJson& choice : choices) {
    expect_valid(PlainJson::parse(choice["text"].get<std::string>()));
  }
}

TEST(Constrained, NothingIsDroppedSilently) {
  ScriptedServer s(lover_of_newlines("{# [TOOL_CALLS] #}"));
  const PlainJson tools =
      PlainJson::parse(R"([{"type":"function","function":{"name":"f","strict":true}}])");
  struct Case {
    const char* route;
    PlainJson body;
    const char* code;
    const char* param;
  };
  const std::vector<Case> cases = {
      {"/v1/completions",
       {{"json_schema", {{"not", {{"multipleOf", 3}}}}}},
       "unsupported_schema",
       "json_schema.not.multipleOf"},
      {"/v1/completions", {{"json_schema", "{"}}, "invalid_value", "json_schema"},
      {"/v1/completions", {{"json_schema", {{"type", 3}}}}, "invalid_value", "json_schema.type"},
      {"/v1/completions", {{"regex", "(?=a)"}}, "unsupported_schema", "regex"},
      {"/v1/completions", {{"regex", "("}}, "invalid_value", "regex"},
      {"/v1/completions", {{"regex", "a"}, {"json_schema", true}}, "invalid_value", "regex"},
      {"/v1/completions",
       {{"structured_outputs", {{"grammar", "x"}}}},
       "invalid_value",
       "structured_outputs.grammar"},
      {"/v1/completions",
       {{"structured_outputs", PlainJson::object()}},
       "invalid_value",
       "structured_outputs"},
      {"/v1/completions",
       {{"response_format", {{"type", "xml"}}}},
       "unsupported_field",
       "response_format.type"},
      {"/v1/completions",
       {{"response_format", {{"type", "json_object"}, {"schema", true}}}},
       "unsupported_field",
       "response_format.schema"},
      {"/v1/completions", {{"ebnf", "x"}}, "invalid_value", "ebnf"},
      {"/generate",
       {{"sampling_params", {{"json_schema", {{"not", {{"unevaluatedItems", false}}}}}}}},
       "unsupported_schema",
       "sampling_params.json_schema.not.unevaluatedItems"},
      {"/generate",
       {{"sampling_params", {{"grammar", "x"}}}},
       "invalid_value",
       "sampling_params.grammar"},
      {"/v1/chat/completions",
       {{"response_format",
         {{"type", "json_schema"}, {"json_schema", {{"name", 3}, {"schema", true}}}}}},
       "invalid_value",
       "response_format.json_schema.name"},
      {"/v1/chat/completions",
       {{"response_format", format_of({{"uniqueItems", true}})}},
       "unsupported_schema",
       "response_format.json_schema.schema.uniqueItems"},
      {"/v1/chat/completions", {{"tool_choice", "required"}}, "invalid_value", "tool_choice"},
      {"/v1/chat/completions",
       {{"tools", tools}, {"tool_choice", {{"type", "function"}, {"function", {{"name", "g"}}}}}},
       "invalid_value",
       "tool_choice.function.name"},
  };
  for (const Case& c : cases) {
    PlainJson body = c.body;
    const std::string route = c.route;
    if (route == "/generate") body["text"] = "q";
    if (route == "/v1/completions") body["prompt"] = "q";
    const TestAnswer answer =
        ask(s.port(), "POST", route, route == "/v1/chat/completions" ? chat(body) : body.dump());
    EXPECT_EQ(answer.status, 400) << body.dump();
    EXPECT_EQ(answer.json()["error"]["code"], c.code) << answer.body;
    EXPECT_EQ(answer.json()["error"]["param"], c.param) << answer.body;
  }
  EXPECT_GT(metric(s.port(), R"(lathe_grammar_compiles_total{result="refused"})"), 4);

  ScriptedOptions none = lover_of_newlines();
  none.server.grammar_backend = "none";
  ScriptedServer without(none);
  const TestAnswer refused =
      ask(without.port(), "POST", "/v1/completions", R"({"prompt":"q","regex":"a"})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("--grammar-backend none"));
}

// Tokens that an answer may not use are known before it begins, whatever leaves them out.
TEST(Constrained, B2TokensThatCannotWriteTheConstraintAreNamed) {
  ScriptedServer s(lover_of_newlines());
  const PlainJson cat{{"structured_outputs", {{"choice", {"cat", "cab"}}}}};
  const auto ask_with = [&](PlainJson body) {
    body["prompt"] = "q";
    body["max_tokens"] = 50;
    return ask(s.port(), "POST", "/v1/completions", body.dump());
  };
  struct Case {
    const char* field;
    PlainJson value;
    const char* text;  // null: refused
  };
  const std::vector<Case> cases = {
      {"allowed_token_ids", {'c', 'a', 't'}, "cat"},
      {"allowed_token_ids", {'c', 'a', 'b', 'x'}, "cab"},
      {"allowed_token_ids", {'c', 'a'}, nullptr},
      {"allowed_token_ids", {'x'}, nullptr},
      {"bad_words", {"t"}, "cab"},
      {"bad_words", {"c"}, nullptr},
      {"bad_words", {"t", "b"}, nullptr},
      {"stop_token_ids", {'t'}, "cab"},
      {"stop_token_ids", {'a'}, nullptr},
  };
  for (const Case& c : cases) {
    PlainJson body = cat;
    body[c.field] = c.value;
    const TestAnswer answer = ask_with(body);
    SCOPED_TRACE(answer.body);
    if (c.text == nullptr) {
      EXPECT_EQ(answer.status, 400);
      EXPECT_EQ(answer.json()["error"]["param"], c.field);
    } else {
      EXPECT_EQ(answer.status, 200);
      EXPECT_EQ(answer.json()["choices"][0]["text"], c.text);
    }
  }
  // Without a constraint: nothing may begin the answer.
  const TestAnswer ends = ask_with({{"allowed_token_ids", {kScriptEos}}});
  EXPECT_EQ(ends.status, 400);
  EXPECT_THAT(ends.body, HasSubstr("allowed_token_ids: wanted a token that the answer may begin"));
  // A sequence gives way where the constraint leaves nothing else.
  PlainJson both = cat;
  both["bad_words"] = {"at", "ab"};
  const TestAnswer given = ask_with(both);
  EXPECT_EQ(given.status, 200) << given.body;
}

// The model likes its end token best. Of the stop tokens those end the answer that are in the list
// and are no bad words.
TEST(Constrained, StopTokensThatTheListLeavesOutAreNotWritten) {
  ScriptedOptions options = lover_of_newlines();
  options.next = [](std::int32_t, std::int32_t) { return kScriptEos; };
  ScriptedServer s(options);
  struct Case {
    PlainJson fields;
    std::vector<std::int32_t> allowed;
    const char* reason;
  };
  const std::vector<Case> cases = {
      {{{"allowed_token_ids", {'a', 'b'}}, {"stop_token_ids", {'b'}}}, {'a', 'b'}, nullptr},
      {{{"allowed_token_ids", {'a'}}, {"stop_token_ids", {'b'}}}, {'a'}, "length"},
      {{{"allowed_token_ids", {'a', kScriptEos}}, {"stop_token_ids", {'b'}}}, {kScriptEos}, "stop"},
      {{{"allowed_token_ids", {'a', 'b'}}, {"stop_token_ids", {'b'}}, {"bad_words", {"b"}}},
       {'a'},
       "length"},
  };
  for (const Case& c : cases) {
    PlainJson body = c.fields;
    body.update({{"prompt", "q"}, {"max_tokens", 5}, {"return_token_ids", true}});
    const TestAnswer answer = ask(s.port(), "POST", "/v1/completions", body.dump());
    SCOPED_TRACE(answer.body);
    ASSERT_EQ(answer.status, 200);
    const PlainJson choice = answer.json()["choices"][0];
    EXPECT_FALSE(choice["token_ids"].empty());
    for (const std::int32_t token : choice["token_ids"]) {
      EXPECT_THAT(c.allowed, testing::Contains(token));
    }
    if (c.reason != nullptr) {
      EXPECT_EQ(choice["finish_reason"], c.reason);
    }
  }
}

// Reasons "ab", then prefers newlines.
TEST(Constrained, ReasoningComesFirst) {
  for (const bool inside : {true, false}) {
    ScriptedOptions options = lover_of_newlines("{# </think> #}");
    options.next = [](std::int32_t token, std::int32_t) -> std::int32_t {
      if (token == 'q') return kThink;
      if (token == kThink) return 'a';
      if (token == 'a') return 'b';
      if (token == 'b') return kEndThink;
      return '\n';
    };
    ScriptedServer s(options);
    const TestAnswer answer =
        ask(s.port(), "POST", "/v1/chat/completions",
            chat({{"response_format", format_of(kSchema)}}, inside ? "q<think>" : "q"));
    ASSERT_EQ(answer.status, 200) << answer.body;
    const PlainJson message = answer.json()["choices"][0]["message"];
    EXPECT_EQ(message["reasoning_content"], "ab");
    expect_valid(PlainJson::parse(message["content"].get<std::string>()));
  }
}

TEST(Constrained, PagesComeBack) {
  ScriptedServer s{ScriptedOptions()};
  const TestAnswer answer =
      ask(s.port(), "POST", "/v1/completions", completion("q", 50, R"(,"regex":"[a-z]{1,20}")"));
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_ALIVE(s);
}

}  // namespace
}  // namespace lathe
