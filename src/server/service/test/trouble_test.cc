// Engines that fail, hang, run out of pages or are stopped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <thread>

#include "server/scripted/test/http_client_test_util.h"
#include "server/scripted/test/step_gate_test_util.h"
#include "server/service/service.h"

namespace lathe {
namespace {

using ::testing::HasSubstr;

TEST(Trouble, AStepThatFailsOnceIsNoticedByNobody) {
  GatedServer s;
  TestConnection c(s.port());
  c.send(request_text("POST", "/v1/completions", completion("a", 10)));
  s.gate.wait_begun(1);
  s.gate.fail(1);
  s.gate.open();
  EXPECT_THAT(c.read_answer(), HasSubstr(scripted_text("a", 10)));
  EXPECT_ALIVE(s);
}

TEST(Trouble, AnEngineThatFailsEndsAllRequestsAndTheServer) {
  GatedServer s;
  TestConnection whole(s.port()), stream(s.port()), message(s.port());
  whole.send(request_text("POST", "/v1/completions", completion("a", 100)));
  s.gate.wait_begun(1);
  stream.send(request_text("POST", "/v1/completions", completion("b", 100, R"(,"stream":true)")));
  message.send(
      request_text("POST", "/v1/messages",
                   R"({"messages":[{"role":"user","content":"c"}],"max_tokens":100,"stream":true})",
                   "X-Request-Id: mine\r\n"));
  EXPECT_TRUE(comes([&] { return metric(s.port(), "lathe_queued_tokens") == 3; }));
  s.gate.pass(1);
  s.gate.wait_begun(2);
  s.gate.pass(1);
  stream.read_until(" w34");
  message.read_until(" w35");
  s.gate.wait_begun(3);
  s.gate.fail(1000);
  s.gate.open();
  const TestAnswer answer = read_test_answer(whole.read_answer());
  EXPECT_EQ(answer.status, 500);
  EXPECT_EQ(answer.json()["error"]["code"], "engine_error");
  const TestAnswer events = read_test_answer(stream.read_all());
  ASSERT_FALSE(events.events().empty());
  EXPECT_EQ(events.events().back()["error"]["code"], "engine_error");
  EXPECT_TRUE(events.body.ends_with("data: [DONE]\n\n"));
  // As Anthropic's errors have it, in a stream, too.
  const TestAnswer told = read_test_answer(message.read_all());
  EXPECT_THAT(told.body, HasSubstr("event: error\ndata: {\"type\":\"error\""));
  EXPECT_THAT(told.body, testing::EndsWith("\"request_id\":\"mine\"}\n\n"));
  EXPECT_EQ(s.server->server().wait(), 1);
}

// The first in a second is logged, all are counted.
TEST(Trouble, ExceptionsThatEndConnectionsAreCountedAndLogged) {
  const auto tokenizer = Tokenizer::parse(R"({"model": {"type": "BPE", "vocab": {"a": 0},
      "merges": []}})");
  ASSERT_TRUE(tokenizer) << tokenizer.error().message();
  for (const int threads : {1, 2}) {
    const ScriptedOptions options;
    auto http = HttpServer::bind("127.0.0.1", 0, "", options.server.http, threads);
    ASSERT_TRUE(http);
    Service::Routes routes{[](Service& service, HttpRequest request, std::shared_ptr<Reply> reply) {
                             if (request.path != "/metrics") throw std::runtime_error("a\nmistake");
                             reply->text(service.metrics_page());
                           },
                           [](const Service&, const HttpRequest&) { return true; },
                           [](std::string_view) -> Reply::ErrorBody { return nullptr; }};
    Service service(options.server, std::move(*http), *tokenizer, nullptr, routes);
    testing::internal::CaptureStderr();
    std::thread thread([&] { service.run(); });
    const int port = service.http().port();
    constexpr int kMany = 200;
    for (int i = 0; i < kMany; ++i) EXPECT_EQ(ask(port, "GET", "/").status, 0);
    EXPECT_TRUE(comes([&] { return metric(port, "lathe_connection_failures_total") == kMany; }));
    service.http().post([&] { service.end(0); });
    thread.join();
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_THAT(log, HasSubstr("an exception ended a connection: a\\x0amistake;"));
    EXPECT_LT(std::count(log.begin(), log.end(), '\n'), kMany / 2);
  }
}

