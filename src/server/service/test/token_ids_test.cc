// return_token_ids: the ids of a stream's events, joined, are those of the whole answer. vLLM has
// the prompt's in a choice's first event: of completions in the choice, of chat beside `choices`.
#include <gtest/gtest.h>

#include <map>

#include "server/scripted/scripted_server.h"
#include "server/scripted/test/http_client_test_util.h"

namespace lathe {
namespace {

using PlainJson = nlohmann::json;

struct Ids {
  PlainJson prompt, answer = PlainJson::array();
};

// By the choice's index. `holder`: the object that has the prompt's ids.
std::map<std::int64_t, Ids> ids_of(const std::vector<PlainJson>& answers, bool chat) {
  std::map<std::int64_t, Ids> out;
  for (const PlainJson& a : answers) {
    for (const PlainJson& c : a["choices"]) {
      Ids& ids = out[c["index"]];
      const PlainJson& holder = chat ? a : c;
      const PlainJson& other = chat ? c : a;
      EXPECT_FALSE(other.contains("prompt_token_ids")) << a;
      const bool first = ids.prompt.is_null();
      EXPECT_EQ(holder.contains("prompt_token_ids"), first) << a;
      if (first) ids.prompt = holder.value("prompt_token_ids", PlainJson());
      EXPECT_TRUE(c.contains("token_ids")) << a;
      for (const PlainJson& id : c.value("token_ids", PlainJson::array())) ids.answer.push_back(id);
    }
  }
  return out;
}

TEST(TokenIds, EventsHaveThoseOfTheWholeAnswer) {
  for (const std::int32_t interval : {1, 3}) {
    ScriptedOptions options;
    options.server.stream_interval = interval;
    ScriptedServer s(options);
    for (const char* more :
         {R"("max_tokens":7)", R"("max_tokens":7,"n":3)", R"("max_tokens":7,"logprobs":1)",
          R"("max_tokens":7,"echo":true)", R"("max_tokens":0,"echo":true)",
          R"("max_tokens":7,"echo":true,"logprobs":1,"n":2)", R"("max_tokens":7,"stop":" w")"}) {
      for (const bool chat : {false, true}) {
        const std::string_view form = more;
        if (chat && form.find("echo") != form.npos) continue;
        SCOPED_TRACE(::testing::Message() << more << ", chat " << chat);
        std::string asked = more;
        if (chat && form.find("logprobs") != form.npos) {
          asked = R"("max_tokens":7,"logprobs":true)";
        }
        const std::string body =
            fmt::format(R"({{"return_token_ids":true,{},{})", asked,
                        chat ? R"("messages":[{"role":"user","content":"hello"}])"
                             : R"("prompt":["hello","you"])");
        const char* path = chat ? "/v1/chat/completions" : "/v1/completions";
        const TestAnswer whole = ask(s.port(), "POST", path, body + "}");
        ASSERT_EQ(whole.status, 200) << whole.body;
        const auto want = ids_of({whole.json()}, chat);
        const auto got =
            ids_of(ask(s.port(), "POST", path, body + R"(,"stream":true})").events(), chat);
        ASSERT_EQ(got.size(), want.size());
        for (const auto& [index, ids] : want) {
          const bool second = !chat && index >= std::ssize(want) / 2;
          EXPECT_EQ(ids.prompt,
                    second ? PlainJson({'y', 'o', 'u'}) : PlainJson({'h', 'e', 'l', 'l', 'o'}));
          EXPECT_EQ(got.at(index).prompt, ids.prompt) << index;
          EXPECT_EQ(got.at(index).answer, ids.answer) << index;
        }
      }
    }
  }
}

// Also where a choice has no other event than its end.
TEST(TokenIds, AnEventWithoutTokensHasThePrompts) {
  ScriptedServer s{ScriptedOptions()};
  for (const bool asked : {false, true}) {
    const std::string body = fmt::format(
        R"({{"prompt":"ab","max_tokens":1,"stop":" w","stream":true,"return_token_ids":{}}})",
        asked);
    const auto events = ask(s.port(), "POST", "/v1/completions", body).events();
    ASSERT_FALSE(events.empty());
    for (const PlainJson& e : events) {
      const PlainJson& choice = e["choices"][0];
      EXPECT_EQ(choice.contains("prompt_token_ids"), asked && &e == &events[0]) << e;
      EXPECT_EQ(choice.contains("token_ids"), asked) << e;
    }
  }
}

}  // namespace
}  // namespace lathe
