// Answers: streams and whole answers agree, however tokens split a text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <map>
#include <set>

#include "io/text/utf8.h"
#include "server/scripted/scripted_server.h"
#include "server/scripted/test/http_client_test_util.h"

namespace lathe {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// A model that repeats `text` after a one-byte prompt, one byte per token.
ScriptedOptions writes(const std::string& text) {
  ScriptedOptions options;
  options.next = [text](std::int32_t, std::int32_t position) {
    return std::int32_t{
        static_cast<unsigned char>(text[static_cast<std::size_t>(position) % text.size()])};
  };
  return options;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Char c = utf8_front(text);
    if (!c.valid) return false;
    text.remove_prefix(static_cast<std::size_t>(c.size));
  }
  return true;
}

std::string joined(const TestAnswer& answer) {
  std::string out;
  for (const auto& e : answer.events()) {
    const std::string part = e["choices"][0]["text"];
    EXPECT_TRUE(is_utf8(part)) << part;
    out += part;
  }
  return out;
}

TEST(Answers, CharactersAreNeverCut) {
  const std::string text = "aé€😀ß\u2028.";
  ScriptedServer s(writes(text));
  for (int n = 1; n <= static_cast<int>(text.size()) + 3; ++n) {
    const TestAnswer whole = ask(s.port(), "POST", "/v1/completions", completion("x", n));
    ASSERT_EQ(whole.status, 200) << whole.body;
    const std::string all = whole.json()["choices"][0]["text"];
    EXPECT_TRUE(is_utf8(all));
    EXPECT_EQ(
        joined(ask(s.port(), "POST", "/v1/completions", completion("x", n, R"(,"stream":true)"))),
        all);
    if (n == static_cast<int>(text.size())) {
      EXPECT_EQ(all, text);
    }
  }
}

// More events than are sent in one batch.
TEST(Answers, AStepOfManyAnswersReachesAll) {
  ScriptedOptions options;
  options.max_running_requests = 384;
  ScriptedServer s(std::move(options));
  const std::string body = R"({"prompt":["ax","by","cz"],"n":128,"max_tokens":6,"stream":true})";
  std::map<std::int64_t, std::string> texts;
  for (const auto& e : ask(s.port(), "POST", "/v1/completions", body).events()) {
    texts[e["choices"][0]["index"]] += e["choices"][0]["text"];
  }
  ASSERT_EQ(texts.size(), 384u);
  for (const auto& [index, text] : texts) {
    EXPECT_EQ(text, scripted_text(index < 128 ? "x" : index < 256 ? "y" : "z", 6)) << index;
  }
}

// The engine makes one token for an answer of none, and that may be a stop token.
TEST(Answers, AnEchoAloneEndsByItsLength) {
  ScriptedOptions options;
  options.next = [](std::int32_t, std::int32_t) { return std::int32_t{'\n'}; };
  ScriptedServer s(options);
  const TestAnswer answer =
      ask(s.port(), "POST", "/v1/completions",
          R"({"prompt":"a","echo":true,"max_tokens":0,"stop_token_ids":[10]})");
  const auto choice = answer.json()["choices"][0];
  EXPECT_EQ(choice["text"], "a");
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["matched_stop"], nullptr);
}