TEST(Trouble, AFailedEngineCanStillSaySo) {
  ScriptedOptions options;
  options.server.no_exit_on_failure = true;
  GatedServer s(std::move(options));
  s.gate.fail(1000);
  s.gate.open();
  EXPECT_EQ(ask(s.port(), "POST", "/v1/completions", completion("a", 3)).status, 500);
  const TestAnswer health = ask(s.port(), "GET", "/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.json()["status"], "failed");
  EXPECT_EQ(ask(s.port(), "POST", "/v1/completions", completion("a", 3)).status, 503);
}

TEST(Trouble, AnEngineThatHangsIsStuck) {
  ScriptedOptions options;
  options.server.watchdog_timeout = 3;  // more than a busy machine needs for a step
  GatedServer s(std::move(options));
  TestConnection stream(s.port()), whole(s.port());
  stream.send(request_text("POST", "/v1/completions", completion("a", 50, R"(,"stream":true)")));
  s.gate.pass(1);
  s.gate.wait_begun(2);
  whole.send(request_text("POST", "/v1/completions", completion("b", 50)));
  EXPECT_TRUE(comes([&] { return ask(s.port(), "GET", "/health").status == 503; }));
  EXPECT_EQ(ask(s.port(), "GET", "/health").json()["status"], "stuck");
  EXPECT_EQ(ask(s.port(), "GET", "/ready").status, 503);
  EXPECT_EQ(read_test_answer(stream.read_until("\r\n0\r\n\r\n")).events().back()["error"]["code"],
            "engine_stuck");
  const TestAnswer late = read_test_answer(whole.read_answer());
  EXPECT_EQ(late.status, 503);
  EXPECT_EQ(late.json()["error"]["code"], "engine_stuck");
  EXPECT_EQ(ask(s.port(), "POST", "/v1/completions", completion("a", 3)).status, 503);
  s.gate.open();
  EXPECT_TRUE(comes([&] { return ask(s.port(), "GET", "/health").status == 200; }));
  EXPECT_ALIVE(s);
}

TEST(Trouble, AStepMayTakeLong) {
  GatedServer s;
  TestConnection c(s.port());
  c.send(request_text("POST", "/v1/completions", completion("a", 2)));
  s.gate.wait_begun(1);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(ask(s.port(), "GET", "/health").status, 200);
  s.gate.open();
  EXPECT_THAT(c.read_answer(), HasSubstr(scripted_text("a", 2)));
}

// After an N the model's logits are NaN.
TEST(Trouble, NumbersThatAreNoneEndThatRequestAlone) {
  ScriptedOptions options;
  options.next = [](std::int32_t token, std::int32_t) {
    return token == 'N' ? kScriptVocab : token < kFirstWord ? kFirstWord : token + 1;
  };
  ScriptedServer s(std::move(options));
  TestConnection good(s.port()), bad(s.port()), streamed(s.port());
  good.send(request_text("POST", "/v1/completions", completion("a", 20)));
  bad.send(request_text("POST", "/v1/completions", completion("N", 20)));
  streamed.send(request_text("POST", "/v1/completions", completion("N", 20, R"(,"stream":true)")));
  const TestAnswer answer = read_test_answer(bad.read_answer());
  EXPECT_EQ(answer.status, 500);
  EXPECT_EQ(answer.json()["error"]["code"], "not_finite");
  // No event has been sent, so a stream fails with a status like a whole answer.
  EXPECT_EQ(read_test_answer(streamed.read_answer()).status, 500);
  EXPECT_EQ(read_test_answer(good.read_answer()).json()["choices"][0]["text"],
            scripted_text("@", 20));
}

TEST(Trouble, PreemptedStreamsLoseAndRepeatNothing) {
  ScriptedOptions options;
  options.max_total_tokens = 640;
  GatedServer s(std::move(options));
  std::vector<TestAnswer> got(32);
  std::vector<std::thread> threads;
  const auto prompt = [](std::size_t i) {
    return std::string(5 + i, static_cast<char>('a' + i % 26));
  };
  for (std::size_t i = 0; i < got.size(); ++i) {
    threads.emplace_back([&, i] {
      got[i] = ask(s.port(), "POST", "/v1/completions",
                   completion(prompt(i), 100 + static_cast<int>(i), R"(,"stream":true)"));
    });
  }
  // All arrive before the first step ends, so that they compete for pages.
  EXPECT_TRUE(comes([&] { return metric(s.port(), "lathe_queued_tokens") == 32 * 5 + 31 * 16; }));
  s.gate.open();
  for (std::thread& t : threads) t.join();
  for (std::size_t i = 0; i < got.size(); ++i) {
    std::string text;
    for (const auto& e : got[i].events()) text += e["choices"][0]["text"].get<std::string>();
    EXPECT_EQ(text, scripted_text(prompt(i), 100 + static_cast<std::int64_t>(i)));
  }
  EXPECT_GT(metric(s.port(), "lathe_preemptions_total"), 0);
  EXPECT_ALIVE(s);
}

TEST(Trouble, BeforeTheModelIsLoaded) {
  ScriptedServer s(ScriptedOptions(), /*load=*/false);
  const TestAnswer health = ask(s.port(), "GET", "/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.json()["status"], "loading");
  EXPECT_EQ(ask(s.port(), "GET", "/ready").status, 503);
  EXPECT_EQ(ask(s.port(), "GET", "/").status, 200);
  EXPECT_EQ(ask(s.port(), "GET", "/version").status, 200);
  for (const char* path : {"/v1/models", "/metrics", "/plan", "/server_info"}) {
    const TestAnswer answer = ask(s.port(), "GET", path);
    EXPECT_EQ(answer.status, 503) << path;
    EXPECT_EQ(answer.json()["error"]["code"], "loading");
    EXPECT_THAT(answer.head, HasSubstr("Retry-After: 1"));
  }
  s.server().set_progress(30, 100);
  EXPECT_THAT(ask(s.port(), "POST", "/v1/completions", completion("a", 3)).body, HasSubstr("30 %"));
  s.serve();
  EXPECT_TRUE(comes([&] { return ask(s.port(), "GET", "/ready").status == 200; }));
  EXPECT_ALIVE(s);
}

TEST(TroubleDeathTest, ASignalEndsLoading) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ScriptedServer s(ScriptedOptions(), /*load=*/false);
        ask(s.port(), "GET", "/health");  // make sure that it serves
        kill(getpid(), SIGTERM);
        s.server().wait();
        _exit(9);
      },
      testing::ExitedWithCode(0), "");
}

