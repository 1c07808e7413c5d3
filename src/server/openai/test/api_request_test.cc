#include "server/openai/api_request.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "base/json.h"
#include "server/openai/fields.h"

namespace lathe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ApiError error_of(ApiRoute route, const std::string& body, const FieldLimits& limits = {}) {
  const auto request = parse_request(route, body, limits);
  EXPECT_FALSE(request.ok()) << body;
  return request.ok() ? ApiError{} : request.error();
}

ApiRequest read(ApiRoute route, const std::string& body) {
  auto request = parse_request(route, body, {});
  EXPECT_TRUE(request.ok()) << body << ": " << (request.ok() ? "" : request.error().message);
  return request.ok() ? *request : ApiRequest{};
}

TEST(ApiRequest, NullIsAbsent) {
  std::string body = R"({"prompt": "a")";
  for (const Field& f : request_fields()) {
    if ((f.places & kInCompletions) != 0 && f.name != "prompt") {
      body += ", \"" + std::string(f.name) + "\": null";
    }
  }
  const ApiRequest r = read(ApiRoute::completions, body + "}");
  EXPECT_EQ(r.n, 1);
  EXPECT_FALSE(r.max_tokens || r.temperature || r.logprobs || r.stream);
  EXPECT_THAT(r.ignored, IsEmpty());
}

TEST(ApiRequest, WholeNumbersMayHaveAPoint) {
  const ApiRequest r = read(ApiRoute::completions, R"({"prompt": "a", "n": 2.0, "seed": -3})");
  EXPECT_EQ(r.n, 2);
  EXPECT_EQ(r.sampling.seed, static_cast<std::uint64_t>(-3));
}

TEST(ApiRequest, TheLaterNameOfALimitGoesFirst) {
  const std::string messages = R"("messages": [{"role": "user", "content": "a"}])";
  EXPECT_EQ(
      read(ApiRoute::chat, "{" + messages + R"(, "max_completion_tokens": 5, "max_tokens": 9})")
          .max_tokens,
      5);
  EXPECT_EQ(
      read(ApiRoute::chat, "{" + messages + R"(, "max_tokens": 9, "max_completion_tokens": null})")
          .max_tokens,
      9);
}

// The loser is named.
TEST(ApiRequest, LimitsThatDifferAreNamed) {
  const std::string body =
      R"({"messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 5, "max_tokens": )";
  EXPECT_THAT(read(ApiRoute::chat, body + "9}").ignored, ElementsAre("max_tokens"));
  for (const char* same : {"5", "5.0", "null"}) {
    EXPECT_THAT(read(ApiRoute::chat, body + same + "}").ignored, IsEmpty()) << same;
  }
  FieldLimits strict;
  strict.strict = true;
  EXPECT_EQ(error_of(ApiRoute::chat, body + "9}", strict).message,
            "max_tokens: wanted max_completion_tokens, 5, got 9");
}

// Fields of several servers say one thing, or are refused.
TEST(ApiRequest, SpellingsOfOneThingAgree) {
  const auto body = [](const std::string& fields) {
    return R"({"messages": [{"role": "user", "content": "a"}], )" + fields + "}";
  };
  const std::string schema = R"({"type": "object"})";
  const std::string format =
      R"("response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": )" +
      schema + "}}";
  for (const std::string& good :
       {format + R"(, "guided_json": )" + schema,
        format + R"(, "structured_outputs": {"json": )" + schema + "}",
        R"("json_schema": "{\"type\": \"object\"}", "guided_json": )" + schema,
        std::string(
            R"("regex": "a+", "guided_regex": "a+", "structured_outputs": {"regex": "a+"})"),
        std::string(R"("guided_choice": ["a"], "structured_outputs": {"choice": ["a"]})"),
        std::string(R"("ebnf": "root ::= \"a\"", "grammar": "root ::= \"a\"")"),
        std::string(
            R"("reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "low"})")}) {
    read(ApiRoute::chat, body(good));
  }
  for (const auto& [bad, param] :
       {std::pair<std::string, std::string>{format + R"(, "guided_json": {"type": "array"})",
                                            "guided_json"},
        {format + R"(, "guided_regex": "a")", "guided_regex"},
        {R"("response_format": {"type": "json_object"}, "json_schema": {"type": "object"})",
         "json_schema"},
        {R"("guided_choice": ["a"], "structured_outputs": {"choice": ["b"]})", "guided_choice"},
        {R"("structured_outputs": {"regex": "a", "json": {}})", "structured_outputs.json"},
        {R"("reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"})",
         "reasoning_effort"}}) {
    const ApiError error = error_of(ApiRoute::chat, body(bad));
    EXPECT_EQ(error.param, param) << error.message;
    EXPECT_EQ(error.status, 400) << bad;
  }
}