// A prompt without an answer may fill the context. SGLang's clients score texts in this way.
TEST(Answers, APromptAloneFillsTheContext) {
  ScriptedOptions options;
  options.context = 64;
  ScriptedServer s(options);
  const auto answer = [&](const char* path, const std::string& body) {
    return ask(s.port(), "POST", path, body);
  };
  const auto completions = [&](int tokens, const char* more) {
    return answer("/v1/completions", fmt::format(R"({{"prompt":"{}","echo":true{}}})",
                                                 std::string(tokens, 'a'), more));
  };
  for (const int tokens : {63, 64}) {
    for (const char* more :
         {R"(,"max_tokens":0,"logprobs":1)", R"(,"max_tokens":0,"logprobs":1,"n":2)",
          R"(,"max_tokens":0,"logprobs":1,"stream":true)"}) {
      const TestAnswer whole = completions(tokens, more);
      ASSERT_EQ(whole.status, 200) << whole.body;
      const bool stream = whole.body.starts_with("data:");
      const auto choice = stream ? whole.events()[0]["choices"][0] : whole.json()["choices"][0];
      EXPECT_EQ(choice["text"], std::string(tokens, 'a'));
      EXPECT_EQ(std::ssize(choice["logprobs"]["token_logprobs"]), tokens);
      if (stream) continue;
      EXPECT_EQ(whole.json()["usage"]["completion_tokens"], 0);
    }
  }
  EXPECT_EQ(completions(80, R"(,"max_tokens":0,"truncate_prompt_tokens":-1)")
                .json()["usage"]["prompt_tokens"],
            64);
  const auto refused = [](const TestAnswer& got, const char* param) {
    EXPECT_EQ(got.status, 400);
    EXPECT_EQ(got.json()["error"]["code"], "context_length_exceeded");
    EXPECT_EQ(got.json()["error"]["param"], param);
    return got.json()["error"]["message"].get<std::string>();
  };
  EXPECT_THAT(refused(completions(65, R"(,"max_tokens":0)"), "prompt"),
              ::testing::HasSubstr("wanted at most 64 tokens, got 65"));
  EXPECT_THAT(refused(completions(64, R"(,"max_tokens":1)"), "prompt"),
              ::testing::HasSubstr("at most 63 tokens, so that one of the answer fits, got 64"));
}

// A choice's echo waits for its prompt's log-probabilities, whichever choice has a token first.
TEST(Answers, EchoesOfAStreamAreWhole) {
  for (const std::int64_t chunk : {4, 7, 10, 8192}) {
    ScriptedOptions options;
    options.chunked_prefill_size = chunk;
    ScriptedServer s(options);
    for (const int n : {1, 3}) {
      for (const int answer : {0, 3}) {
        SCOPED_TRACE(::testing::Message() << chunk << ", n " << n << ", " << answer);
        const std::string body = fmt::format(
            R"({{"prompt":["abcdef","ghijkl","mnopqr"],"echo":true,"logprobs":0,"stream":true,)"
            R"("n":{},"max_tokens":{}}})",
            n, answer);
        std::map<std::int64_t, std::string> texts;
        std::map<std::int64_t, std::size_t> scores;
        std::map<std::int64_t, int> ends;
        for (const auto& e : ask(s.port(), "POST", "/v1/completions", body).events()) {
          const auto& choice = e["choices"][0];
          const std::int64_t index = choice["index"];
          EXPECT_EQ(ends[index], 0) << "an event after the end";
          texts[index] += choice["text"];
          if (choice["logprobs"].is_object()) {
            scores[index] += choice["logprobs"]["token_logprobs"].size();
          }
          ends[index] += choice["finish_reason"].is_null() ? 0 : 1;
        }
        ASSERT_EQ(texts.size(), 3u * static_cast<unsigned>(n));
        for (const auto& [index, text] : texts) {
          const std::string prompt = index < n ? "abcdef" : index < 2 * n ? "ghijkl" : "mnopqr";
          EXPECT_EQ(text, prompt + scripted_text(prompt.substr(5), answer)) << index;
          EXPECT_EQ(scores[index], 6u + static_cast<unsigned>(answer)) << index;
          EXPECT_EQ(ends[index], 1) << index;
        }
      }
    }
  }
}

TEST(Answers, GenerateMayAskForNoAnswer) {
  ScriptedOptions options;
  options.context = 64;
  ScriptedServer s(options);
  const std::string full(64, 'a'), scored = R"("return_logprob":true,"logprob_start_len":0)";
  const TestAnswer one = ask(s.port(), "POST", "/generate",
                             fmt::format(R"({{"text":"{}",{},"sampling_params":{{)"
                                         R"("max_new_tokens":0}}}})",
                                         full, scored));
  ASSERT_EQ(one.status, 200) << one.body;
  const auto info = one.json()["meta_info"];
  EXPECT_EQ(one.json()["text"], "");
  EXPECT_TRUE(one.json()["output_ids"].empty());
  EXPECT_EQ(info["input_token_logprobs"].size(), 64u);
  EXPECT_TRUE(info["output_token_logprobs"].empty());
  EXPECT_EQ(info["completion_tokens"], 0);
  EXPECT_EQ(info["finish_reason"], nlohmann::json({{"type", "length"}, {"length", 0}}));
  const auto last = ask(s.port(), "POST", "/generate",
                        fmt::format(R"({{"text":"{}",{},"stream":true,"sampling_params":{{)"
                                    R"("max_new_tokens":0}}}})",
                                    full, scored))
                        .events()
                        .back();
  EXPECT_EQ(last["meta_info"]["input_token_logprobs"], info["input_token_logprobs"]);
  // Each prompt has its own length.
  const auto both = ask(s.port(), "POST", "/generate",
                        fmt::format(R"({{"text":["{}","ab"],"sampling_params":)"
                                    R"([{{"max_new_tokens":0}},{{"max_new_tokens":3}}]}})",
                                    full))
                        .json();
  ASSERT_EQ(both.size(), 2u) << both;
  EXPECT_EQ(both[0]["text"], "");
  EXPECT_EQ(both[1]["text"], scripted_text("b", 3));
}