TEST(Trouble, ASignalEndsAnIdleServer) {
  ScriptedServer s{ScriptedOptions()};
  TestConnection kept(s.port());
  kept.send(request_text("GET", "/health"));
  kept.read_answer();
  kill(getpid(), SIGTERM);
  EXPECT_EQ(s.server().wait(), 0);
  EXPECT_EQ(kept.read_some(), "");
}

TEST(Trouble, ASignalLetsPrefillAndStreamsEnd) {
  ScriptedOptions options;
  options.chunked_prefill_size = 16;
  options.max_running_requests = 2;
  options.server.shutdown_timeout = 600;
  GatedServer s(std::move(options));
  TestConnection stream(s.port()), prefill(s.port()), waiting(s.port()), kept(s.port());
  stream.send(request_text("POST", "/v1/completions", completion("a", 30, R"(,"stream":true)")));
  s.gate.wait_begun(1);
  prefill.send(request_text("POST", "/v1/completions", completion(std::string(100, 'b'), 4)));
  EXPECT_TRUE(comes([&] { return metric(s.port(), "lathe_queued_tokens") == 101; }));
  s.gate.pass(1);
  s.gate.wait_begun(2);
  waiting.send(request_text("POST", "/v1/completions", completion("cc", 4)));
  EXPECT_TRUE(comes([&] { return metric(s.port(), "lathe_queued_tokens") == 102; }));
  kept.send(request_text("GET", "/health"));
  kept.read_answer();
  s.gate.pass(1);
  s.gate.wait_begun(3);
  kill(getpid(), SIGTERM);
  const TestAnswer refused = read_test_answer(waiting.read_all());
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.json()["error"]["code"], "draining");
  EXPECT_THAT(refused.head, HasSubstr("Retry-After: 5"));
  EXPECT_EQ(kept.read_some(), "");
  EXPECT_FALSE(TestConnection(s.port()).connected());
  s.gate.open();
  std::string text;
  for (const auto& e : read_test_answer(stream.read_all()).events()) {
    text += e["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, scripted_text("a", 30));
  EXPECT_THAT(prefill.read_all(), HasSubstr(scripted_text("b", 4)));
  EXPECT_EQ(s.server->server().wait(), 0);
}

TEST(Trouble, ASlowClientDoesNotHoldUpTheEnd) {
  ScriptedOptions options;
  options.server.shutdown_timeout = 0;
  GatedServer s(std::move(options));
  TestConnection slow(s.port(), 4096);
  slow.send(request_text("POST", "/v1/completions", completion("a", 10000, R"(,"stream":true)")));
  s.gate.wait_begun(1);
  s.gate.open();
  slow.read_until(" w40");
  kill(getpid(), SIGTERM);
  EXPECT_EQ(s.server->server().wait(), 0);
}

}  // namespace
}  // namespace lathe
