// Connection threads: the server behaves the same with one thread and with several.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "server/scripted/test/http_client_test_util.h"
#include "server/scripted/test/step_gate_test_util.h"

namespace lathe {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

ScriptedOptions with_threads(int threads) {
  ScriptedOptions options;
  options.server.http_threads = threads;
  return options;
}

std::string text_of(const TestAnswer& answer) {
  std::string out;
  for (const auto& e : answer.events()) out += e["choices"][0]["text"];
  return out;
}

TEST(ConnectionThreads, ManyStreamsAndAnswersComeWhole) {
  ScriptedServer s(with_threads(3));
  std::vector<std::string> got(48);
  std::vector<std::thread> clients;
  for (std::size_t i = 0; i < got.size(); ++i) {
    clients.emplace_back([&, i] {
      const std::string prompt(1, static_cast<char>('a' + i % 26));
      const bool stream = i % 2 == 0;
      const TestAnswer answer = ask(s.port(), "POST", "/v1/completions",
                                    completion(prompt, 40, stream ? R"(,"stream":true)" : ""));
      got[i] = stream ? text_of(answer) : answer.json()["choices"][0]["text"].get<std::string>();
    });
  }
  for (std::thread& c : clients) c.join();
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i], scripted_text(std::string(1, static_cast<char>('a' + i % 26)), 40)) << i;
  }
  // One connection after the other, each reused.
  TestConnection c(s.port());
  for (int i = 0; i < 5; ++i) {
    c.send(request_text("POST", "/v1/completions", completion("k", 3)));
    EXPECT_THAT(c.read_answer(), HasSubstr(scripted_text("k", 3)));
  }
  EXPECT_ALIVE(s);
}

TEST(ConnectionThreads, ARequestWhoseClientLeavesEnds) {
  for (const bool stream : {true, false}) {
    GatedServer s(with_threads(2));
    TestConnection c(s.port());
    c.send(request_text("POST", "/v1/completions",
                        completion("a", 1000, fmt::format(R"(,"stream":{})", stream))));
    s.gate.pass(3);
    s.gate.wait_begun(4);
    c.close();
    EXPECT_TRUE(comes([&] { return metric(s.port(), "lathe_aborted_requests_total") == 1; }));
    const std::size_t begun = s.gate.begun();
    s.gate.open();
    EXPECT_TRUE(comes([&] { return metric(s.port(), "lathe_num_held_pages") == 0; }));
    EXPECT_LE(s.gate.begun(), begun + 1);
    EXPECT_ALIVE(s);
  }
}

TEST(ConnectionThreads, RefusedRequestsAreCounted) {
  ScriptedServer s(with_threads(2));
  for (int i = 0; i < 3; ++i) {
    TestConnection c(s.port());
    c.send("GET / HTTP/9.9\r\n\r\n");
    EXPECT_THAT(c.read_all(), StartsWith("HTTP/1.1 400 "));
  }
  EXPECT_TRUE(comes([&] { return metric(s.port(), "lathe_refused_requests_total") == 3; }));
  EXPECT_ALIVE(s);
}

TEST(ConnectionThreads, AClientThatTakesNothingIsClosed) {
  ScriptedOptions options = with_threads(2);
  options.server.http.max_unsent_bytes = 64 << 10;
  GatedServer s(std::move(options));
  TestConnection lazy(s.port(), 4096);
  lazy.send(request_text("POST", "/generate",
                         R"({"text":"a","stream":true,"sampling_params":)"
                         R"({"max_new_tokens":15000,"ignore_eos":true}})"));
  EXPECT_TRUE(comes([&] {
    s.gate.pass(50);
    return metric(s.port(), "lathe_aborted_requests_total") == 1;
  }));
  s.gate.open();
  EXPECT_ALIVE(s);
}

TEST(ConnectionThreads, ConnectionsBeyondTheLimitWait) {
  ScriptedOptions options = with_threads(2);
  options.server.http.max_connections = 4;
  ScriptedServer s(std::move(options));
  std::vector<std::unique_ptr<TestConnection>> all;
  for (int i = 0; i < 8; ++i) {
    all.push_back(std::make_unique<TestConnection>(s.port()));
    all.back()->send(request_text("GET", "/health", "", "Connection: close\r\n"));
  }
  for (const auto& c : all) {
    EXPECT_THAT(c->read_all(), StartsWith("HTTP/1.1 200 "));
    c->close();
  }
  EXPECT_ALIVE(s);
}

TEST(ConnectionThreads, TheServerEndsWithStreamsOpen) {
  GatedServer s(with_threads(2));
  std::vector<std::unique_ptr<TestConnection>> all;
  for (int i = 0; i < 6; ++i) {
    all.push_back(std::make_unique<TestConnection>(s.port()));
    all.back()->send(
        request_text("POST", "/v1/completions", completion("a", 1000, R"(,"stream":true)")));
  }
  EXPECT_TRUE(comes([&] {
    s.gate.pass(1);  // requests arrive one by one
    return metric(s.port(), "lathe_open_streams") == 6;
  }));
  s.gate.pass(3);
  for (const auto& c : all) EXPECT_THAT(c->read_until(" w33"), HasSubstr(" w33"));
  s.gate.open();
  s.server->server().stop();
  EXPECT_EQ(s.server->server().wait(), 0);
  for (const auto& c : all) c->read_all();
}

}  // namespace
}  // namespace lathe