// Tokens are bytes on one server, words on the other.
TEST(Answers, StopStringsAreFoundAcrossTokens) {
  const std::string text = scripted_text("x", 20);
  ScriptedServer bytes(writes(text)), words{ScriptedOptions()};
  for (std::size_t at = 0; at < 24; ++at) {
    for (std::size_t size : {1u, 2u, 3u, 5u, 9u}) {
      const std::string stop = text.substr(at, size);
      const std::string wanted = text.substr(0, text.find(stop));
      for (ScriptedServer* s : {&bytes, &words}) {
        const int tokens = s == &bytes ? static_cast<int>(text.size()) : 20;
        const std::string more = fmt::format(R"(,"stop":["never","{}"])", stop);
        const TestAnswer whole =
            ask(s->port(), "POST", "/v1/completions", completion("x", tokens, more));
        const auto choice = whole.json()["choices"][0];
        EXPECT_EQ(choice["text"], wanted);
        EXPECT_EQ(choice["finish_reason"], "stop");
        EXPECT_EQ(choice["matched_stop"], stop);
        EXPECT_EQ(joined(ask(s->port(), "POST", "/v1/completions",
                             completion("x", tokens, more + R"(,"stream":true)"))),
                  wanted);
      }
    }
  }
  // An incomplete stop string is part of the answer.
  for (ScriptedServer* s : {&bytes, &words}) {
    const int tokens = s == &bytes ? static_cast<int>(text.size()) : 20;
    const std::string more =
        fmt::format(R"(,"stream":true,"stop":"{}x")", text.substr(text.size() - 9));
    EXPECT_EQ(joined(ask(s->port(), "POST", "/v1/completions", completion("x", tokens, more))),
              text);
    EXPECT_ALIVE(words);
  }
}

// A stop string may end a burst of accepted drafts at its first token, its last or between, inside
// a character or beyond the burst. A client sees the same text and token count as without drafts.
TEST(Answers, StopStringsEndBursts) {
  const std::string text = "the cat, aé€😀ß; the cat sat. ";
  ScriptedOptions with_drafts = writes(text);
  with_drafts.draft = "ngram";
  ScriptedServer plain(writes(text)), drafts(std::move(with_drafts));
  // The text repeats, so all of it can be drafted.
  const std::string prompt = "x" + text;
  const int tokens = static_cast<int>(text.size());
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (std::size_t size : {1u, 2u, 4u, 9u}) {
      const std::string stop = text.substr(at, size);
      if (!is_utf8(stop)) continue;
      for (const char* more : {"", R"(,"stream":true,"stream_options":{"include_usage":true})"}) {
        const std::string body =
            completion(prompt, tokens, fmt::format(R"(,"logprobs":1,"stop":"{}"{})", stop, more));
        const auto seen = [&](ScriptedServer& s) {
          const TestAnswer answer = ask(s.port(), "POST", "/v1/completions", body);
          EXPECT_EQ(answer.status, 200) << answer.body;
          std::vector<nlohmann::json> out;
          if (*more == '\0') {
            out = {answer.json()["choices"], answer.json()["usage"]};
          } else {
            for (const auto& e : answer.events()) {
              out.insert(out.end(), {e["choices"], e.value("usage", nlohmann::json())});
            }
          }
          for (nlohmann::json& j : out) {
            if (j.is_object()) j.erase("prompt_tokens_details");  // depends on the prefix cache
          }
          return out;
        };
        EXPECT_EQ(seen(drafts), seen(plain)) << stop;
      }
    }
  }
  const std::string metrics = ask(drafts.port(), "GET", "/metrics", "").body;
  EXPECT_THAT(metrics, ::testing::HasSubstr("lathe_accepted_drafts_total{place=\"4\"}"));
}

