// Streams of /generate: what their events repeat, and what they say of the prompt.
#include <gtest/gtest.h>

#include <map>

#include "server/scripted/scripted_server.h"
#include "server/scripted/test/http_client_test_util.h"

namespace lathe {
namespace {

using PlainJson = nlohmann::json;

// Lists of log-probabilities of a prompt and of an answer in meta_info.
constexpr const char* kOfPrompt[] = {"input_token_logprobs", "input_top_logprobs",
                                     "input_token_ids_logprobs"};
constexpr const char* kOfAnswer[] = {"output_token_logprobs", "output_top_logprobs",
                                     "output_token_ids_logprobs"};

PlainJson scored(const PlainJson& text, int n, int tokens) {
  return {{"text", text},
          {"return_logprob", true},
          {"logprob_start_len", 1},
          {"top_logprobs_num", 2},
          {"token_ids_logprob", {1, 2}},
          {"sampling_params", {{"n", n}, {"max_new_tokens", tokens}, {"temperature", 0}}}};
}

std::vector<PlainJson> stream(ScriptedServer& s, PlainJson body, bool incremental) {
  body["stream"] = true;
  body["incremental"] = incremental;
  const TestAnswer answer = ask(s.port(), "POST", "/generate", body.dump());
  EXPECT_EQ(answer.status, 200) << answer.body;
  return answer.events();
}

std::int64_t index_of(const PlainJson& event) { return event.value("index", 0); }

// The parts of an incremental stream, joined, are the whole answer, so a prompt's log-probabilities
// are sent once for each choice.
TEST(GenerateStreams, IncrementalEventsRepeatNothing) {
  for (const std::int64_t chunk : {4, 10, 8192}) {
    ScriptedOptions options;
    options.chunked_prefill_size = chunk;
    ScriptedServer s(options);
    for (const int n : {1, 3}) {
      for (const int tokens : {0, 4}) {
        for (const PlainJson& text : {PlainJson("abcdef"), PlainJson({"abcdef", "ghijkl"})}) {
          SCOPED_TRACE(::testing::Message() << chunk << ", n " << n << ", " << tokens << text);
          const PlainJson body = scored(text, n, tokens);
          const PlainJson answer = ask(s.port(), "POST", "/generate", body.dump()).json();
          const PlainJson whole = answer.is_array() ? answer : PlainJson::array({answer});
          std::map<std::int64_t, PlainJson> joined;
          std::map<std::int64_t, std::string> texts;
          for (const PlainJson& e : stream(s, body, true)) {
            PlainJson& lists = joined[index_of(e)];
            const bool first = lists.is_null();
            texts[index_of(e)] += e["text"];
            const PlainJson& info = e["meta_info"];
            for (const char* list : kOfPrompt) {
              EXPECT_EQ(info[list].empty(), !first) << list;
              for (const PlainJson& entry : info[list]) lists[list].push_back(entry);
            }
            for (const char* list : kOfAnswer) {
              for (const PlainJson& entry : info[list]) lists[list].push_back(entry);
            }
          }
          ASSERT_EQ(joined.size(), whole.size());
          for (const auto& [index, lists] : joined) {
            const PlainJson& want = whole[static_cast<std::size_t>(index)];
            EXPECT_EQ(texts[index], want["text"]);
            EXPECT_EQ(want["meta_info"]["input_token_logprobs"].size(), 5u);
            for (const char* list : kOfPrompt) {
              EXPECT_EQ(lists[list], want["meta_info"][list]) << list;
            }
            for (const char* list : kOfAnswer) {
              EXPECT_EQ(lists.value(list, PlainJson::array()), want["meta_info"][list]) << list;
            }
          }
        }
      }
    }
  }
}

// Events that repeat everything have all of the prompt's log-probabilities, whichever choice of the
// prompt has a token first.
TEST(GenerateStreams, RepeatedEventsHaveThePromptsScores) {
  for (const std::int64_t chunk : {4, 7, 10, 8192}) {
    ScriptedOptions options;
    options.chunked_prefill_size = chunk;
    ScriptedServer s(options);
    for (const int tokens : {0, 3}) {
      SCOPED_TRACE(::testing::Message() << chunk << ", " << tokens);
      const PlainJson text = {"abcdef", "ghijkl", "mnopqr"};
      std::map<std::int64_t, int> ends;
      for (const PlainJson& e : stream(s, scored(text, 3, tokens), false)) {
        const PlainJson& info = e["meta_info"];
        for (const char* list : kOfPrompt) EXPECT_EQ(info[list].size(), 5u) << list;
        EXPECT_EQ(ends[index_of(e)], 0) << "an event after the end";
        ends[index_of(e)] += info["finish_reason"].is_null() ? 0 : 1;
      }
      ASSERT_EQ(ends.size(), 9u);
      for (const auto& [index, count] : ends) EXPECT_EQ(count, 1) << index;
    }
  }
}

// Without a prefix cache the choices of a prompt do not wait for the first one, which scores the
// prompt. It needs two steps where the prompt has more logits than a step may have.
TEST(GenerateStreams, EventsWaitForThePromptsScores) {
  ScriptedOptions options;
  options.prefix_cache = false;
  options.context = 60000;
  options.max_total_tokens = options.chunked_prefill_size = 200000;
  ScriptedServer s(options);
  const std::string text(55000, 'a');
  for (const bool incremental : {false, true}) {
    PlainJson body = scored(text, 2, 1);
    body["logprob_start_len"] = 3000;
    for (const char* more : {"top_logprobs_num", "token_ids_logprob"}) body.erase(more);
    std::map<std::int64_t, std::size_t> scores;
    for (const PlainJson& e : stream(s, body, incremental)) {
      const std::size_t size = e["meta_info"]["input_token_logprobs"].size();
      EXPECT_TRUE(incremental || size == 52000) << size;
      scores[index_of(e)] += size;
    }
    EXPECT_EQ(scores.size(), 2u);
    for (const auto& [index, size] : scores) EXPECT_TRUE(!incremental || size == 52000) << size;
  }
}

// Seconds since the request's arrival, of a choice that has ended until its end.
TEST(GenerateStreams, EventsHaveTheSecondsSinceArrival) {
  ScriptedServer s{ScriptedOptions()};
  for (const bool incremental : {false, true}) {
    std::map<std::int64_t, double> seconds;
    for (const PlainJson& e : stream(s, scored({"ab", "cd"}, 2, 5), incremental)) {
      const double got = e["meta_info"]["e2e_latency"];
      EXPECT_GT(got, 0);
      EXPECT_GE(got, seconds[index_of(e)]);
      seconds[index_of(e)] = got;
    }
    EXPECT_EQ(seconds.size(), 4u);
  }
}

// As in SGLang, the length counts all tokens so far, in events with parts, too.
TEST(GenerateStreams, TheLengthCountsAllTokens) {
  ScriptedOptions options;
  options.server.stream_interval = 3;
  ScriptedServer s(options);
  for (const bool incremental : {false, true}) {
    std::size_t before = 0;
    for (const PlainJson& e : stream(s, scored("ab", 1, 11), incremental)) {
      const PlainJson& info = e["meta_info"];
      if (!incremental) before = 0;
      before += info["output_token_logprobs"].size();
      EXPECT_EQ(info["output_token_logprobs_length"], before);
      EXPECT_EQ(info["completion_tokens"], before);
    }
    EXPECT_EQ(before, 11u);
  }
}

}  // namespace
}  // namespace lathe