// A schema in a text is read as the body is.
TEST(ApiRequest, SchemasInTextsNameEachMemberOnce) {
  const auto error = [](const char* field) {
    return error_of(
        ApiRoute::chat,
        fmt::format(R"({{"messages": [{{"role": "user", "content": "a"}}], {}}})", field));
  };
  for (const char* field :
       {R"("guided_json": "{\"type\": \"object\", \"type\": \"string\"}")",
        R"("json_schema": "{\"properties\": {\"a\": {}, \"a\": {}}}")",
        R"("structured_outputs": {"json": "{\"enum\": [{\"a\": 1, \"a\": 2}]}"})"}) {
    EXPECT_THAT(error(field).message, testing::ContainsRegex("wanted unique names, got .* twice"))
        << field;
  }
  EXPECT_EQ(error(R"("guided_json": "{\"properties\": {\"a\": {\"maximum\": 1e999}}}")").param,
            "guided_json.properties.a.maximum");
  EXPECT_EQ(error(R"("guided_json": "{")").param, "guided_json");
}

TEST(ApiRequest, AFormatOfAnotherTypeIsNamed) {
  const ApiError error = error_of(
      ApiRoute::chat, R"({"messages": [{"role": "user", "content": "a"}],)"
                      R"( "response_format": {"type": "foo", "json_schema": {"schema": {}}}})");
  EXPECT_EQ(error.param, "response_format.type") << error.message;
}

TEST(ApiRequest, TruncationHasOneRange) {
  for (const char* wrong : {"0", "-2", "\"x\"", "2147483648", "1.5"}) {
    const ApiError error =
        error_of(ApiRoute::completions,
                 fmt::format(R"({{"prompt": "a", "truncate_prompt_tokens": {}}})", wrong));
    EXPECT_EQ(error.message, fmt::format("truncate_prompt_tokens: wanted -1, or an integer from 1 "
                                         "to 2147483647, got {}",
                                         wrong));
  }
}

TEST(ApiRequest, PromptsComeInFourShapes) {
  EXPECT_EQ(read(ApiRoute::completions, R"({"prompt": "a b"})").prompts[0].text, "a b");
  EXPECT_THAT(read(ApiRoute::completions, R"({"prompt": [1, 2.0]})").prompts[0].tokens,
              ElementsAre(1, 2));
  EXPECT_EQ(read(ApiRoute::completions, R"({"prompt": ["a", [3]]})").prompts.size(), 2u);
  EXPECT_TRUE(read(ApiRoute::completions, R"({"prompt": [[1]]})").batch);
  FieldLimits one;
  one.max_prompts = 1;
  EXPECT_THAT(error_of(ApiRoute::completions, R"({"prompt": ["a", "b"]})", one).message,
              HasSubstr("at most 1 prompts, got 2; --max-prompts"));
}

TEST(ApiRequest, NumbersThatAFloatRoundsToZeroAreShownAsWritten) {
  for (const auto& [field, most] : {std::pair{"top_p", 1}, {"repetition_penalty", 2}}) {
    const auto with = [&](const char* value) {
      return fmt::format(R"({{"prompt": "a", "{}": {}}})", field, value);
    };
    EXPECT_THAT(error_of(ApiRoute::completions, with("1e-300")).message,
                HasSubstr(fmt::format("wanted a number from 1e-45 to {}, got 1e-300", most)));
    EXPECT_THAT(error_of(ApiRoute::completions, with("0")).message,
                HasSubstr(fmt::format("wanted a number above 0, to {}, got 0", most)));
    EXPECT_TRUE(parse_request(ApiRoute::completions, with("1e-45"), {}));
  }
}

TEST(ApiRequest, LogitBiasNamesATokenOnce) {
  for (const char* key : {"069", "00", "+1", "", "1.0"}) {
    const std::string body =
        fmt::format(R"({{"prompt": "a", "logit_bias": {{"69": 1, "{}": 2}}}})", key);
    EXPECT_EQ(error_of(ApiRoute::completions, body).param, "logit_bias") << key;
  }
  EXPECT_EQ(read(ApiRoute::completions, R"({"prompt": "a", "logit_bias": {"0": 1, "69": 2}})")
                .sampling.logit_bias.size(),
            2u);
}

// OpenAI refuses these whatever tool_choice is.
TEST(ApiRequest, BrokenToolsAreRefusedByName) {
  const auto body = [](const std::string& functions) {
    return R"({"messages": [{"role": "user", "content": "a"}], "tools": [)" + functions + "]}";
  };
  const auto tool = [](const std::string& rest) {
    return R"({"type": "function", "function": {"name": )" + rest + "}}";
  };
  const std::string good = tool(R"("f")");
  EXPECT_EQ(read(ApiRoute::chat, body(good + "," + tool(R"("g", "parameters": {"required": ["a"],
      "properties": {"a": {}}})")))
                .tools.size(),
            2u);
  for (const auto& [rest, param] : {
           std::pair{R"("")", "tools[1].function.name"},
           {R"("a b")", "tools[1].function.name"},
           {R"("a\"b")", "tools[1].function.name"},
           {R"("a<b")", "tools[1].function.name"},
           {R"("a{b")", "tools[1].function.name"},
           {R"("f\n")", "tools[1].function.name"},
           {R"("größe")", "tools[1].function.name"},
           {R"("f")", "tools[1].function.name"},
           {R"("g", "description": ["a"])", "tools[1].function.description"},
           {R"("g", "parameters": [])", "tools[1].function.parameters"},
           {R"("g", "parameters": "{}")", "tools[1].function.parameters"},
           {R"("g", "parameters": {"required": "a"})", "tools[1].function.parameters.required"},
           {R"("g", "parameters": {"required": [1]})", "tools[1].function.parameters.required"},
           {R"("g", "parameters": {"properties": []})", "tools[1].function.parameters.properties"},
       }) {
    EXPECT_EQ(error_of(ApiRoute::chat, body(good + "," + tool(rest))).param, param) << rest;
  }
}

TEST(ApiRequest, TwoNamesOfAKeptStopHaveOneValue) {
  const auto body = [](const char* first, const char* second) {
    return fmt::format(R"({{"prompt": "a", "include_stop_str_in_output": {}, "no_stop_trim": {}}})",
                       first, second);
  };
  EXPECT_TRUE(read(ApiRoute::completions, body("true", "true")).keep_stop);
  EXPECT_TRUE(read(ApiRoute::completions, body("true", "null")).keep_stop);
  for (const auto& [first, second] : {std::pair{"true", "false"}, {"false", "true"}}) {
    EXPECT_EQ(error_of(ApiRoute::completions, body(first, second)).param, "no_stop_trim");
  }
}

TEST(ApiRequest, LogprobsDifferByRoute) {
  EXPECT_EQ(read(ApiRoute::completions, R"({"prompt": "a", "logprobs": true})").top_logprobs, 1);
  EXPECT_FALSE(read(ApiRoute::completions, R"({"prompt": "a", "logprobs": false})").logprobs);
  EXPECT_EQ(read(ApiRoute::completions, R"({"prompt": "a", "logprobs": 0})").top_logprobs, 0);
  EXPECT_EQ(error_of(ApiRoute::chat, R"({"messages": [{}], "logprobs": 3})").param, "logprobs");
  EXPECT_EQ(error_of(ApiRoute::completions, R"({"prompt": "a", "logprobs": 21})").param,
            "logprobs");
}

TEST(ApiRequest, AnUnknownNameIsToldAndMayBeAnError) {
  EXPECT_THAT(read(ApiRoute::completions, R"({"prompt": "a", "x": 1, "temprature": 2})").ignored,
              ElementsAre("x", "temprature"));
  FieldLimits strict;
  strict.strict = true;
  EXPECT_THAT(
      error_of(ApiRoute::completions, R"({"prompt": "a", "temprature": 2})", strict).message,
      HasSubstr("did you mean temperature?"));
  EXPECT_EQ(error_of(ApiRoute::completions, R"({"prompt": "a", "": 2})", strict).message,
            "\"\": wanted a known name, got an unknown one");
  EXPECT_EQ(nearest_field(fields_of(kInChat), "zzzzzzzzz"), "");
}

TEST(ApiRequest, FieldsOfOtherPlacesAreUnknown) {
  const ApiRequest r = read(
      ApiRoute::generate,
      R"({"text": "a", "max_tokens": 3, "sampling_params": {"max_new_tokens": 4, "echo": true}})");
  EXPECT_EQ(r.max_tokens, 4);
  EXPECT_THAT(r.ignored, ElementsAre("sampling_params.echo", "max_tokens"));
}

TEST(ApiRequest, BodiesHaveLimits) {
  EXPECT_EQ(error_of(ApiRoute::chat, "{\"a\": \"\x80\"}").code, "invalid_json");
  EXPECT_THAT(error_of(ApiRoute::chat, R"({"a": 1, "a": 2})").message, HasSubstr("\"a\" twice"));
}

// Errors about the body's JSON name the field and what was offered.
TEST(ApiRequest, BodiesThatAreNoJsonAreShown) {
  const ApiError huge = error_of(ApiRoute::chat, R"({"messages": [], "temperature": 1e9999})");
  EXPECT_EQ(huge.message, "temperature: wanted a number that a double can hold, got 1e9999");
  EXPECT_EQ(huge.param, "temperature");
  EXPECT_THAT(error_of(ApiRoute::generate, R"({"text": "a", "x": {"y": [0, -1e400]}})").message,
              HasSubstr("x.y[1]: wanted a number that a double can hold, got -1e400"));
  const std::string nested = std::string(600, '[') + std::string(600, ']');
  const ApiError deep = error_of(ApiRoute::chat, R"({"tools": [{"a": )" + nested + "}]}");
  EXPECT_THAT(deep.param, testing::StartsWith("tools[0].a[0][0]"));
  EXPECT_EQ(deep.message, deep.param + ": wanted at most 500 levels, got more");
  EXPECT_EQ(deep.code, "invalid_json");
  const auto shown = [](const std::string& body) { return error_of(ApiRoute::chat, body).message; };
  EXPECT_EQ(shown(R"({"user": "\ud800"})"),
            R"(body: wanted JSON in UTF-8, got {"user": "\ud800" at line 1, column 17)");
  EXPECT_EQ(shown("{\n\"a\": tru}"),
            "body: wanted JSON in UTF-8, got {\\x0a\"a\": tru} at line 2, column 9");
  EXPECT_THAT(shown("{\"a\": \"\x80\"}"), HasSubstr(R"(got {"a": "\x80 at line 1, column 8)"));
  EXPECT_THAT(shown("{\"a\": 1"), HasSubstr("got the end after {\"a\": 1 at"));
  EXPECT_THAT(shown(""), HasSubstr("got an empty text at"));
  EXPECT_THAT(shown("[1, 2]"), HasSubstr("body: wanted an object, got [1,2]"));
  EXPECT_LT(shown(std::string(100'000, ' ') + "x").size(), 200u);
}

// SGLang and vLLM ignore fields that act only with another one; OpenAI's are refused.
TEST(ApiRequest, FieldsWithoutTheOneTheyNeedAreNamed) {
  const std::string more =
      R"("top_logprobs_num": 2, "logprob_start_len": 0, "token_ids_logprob": [1],)"
      R"( "return_text_in_logprobs": true, "incremental": true)";
  const std::string bare = R"({"text": "a", )" + more;
  EXPECT_THAT(read(ApiRoute::generate, bare + "}").ignored,
              ElementsAre("top_logprobs_num", "logprob_start_len", "token_ids_logprob",
                          "return_text_in_logprobs", "incremental"));
  EXPECT_THAT(
      read(ApiRoute::generate, bare + R"(, "return_logprob": true, "stream": true})").ignored,
      IsEmpty());
  EXPECT_THAT(
      read(ApiRoute::generate, R"({"text": "a", "top_logprobs_num": 0, "logprob_start_len": -1,)"
                               R"( "token_ids_logprob": [], "return_text_in_logprobs": false,)"
                               R"( "incremental": false})")
          .ignored,
      IsEmpty());
  EXPECT_EQ(error_of(ApiRoute::generate, bare + "}", {.strict = true}).message,
            "top_logprobs_num: wanted return_logprob with it, got none");
  const std::string ids = R"({"prompt": "a", "return_tokens_as_token_ids": true)";
  EXPECT_THAT(read(ApiRoute::completions, ids + "}").ignored,
              ElementsAre("return_tokens_as_token_ids"));
  EXPECT_THAT(read(ApiRoute::completions, ids + R"(, "logprobs": 0})").ignored, IsEmpty());
}

// A field is the nearest double of a number with more digits; a schema keeps them.
TEST(ApiRequest, A8NumbersKeepTheirDigits) {
  const ApiRequest r = read(
      ApiRoute::completions,
      R"({"prompt": "a", "max_tokens": 5.00000000000000000001, "temperature": 0.50000000000000000001,)"
      R"( "logit_bias": {"3": 1.00000000000000000001}, "json_schema": {"const": 18446744073709551617}})");
  EXPECT_EQ(r.max_tokens, 5);
  EXPECT_EQ(r.temperature, 0.5f);
  EXPECT_EQ(r.sampling.logit_bias[0].bias, 1.0f);
  EXPECT_EQ(json_text(r.constraint->schema), R"({"const":18446744073709551617})");
  for (
      const char* field :
      {R"("json_schema": "{\"const\":18446744073709551617}")",
       R"("guided_json": {"const": 18446744073709551617})",
       R"("structured_outputs": {"json": {"const": 18446744073709551617}})",
       R"("response_format": {"type": "json_schema", "json_schema": {"schema": {"const": 18446744073709551617}}})"}) {
    const std::string body = std::string(R"({"prompt": "a", )") + field + "}";
    EXPECT_EQ(json_text(read(ApiRoute::completions, body).constraint->schema),
              R"({"const":18446744073709551617})")
        << body;
  }
  EXPECT_THAT(
      error_of(ApiRoute::completions, R"({"prompt": "a", "seed": 18446744073709551617})").message,
      HasSubstr("got 18446744073709551617"));
  EXPECT_THAT(error_of(ApiRoute::completions, R"({"prompt": [1, 18446744073709551617]})").message,
              HasSubstr("prompt[1]"));
}

// Memory for a body is bounded, and the message says where the bound was met.
TEST(ParseBody, E1LimitsNameThePath) {
  std::string body = R"({"x":{"y":[{})";
  for (int i = 1; i < 400'000; ++i) body += ",{}";
  const auto many = parse_body(body + "]}}");
  ASSERT_FALSE(many);
  EXPECT_EQ(many.error().status, 413);
  EXPECT_EQ(many.error().param, "x.y[399995]");  // after x, y, and the objects around them
  std::string ids = R"({"prompt":[1)";
  for (int i = 1; i < 1'000'000; ++i) ids += ",1";
  EXPECT_TRUE(parse_body(ids + "]}"));
}

// A request with random bytes changed gives a request or an error message, nothing else.
TEST(ApiRequest, BrokenBodiesAreRefused) {
  const std::string body =
      R"({"prompt": ["a", [1, 2]], "temperature": 0.5, "stop": ["x"], "logit_bias": {"3": 1}, "n": 2})";
  for (std::size_t at = 0; at < body.size(); ++at) {
    for (const char c : {'"', '{', '[', '9', '-', '\0', '\x80'}) {
      std::string broken = body;
      broken[at] = c;
      const auto r = parse_request(ApiRoute::completions, broken, {});
      if (!r) {
        EXPECT_EQ(r.error().status, 400);
        EXPECT_FALSE(r.error().message.empty());
      }
    }
  }
}

TEST(Fields, StandOnceInAPlace) {
  std::set<std::pair<std::string_view, unsigned>> seen;
  for (const Field& f : request_fields()) {
    for (unsigned place : {kInChat, kInCompletions, kInGenerate, kInSampling}) {
      if ((f.places & place) == 0) continue;
      EXPECT_TRUE(seen.emplace(f.name, place).second) << f.name;
    }
  }
  EXPECT_THAT(describe_fields(), HasSubstr("temperature"));
}

TEST(ApiRequest, AListOfOneIsOfTheOnlyPrompt) {
  const ApiRequest r =
      read(ApiRoute::generate, R"({"text": "hi", "sampling_params": [{"max_new_tokens": 1}]})");
  EXPECT_EQ(r.params(0).max_tokens, 1);
  EXPECT_THAT(
      error_of(ApiRoute::generate, R"({"text": "hi", "sampling_params": [{}, {}]})").message,
      HasSubstr("a list of 1, one for each prompt, got a list of 2"));
}

// As in SGLang.
TEST(ApiRequest, AListOfNamesHasOneForEachPrompt) {
  EXPECT_EQ(read(ApiRoute::generate, R"({"text": ["a", "b"], "rid": "x"})").rids,
            std::vector<std::string>{"x"});
  EXPECT_EQ(read(ApiRoute::generate, R"({"text": ["a", "b"], "rid": ["x", "y"]})").rids,
            (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(read(ApiRoute::generate, R"({"text": "a", "rid": ["x"]})").rids,
            std::vector<std::string>{"x"});
  for (const auto& [route, body, got] :
       {std::tuple{ApiRoute::generate, R"({"text": ["a", "b"], "rid": ["x"]})", "2 1"},
        {ApiRoute::generate, R"({"text": ["a", "b"], "rid": []})", "2 0"},
        {ApiRoute::generate, R"({"text": ["a", "b"], "rid": ["x", "y", "z"]})", "2 3"},
        {ApiRoute::completions, R"({"prompt": ["a", "b"], "rid": ["x"]})", "2 1"},
        {ApiRoute::generate, R"({"text": "a", "rid": ["x", "y"]})", "1 2"},
        {ApiRoute::chat, R"({"messages": [{"role": "user", "content": "a"}], "rid": []})",
         "1 0"}}) {
    const ApiError wrong = error_of(route, body);
    EXPECT_EQ(wrong.status, 400) << body;
    EXPECT_EQ(wrong.param, "rid") << body;
    EXPECT_EQ(wrong.message,
              fmt::format("rid: wanted a string, or a list of {}, one for each prompt, got a list "
                          "of {}",
                          got[0], got[2]))
        << body;
  }
}

// OpenAI's server refuses other types in every tool; here only arguments that follow the schema
// need an object.
TEST(ApiRequest, ArgumentsThatFollowASchemaAreAnObject) {
  const auto body = [](const std::string& type, const std::string& strict,
                       const std::string& choice) {
    return R"({"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function",)"
           R"( "function": {"name": "f", "strict": )" +
           strict + R"(, "parameters": {"type": )" + type + R"(}}}], "tool_choice": )" + choice +
           "}";
  };
  const std::string named = R"({"type": "function", "function": {"name": "f"}})";
  for (const auto& [strict, choice] : {std::pair<std::string, std::string>{"false", "\"required\""},
                                       {"false", named},
                                       {"true", "\"auto\""}}) {
    const ApiError wrong = error_of(ApiRoute::chat, body("\"string\"", strict, choice));
    EXPECT_EQ(wrong.param, "tools[0].function.parameters.type");
    EXPECT_THAT(wrong.message, HasSubstr(R"(wanted "object", got "string")"));
    read(ApiRoute::chat, body(R"(["object", "null"])", strict, choice));
  }
  read(ApiRoute::chat, body("\"string\"", "false", "\"auto\""));
}

}  // namespace
}  // namespace lathe