TEST(Answers, RequestsWithOneNameAreMany) {
  ScriptedServer s{ScriptedOptions()};
  std::vector<TestAnswer> got(100);
  std::vector<std::thread> threads;
  const auto prompt = [](std::size_t i) { return std::string(1, static_cast<char>('0' + i % 64)); };
  for (std::size_t i = 0; i < got.size(); ++i) {
    threads.emplace_back([&, i] {
      got[i] = ask(s.port(), "POST", "/generate",
                   fmt::format(R"({{"text":"{}","rid":"same","sampling_params":)"
                               R"({{"max_new_tokens":12,"ignore_eos":true}}}})",
                               prompt(i) == "\\" ? "\\\\" : prompt(i)),
                   "X-Request-Id: same\r\n");
    });
  }
  for (std::thread& t : threads) t.join();
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].status, 200) << got[i].body;
    EXPECT_EQ(got[i].json()["text"], scripted_text(prompt(i), 12));
    EXPECT_EQ(got[i].json()["meta_info"]["id"], "same");
  }
  EXPECT_ALIVE(s);
}

// Reasoning and every kind of tool call, one byte per token: the parts of a stream add up to the
// whole answer.
TEST(Answers, CallsAndReasoningOfAStreamAreThoseOfTheWhole) {
  const std::string text =
      "<think>why</think>ok <tool_call>{\"name\": \"f\", \"arguments\": {\"x\": [1, \"é\"]}}"
      "</tool_call><tool_call><function=f><parameter=x>1</parameter></function></tool_call>";
  ScriptedOptions options = writes(text);
  options.template_prefix = "{# </think> <tool_call> #}";
  ScriptedServer s(std::move(options));
  const std::string body = fmt::format(
      R"({{"messages":[{{"role":"user","content":"x"}}],"max_tokens":{},"ignore_eos":true,)"
      R"("tools":[{{"type":"function","function":{{"name":"f","parameters":{{}}}}}}])",
      text.size());
  const auto message =
      ask(s.port(), "POST", "/v1/chat/completions", body + "}").json()["choices"][0]["message"];
  EXPECT_EQ(message["reasoning"], "why");
  EXPECT_EQ(message["content"], "ok");
  ASSERT_EQ(message["tool_calls"].size(), 2u);
  std::string reasoning, content;
  std::map<int, std::string> names, arguments;
  const TestAnswer stream =
      ask(s.port(), "POST", "/v1/chat/completions", body + R"(,"stream":true})");
  for (const auto& e : stream.events()) {
    const auto& delta = e["choices"][0]["delta"];
    reasoning += delta.value("reasoning", "");
    content += delta.value("content", "");
    for (const auto& call : delta.value("tool_calls", nlohmann::json::array())) {
      const int index = call["index"];
      names[index] += call["function"].value("name", "");
      arguments[index] += call["function"].value("arguments", "");
    }
  }
  EXPECT_EQ(reasoning, "why");
  EXPECT_EQ(content, "ok");
  for (int i : {0, 1}) {
    const auto& call = message["tool_calls"][static_cast<std::size_t>(i)]["function"];
    EXPECT_EQ(names[i], call["name"]);
    EXPECT_EQ(arguments[i], call["arguments"]);
    EXPECT_TRUE(nlohmann::json::accept(arguments[i]));
  }
}

