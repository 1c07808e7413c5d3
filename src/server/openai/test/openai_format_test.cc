#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/openai/answer.h"

namespace lathe {
namespace {

using PlainJson = nlohmann::json;

struct Scene {
  Scene() {
    head.id = "chatcmpl-1";
    head.prompts.resize(1);
    head.prompts[0].count = 7;
    choice.completion_tokens = 3;
  }
  std::unique_ptr<AnswerFormat> format() {
    if (request.route == ApiRoute::generate) return make_generate_format(request, head);
    return request.route == ApiRoute::completions ? make_completion_format(request, head)
                                                  : make_chat_format(request, head);
  }
  ApiRequest request;
  AnswerHead head;
  Choice choice;
};

PlainJson event(const std::string& text) {
  EXPECT_TRUE(text.starts_with("data: ") && text.ends_with("\n\n")) << text;
  return PlainJson::parse(text.substr(6));
}

TEST(ChatFormat, PartsAreDeltas) {
  Scene s;
  const auto format = s.format();
  const std::vector<AnswerCall> calls = {{"call_a", {"f", R"({"x":1})"}}, {"call_b", {"g", "{}"}}};
  std::string out;
  format->part(s.choice, {"", "why", {}, 0, {}}, out);
  EXPECT_EQ(event(out)["choices"][0]["delta"],
            PlainJson::parse(R"({"reasoning_content": "why", "reasoning": "why"})"));
  out.clear();
  format->part(s.choice, {"text", "", calls, 2, {}}, out);
  const PlainJson delta = event(out)["choices"][0]["delta"];
  EXPECT_EQ(delta["content"], "text");
  // Names appear once, arguments are joined by index.
  std::map<int, std::string> names, arguments;
  for (const PlainJson& d : delta["tool_calls"]) {
    if (d.contains("id")) names[d["index"]] += d["function"]["name"].get<std::string>();
    arguments[d["index"]] += d["function"]["arguments"].get<std::string>();
  }
  EXPECT_EQ(names, (std::map<int, std::string>{{2, "f"}, {3, "g"}}));
  EXPECT_EQ(arguments, (std::map<int, std::string>{{2, R"({"x":1})"}, {3, "{}"}}));
}

TEST(ChatFormat, TextOfEachChoiceHasItsIndex) {
  Scene s;
  s.head.model = "a \"model\"";
  const auto format = s.format();
  s.request.continuous_usage = true;
  const auto with_usage = s.format();  // each event uses the slow path
  Choice other = s.choice;
  other.index = 1;
  std::string out;
  for (Choice* c : {&s.choice, &other}) {
    format->open(*c, out);
    with_usage->open(*c, out);
  }
  for (Choice* c : {&other, &s.choice, &other}) {
    out.clear();
    format->part(*c, {"\xc3\xa9 \"x\"\n", "", {}, 0, {}}, out);
    const PlainJson got = event(out);
    EXPECT_EQ(got["choices"][0]["index"], c->index);
    EXPECT_EQ(got["choices"][0]["delta"]["content"], "\u00e9 \"x\"\n");
    out.clear();
    with_usage->part(*c, {"\xc3\xa9 \"x\"\n", "", {}, 0, {}}, out);
    PlainJson general = event(out);
    EXPECT_TRUE(general.erase("usage"));
    EXPECT_EQ(got, general);
  }
}

TEST(ChatFormat, AWholeAnswerOfCallsHasNoContent) {
  Scene s;
  s.choice.calls = {{"call_a", {"f", R"({"x":1})"}}};
  s.choice.reasoning_tokens = 2;
  s.choice.end = ChoiceEnd{EndKind::tool_calls, std::nullopt, 9};
  s.head.reasoning.reasoning = false;
  s.choice.reasoning = "why";
  const PlainJson answer = PlainJson::parse(s.format()->whole(std::span(&s.choice, 1), {}));
  const PlainJson& choice = answer["choices"][0];
  EXPECT_TRUE(choice["message"]["content"].is_null());
  EXPECT_EQ(choice["message"]["reasoning_content"], "why");
  EXPECT_FALSE(choice["message"].contains("reasoning"));
  EXPECT_EQ(
      choice["message"]["tool_calls"],
      PlainJson::parse(
          R"([{"id": "call_a", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}}])"));
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 2);
  EXPECT_EQ(answer["usage"]["total_tokens"], 10);
}

TEST(ChatFormat, UsageComesIfItIsAskedFor) {
  Scene s;
  std::string out;
  s.format()->close(std::span(&s.choice, 1), {}, out);
  EXPECT_EQ(out, "");
  s.request.include_usage = true;
  s.format()->close(std::span(&s.choice, 1), {}, out);
  EXPECT_TRUE(event(out)["choices"].empty());
  EXPECT_EQ(event(out)["usage"]["prompt_tokens"], 7);
}

// OpenAI: with include_usage all events before the last have "usage": null.
TEST(OpenAiFormat, UsageIsNullBeforeTheLastEvent) {
  for (const ApiRoute route : {ApiRoute::chat, ApiRoute::completions}) {
    for (const bool logprobs : {false, true}) {  // parts of chat have a fast path without
      for (const bool usage : {false, true}) {
        Scene s;
        s.request.route = route;
        s.request.logprobs = logprobs;
        s.request.echo = true;
        s.request.include_usage = usage;
        s.head.tokenizer = nullptr;
        const auto format = s.format();
        std::vector<std::string> events(3);
        format->open(s.choice, events[0]);
        format->part(s.choice, {"text", "", {}, 0, {}}, events[1]);
        s.choice.end = ChoiceEnd{EndKind::stop, std::nullopt, std::nullopt};
        format->end(s.choice, events[2]);
        for (const std::string& text : events) {
          const PlainJson got = event(text);
          ASSERT_EQ(got.contains("usage"), usage) << text;
          EXPECT_TRUE(!usage || got["usage"].is_null());
          EXPECT_EQ(got["choices"].size(), 1u);
        }
      }
    }
  }
}

// Each choice has its own time: a batch's choices end one after the other.
TEST(GenerateFormat, LatencyIsTheChoicesOwn) {
  Scene s;
  s.request.route = ApiRoute::generate;
  s.request.n = 2;
  const auto latency = [](const PlainJson& json) {
    return json["meta_info"]["e2e_latency"].get<double>();
  };
  for (const bool incremental : {false, true}) {
    s.request.incremental = incremental;
    const auto format = s.format();
    std::vector<std::string> events(2);
    s.choice.end = std::nullopt;
    s.choice.seconds = 0.25;
    format->part(s.choice, {"text", "", {}, 0, {}}, events[0]);
    s.choice.seconds = 0.5;
    s.choice.end = ChoiceEnd{EndKind::length, std::nullopt, std::nullopt};
    format->end(s.choice, events[1]);
    EXPECT_EQ(latency(event(events[0])), 0.25);
    EXPECT_EQ(latency(event(events[1])), 0.5);
  }
  Choice choices[] = {s.choice, s.choice};
  choices[1].seconds = 2;
  const PlainJson whole = PlainJson::parse(s.format()->whole(choices, {.ended = 2}));
  EXPECT_EQ(latency(whole[0]), 0.5);
  EXPECT_EQ(latency(whole[1]), 2);
}

}  // namespace
}  // namespace lathe
