// Streams of /generate: what their events repeat, and what they say of the prompt.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "server/scripted/scripted_server.h"
#include "server/scripted/test/http_client_test_util.h"

namespace lathe {
namespace {

using PlainJson = nlohmann::json;

// Lists of log-probabilities of a prompt in meta_info.
constexpr const char* kOfPrompt[] = {"input_token_logprobs", "input_top_logprobs",
                                     "input_token_ids_logprobs"};

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
  PlainJson body = scored(text, 2, 1);
  body["logprob_start_len"] = 3000;
  for (const char* more : {"top_logprobs_num", "token_ids_logprob"}) body.erase(more);
  std::set<std::int64_t> choices;
  for (const PlainJson& e : stream(s, body, false)) {
    EXPECT_EQ(e["meta_info"]["input_token_logprobs"].size(), 52000u);
    choices.insert(index_of(e));
  }
  EXPECT_EQ(choices.size(), 2u);
}

}  // namespace
}  // namespace lathe