// Constraints are honoured or rejected, never ignored.
TEST(Answers, ConstraintsAreNotDropped) {
  ScriptedServer s{ScriptedOptions()};
  const std::string chat = R"({"messages":[{"role":"user","content":"a"}],)";
  const std::string text = R"({"prompt":"a",)";
  for (const std::string field :
       {"ebnf", "grammar", "guided_json", "guided_regex", "guided_choice", "guided_grammar"}) {
    const bool schema = field == "guided_json";  // with an unknown keyword
    const std::string at = schema ? field + ".a" : field;
    const std::string one = fmt::format(R"("{}":{{"a":1}}}})", field);
    for (const auto& [path, body, param] :
         {std::tuple{"/v1/chat/completions", chat + one, at},
          std::tuple{"/v1/completions", text + one, at},
          std::tuple{"/generate", R"({"text":"a","sampling_params":{)" + one + "}",
                     "sampling_params." + at}}) {
      const TestAnswer answer = ask(s.port(), "POST", path, body);
      EXPECT_EQ(answer.status, 400) << path << field;
      EXPECT_EQ(answer.json()["error"]["param"], param);
      EXPECT_EQ(answer.json()["error"]["code"], schema ? "unsupported_schema" : "invalid_value");
    }
  }
  for (const char* format : {R"({"type":"grammar"})", R"({})"}) {
    for (const auto& [path, body] :
         {std::pair{"/v1/chat/completions", chat}, std::pair{"/v1/completions", text}}) {
      const TestAnswer answer =
          ask(s.port(), "POST", path, fmt::format(R"({}"response_format":{}}})", body, format));
      EXPECT_EQ(answer.status, 400) << path << format;
      EXPECT_EQ(answer.json()["error"]["param"], "response_format.type");
    }
  }
  EXPECT_ALIVE(s);
}

// A template that loops, writes without end or raises, depending on the request.
TEST(Answers, TemplatesEndWhateverRequestsBring) {
  ScriptedOptions options;
  options.template_prefix =
      "{% if bomb %}{% for a in range(bomb) %}{% for b in range(bomb) %}{% for c in range(bomb) %}"
      "{% endfor %}{% endfor %}{% endfor %}{% endif %}"
      "{% if big %}{% for a in range(big) %}{{ 'x' * 100000 }}{% endfor %}{% endif %}"
      "{% if wrong %}{{ raise_exception('no ' ~ wrong) }}{% endif %}";
  ScriptedServer s(std::move(options));
  TestConnection other(s.port());
  other.send(request_text("POST", "/v1/completions", completion("a", 500)));
  for (const char* kwargs : {R"({"bomb":100000})", R"({"big":1000000})", R"({"wrong":"way"})"}) {
    const TestAnswer answer = ask(
        s.port(), "POST", "/v1/chat/completions",
        fmt::format(R"({{"messages":[{{"role":"user","content":"a"}}],"chat_template_kwargs":{}}})",
                    kwargs));
    EXPECT_EQ(answer.status, 400) << answer.body;
    EXPECT_EQ(answer.json()["error"]["code"], "template_error");
  }
  for (const char* own : {"messages", "tools", "add_generation_prompt"}) {
    const TestAnswer answer = ask(
        s.port(), "POST", "/v1/chat/completions",
        fmt::format(
            R"({{"messages":[{{"role":"user","content":"a"}}],"chat_template_kwargs":{{"{}":[]}}}})",
            own));
    EXPECT_EQ(answer.json()["error"]["param"], fmt::format("chat_template_kwargs.{}", own));
  }
  EXPECT_EQ(read_test_answer(other.read_answer()).json()["choices"][0]["text"],
            scripted_text("a", 500));
  EXPECT_ALIVE(s);
}

// Tokens that the vocabulary does not have, by the paths of the fields.
TEST(Answers, TokensBeyondTheVocabularyAreNamed) {
  ScriptedServer s{ScriptedOptions()};
  const std::string chat = R"({"messages":[{"role":"user","content":"a"}],"max_tokens":2,)";
  const std::tuple<const char*, std::string, const char*> cases[] = {
      {"/v1/completions", R"({"prompt":"a","stop_token_ids":[1,99999]})", "stop_token_ids[1]"},
      {"/v1/completions", R"({"prompt":"a","logit_bias":{"1":1,"99999":1}})", "logit_bias.99999"},
      {"/v1/completions", R"({"prompt":"a","allowed_token_ids":[99999]})", "allowed_token_ids[0]"},
      {"/v1/chat/completions", chat + R"("stop_token_ids":[99999]})", "stop_token_ids[0]"},
      {"/v1/messages", chat + R"("stop_token_ids":[99999]})", "stop_token_ids[0]"},
      {"/v1/responses", R"({"input":"a","stop_token_ids":[99999]})", "stop_token_ids[0]"},
      {"/generate", R"({"text":"a","sampling_params":{"stop_token_ids":[99999]}})",
       "sampling_params.stop_token_ids[0]"},
      {"/generate", R"({"text":["a","b"],"sampling_params":[{},{"logit_bias":{"99999":1}}]})",
       "sampling_params[1].logit_bias.99999"},
      {"/generate", R"({"text":"a","return_logprob":true,"token_ids_logprob":[99999]})",
       "token_ids_logprob[0]"}};
  for (const auto& [path, body, param] : cases) {
    const TestAnswer answer = ask(s.port(), "POST", path, body);
    EXPECT_EQ(answer.status, 400) << body;
    EXPECT_THAT(answer.body, testing::HasSubstr(std::string(param) + ": wanted")) << body;
  }
}

