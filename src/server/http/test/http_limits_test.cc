// Limits on clients: headers, time, connections; and ambiguous requests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <memory>

#include "server/scripted/scripted_server.h"
#include "server/scripted/test/http_client_test_util.h"

namespace lathe {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(HttpLimits, HeadersWithoutEnd) {
  ScriptedServer s{ScriptedOptions()};
  const std::string part(1 << 20, 'a');
  TestConnection line(s.port());
  line.send("GET /health HTTP/1.1\r\nX: ");
  // Would send a TiB; the server closes long before.
  int sent = 0;
  while (sent < 1 << 20 && line.send(part)) ++sent;
  EXPECT_LT(sent, 1 << 20);
  TestConnection many(s.port());
  many.send("GET /health HTTP/1.1\r\n");
  std::string headers;
  for (int i = 0; i < 1000; ++i) headers += "a: b\r\n";
  for (sent = 0; sent < 1 << 20 && many.send(headers);) ++sent;
  EXPECT_LT(sent, 1 << 20);
  // A request that ends within what the server reads after a rejection gets an error response.
  TestConnection told(s.port());
  told.send("GET /health HTTP/1.1\r\nX: " + std::string(40000, 'a') + "\r\n\r\n");
  EXPECT_THAT(told.read_all(), StartsWith("HTTP/1.1 431 "));
  EXPECT_ALIVE(s);
}

TEST(HttpLimits, SlowRequestsAreClosedAndOthersServed) {
  ScriptedOptions options;
  options.server.http.header_timeout = 1;
  options.server.http.body_timeout = 2;
  ScriptedServer s(std::move(options));
  std::vector<std::unique_ptr<TestConnection>> slow;
  for (int i = 0; i < 200; ++i) {
    slow.push_back(std::make_unique<TestConnection>(s.port()));
    slow.back()->send(i % 2 == 0 ? "GET /hea"
                                 : "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                                   "Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{");
  }
  EXPECT_ALIVE(s);
  for (std::size_t i = 0; i < slow.size(); ++i) {
    slow[i]->send("a");  // trickling bytes does not extend the limit
    const std::string& answer = slow[i]->read_all();
    if (i % 2 == 0) {
      EXPECT_EQ(answer, "");
    } else {
      EXPECT_THAT(answer, StartsWith("HTTP/1.1 408 "));
    }
  }
  EXPECT_ALIVE(s);
}

TEST(HttpLimits, ConnectionsBeyondTheLimitWait) {
  ScriptedOptions options;
  options.server.http.max_connections = 4;
  ScriptedServer s(std::move(options));
  std::vector<std::unique_ptr<TestConnection>> all;
  for (int i = 0; i < 8; ++i) {
    all.push_back(std::make_unique<TestConnection>(s.port()));
    all.back()->send(request_text("GET", "/health"));
  }
  for (auto& c : all) {
    EXPECT_THAT(c->read_answer(), StartsWith("HTTP/1.1 200"));
    c.reset();  // makes room for another
  }
}

// Out of file descriptors, connections wait until one is free.
TEST(HttpLimits, WithoutFilesConnectionsWait) {
  ScriptedServer s{ScriptedOptions()};
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int client = socket(AF_INET, SOCK_STREAM, 0);
  rlimit few = before;
  few.rlim_cur = 0;  // keeps what is open
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  // The system accepts it, the server cannot; open connections go on.
  TestConnection waiting(s.port(), 0, client);
  waiting.send(request_text("POST", "/v1/completions", completion("a", 3)));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(read_test_answer(waiting.read_answer()).json()["choices"][0]["text"],
            scripted_text("a", 3));
  EXPECT_ALIVE(s);
}

TEST(HttpLimits, AConnectionServesManyRequests) {
  ScriptedServer s{ScriptedOptions()};
  TestConnection c(s.port());
  for (int i = 0; i < 20; ++i) {
    c.send(request_text("POST", "/v1/completions", completion("a", 1 + i)));
    const TestAnswer answer = read_test_answer(c.read_answer());
    EXPECT_EQ(answer.json()["choices"][0]["text"], scripted_text("a", 1 + i));
  }
}

// The server closes idle connections; a request that arrives at that moment gets a whole answer or
// none.
TEST(HttpLimits, ARequestThatMeetsTheClosingIsNotHalfAnswered) {
  ScriptedOptions options;
  options.server.http.keep_alive_timeout = 1;
  ScriptedServer s(std::move(options));
  std::vector<std::thread> threads;
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([&, t] {
      TestConnection c(s.port());
      c.send(request_text("GET", "/health"));
      c.read_answer();
      std::this_thread::sleep_for(std::chrono::milliseconds(800 + 30 * t));
      c.send(request_text("POST", "/v1/completions", completion("a", 4)));
      const std::string raw = c.read_answer();
      if (raw.empty()) return;
      EXPECT_EQ(read_test_answer(raw).json()["choices"][0]["text"], scripted_text("a", 4));
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_ALIVE(s);
}

TEST(HttpLimits, AClientThatTakesNothingIsLeft) {
  ScriptedOptions options;
  options.server.http.slow_client_timeout = 1;
  options.max_total_tokens = 1 << 18;
  ScriptedServer s(std::move(options));
  TestConnection slow(s.port(), 4096);
  slow.send(request_text("POST", "/v1/completions",
                         completion("a", 15000, R"(,"stream":true,"n":16,"logprobs":5)")));
  EXPECT_TRUE(comes([&] {
    return ask(s.port(), "GET", "/metrics")
               .body.find("lathe_aborted_requests_total{why=\"slow_client\"} 1\n") !=
           std::string::npos;
  }));
  EXPECT_EQ(metric(s.port(), "lathe_aborted_requests_total"), 1);
  EXPECT_ALIVE(s);
}

TEST(HttpLimits, RequestsThatAreTwoThingsAreRefused) {
  ScriptedServer s{ScriptedOptions()};
  const std::string head =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
      "Content-Type: application/json\r\n";
  const std::string body = completion("a", 1);
  const std::string length = fmt::format("Content-Length: {}\r\n", body.size());
  const std::string hidden = "GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n";
  for (const std::string& bad : {
           head + length + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden,
           head + "Transfer-Encoding: chunked\r\n" + length + "\r\n" + body + hidden,
           head + length + "Content-Length: 1\r\n\r\n" + body + hidden,
           head + "Content-Length: 1, 2\r\n\r\n" + body + hidden,
           head + "Content-Length : 3\r\n\r\n" + body + hidden,
           head + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + hidden,
           head + "Content-Length: +5\r\n\r\n" + body + hidden,
           head + "Content-Length: 0x5\r\n\r\n" + body + hidden,
           head + "Na me: 1\r\n" + length + "\r\n" + body + hidden,
           head + "Name\r\n" + length + "\r\n" + body + hidden,
           head + std::string("N\0me: 1\r\n", 9) + length + "\r\n" + body + hidden,
           std::string("GET /health HTTP/1.1\nHost: localhost\n\n") + hidden,
           std::string("GET  /health HTTP/1.1\r\n\r\n") + hidden,
           std::string("GET /health HTTP/2.0\r\n\r\n") + hidden,
           std::string("GET /he alth HTTP/1.1\r\n\r\n") + hidden,
       }) {
    TestConnection c(s.port());
    c.send(bad);
    const std::string& answer = c.read_all();
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 400 ")) << bad;
    EXPECT_THAT(answer, HasSubstr("Connection: close")) << bad;
    EXPECT_EQ(answer.find("HTTP/1.1 ", 1), std::string::npos) << bad;
  }
  EXPECT_ALIVE(s);
}

}  // namespace
}  // namespace lathe