// min_tokens holds for stop strings in every route.
TEST(Answers, B6StopStringsWaitForMinTokens) {
  ScriptedServer s(writes("ab."));
  const auto text = [&](const std::string& path, const std::string& body) {
    const TestAnswer answer = ask(s.port(), "POST", path, body);
    const auto json = answer.json();
    if (path == "/generate") return json["text"].get<std::string>();
    const auto& choice = json["choices"][0];
    return (choice.contains("text") ? choice["text"] : choice["message"]["content"])
        .get<std::string>();
  };
  const std::string rest = R"("temperature":0,"max_tokens":20,"min_tokens":5,"stop":".")";
  EXPECT_EQ(text("/v1/completions", R"({"prompt":"q",)" + rest + "}"), "ab.ab");
  EXPECT_EQ(
      text("/v1/chat/completions", R"({"messages":[{"role":"user","content":"q"}],)" + rest + "}"),
      "ab.ab");
  EXPECT_EQ(text("/generate", R"({"text":"q","sampling_params":{"temperature":0,)"
                              R"("max_new_tokens":20,"min_new_tokens":5,"stop":"."}})"),
            "ab.ab");
  EXPECT_EQ(text("/v1/completions",
                 R"({"prompt":"q","temperature":0,"max_tokens":20,"min_tokens":3,"stop":"."})"),
            "ab");
}

// A stop string may cut a token: the next one begins after the end of the text.
TEST(Answers, A9OffsetsEndWithTheText) {
  ScriptedServer s{ScriptedOptions()};
  ASSERT_EQ(scripted_text("q", 3), " w49 w50 w51");
  for (const bool echo : {false, true}) {
    for (const bool stream : {false, true}) {
      const nlohmann::json body{{"prompt", "q"},  {"max_tokens", 9}, {"logprobs", 1},
                                {"stop", "0 w5"}, {"echo", echo},    {"stream", stream}};
      const TestAnswer answer = ask(s.port(), "POST", "/v1/completions", body.dump());
      ASSERT_EQ(answer.status, 200) << answer.body;
      std::string text;
      nlohmann::json offsets = nlohmann::json::array();
      for (const auto& part : stream ? answer.events() : std::vector{answer.json()}) {
        const nlohmann::json& choice = part["choices"][0];
        text += choice["text"];
        if (!choice["logprobs"].is_object()) continue;
        for (const auto& offset : choice["logprobs"]["text_offset"]) offsets.push_back(offset);
      }
      EXPECT_EQ(text, echo ? "q w49 w5" : " w49 w5");
      const auto wanted = echo ? nlohmann::json({0, 1, 5, 8}) : nlohmann::json({0, 4, 7});
      EXPECT_EQ(offsets, wanted) << answer.body;
    }
  }
}

// A client sees that its request was accepted, also where all tokens have no text.
TEST(Answers, AStreamBeginsWithTheFirstToken) {
  std::promise<void> seen;
  const std::shared_future<void> go_on = seen.get_future().share();
  std::atomic<bool> asked{false};
  std::atomic<int> steps{0};
  ScriptedOptions options;
  options.next = [](std::int32_t, std::int32_t) { return kScriptEos; };
  options.on_forward = [&](std::int64_t) -> Result<void> {
    if (asked && ++steps > 8) go_on.wait();
    return {};
  };
  ScriptedServer s(std::move(options));
  ASSERT_TRUE(comes([&] { return ask(s.port(), "GET", "/ready").status == 200; }));
  asked = true;
  TestConnection c(s.port());
  const std::string body = R"({"prompt":"a","max_tokens":30,"ignore_eos":true,"stream":true})";
  c.send(request_text("POST", "/v1/completions", body));
  EXPECT_THAT(c.read_until("\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
  seen.set_value();
  EXPECT_THAT(c.read_until("[DONE]"), HasSubstr(R"("finish_reason":"length")"));
}

TEST(Answers, EachStepWithoutTextHasItsUsage) {
  ScriptedOptions options;
  options.next = [](std::int32_t, std::int32_t) { return kScriptEos; };
  ScriptedServer s(std::move(options));
  for (const char* path : {"/v1/completions", "/v1/chat/completions"}) {
    const bool chat = path != std::string("/v1/completions");
    nlohmann::json body{{"max_tokens", 5},
                        {"ignore_eos", true},
                        {"stream", true},
                        {"stream_options", {{"continuous_usage_stats", true}}}};
    if (chat) {
      body["messages"] = {{{"role", "user"}, {"content", "a"}}};
    } else {
      body["prompt"] = "a";
    }
    const TestAnswer answer = ask(s.port(), "POST", path, body.dump());
    std::set<int> counts;
    for (const nlohmann::json& event : answer.events()) {
      const nlohmann::json& choice = event["choices"][0];
      EXPECT_EQ(chat ? choice["delta"].value("content", "") : choice["text"].get<std::string>(),
                "");
      counts.insert(event["usage"]["completion_tokens"].get<int>());
    }
    EXPECT_EQ(counts, (std::set<int>{1, 2, 3, 4, 5})) << answer.body;
  }
}

// OpenAI's text_offset indexes `text`, whatever tokens the prompt has and however it came.
TEST(Answers, A9OffsetsIndexTheText) {
  ScriptedServer s{ScriptedOptions()};
  const std::string eos = "<eos>";
  const auto choice_of = [&](const nlohmann::json& prompt, bool skip, bool stream) {
    const nlohmann::json body{{"prompt", prompt},   {"max_tokens", 3},
                              {"echo", true},       {"logprobs", 0},
                              {"ignore_eos", true}, {"skip_special_tokens", skip},
                              {"stream", stream}};
    const TestAnswer answer = ask(s.port(), "POST", "/v1/completions", body.dump());
    EXPECT_EQ(answer.status, 200) << answer.body;
    if (!stream) return answer.json()["choices"][0];
    nlohmann::json out{{"text", ""}, {"logprobs", {{"tokens", {}}, {"text_offset", {}}}}};
    for (const nlohmann::json& event : answer.events()) {
      const nlohmann::json& c = event["choices"][0];
      out["text"] = out["text"].get<std::string>() + c["text"].get<std::string>();
      if (!c["logprobs"].is_object()) continue;
      for (const char* list : {"tokens", "text_offset"}) {
        for (const auto& item : c["logprobs"][list]) out["logprobs"][list].push_back(item);
      }
    }
    return out;
  };
  const nlohmann::json ids = {'a', kScriptEos, 'b', 0xc3, 0xa9, 'c'};
  for (const bool stream : {false, true}) {
    for (const bool skip : {false, true}) {
      for (const nlohmann::json& prompt : {nlohmann::json("a" + eos + "b\u00e9c"), ids}) {
        const nlohmann::json choice = choice_of(prompt, skip, stream);
        SCOPED_TRACE(choice.dump());
        const bool shown = prompt.is_string() || !skip;
        const int n = shown ? 5 : 0;  // code points of <eos>
        const nlohmann::json offsets = choice["logprobs"]["text_offset"];
        ASSERT_EQ(offsets.size(), 9u);
        EXPECT_EQ(nlohmann::json(offsets.begin(), offsets.begin() + 7),
                  nlohmann::json({0, 1, 1 + n, 2 + n, 2 + n, 3 + n, 4 + n}));
        const std::string text = choice["text"];
        for (std::size_t i = 6; i < 9; ++i) {  // the answer's tokens; one character has two bytes
          const std::string token = choice["logprobs"]["tokens"][i];
          EXPECT_EQ(text.substr(offsets[i].get<std::size_t>() + 1, token.size()), token);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lathe
