// Limits on clients: headers, bodies, time and connections.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/un.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <mutex>
#include <stdexcept>

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
  for (int i = 0; i < 200000; ++i) headers += "a: b\r\n";  // 1.2 MB a send: a TiB in all, too
  for (sent = 0; sent < 1 << 20 && many.send(headers);) ++sent;
  EXPECT_LT(sent, 1 << 20);
  // A request that ends within what the server reads after a rejection gets an error response.
  TestConnection told(s.port());
  told.send("GET /health HTTP/1.1\r\nX: " + std::string(40000, 'a') + "\r\n\r\n");
  EXPECT_THAT(told.read_all(), StartsWith("HTTP/1.1 431 "));
  EXPECT_ALIVE(s);
}

// Seconds are long enough for a busy machine to read what was sent before they are over.
TEST(HttpLimits, SlowRequestsAreClosedAndOthersServed) {
  for (const bool with_body : {false, true}) {
    ScriptedOptions options;
    options.server.http.header_timeout = with_body ? 60 : 3;
    options.server.http.body_timeout = 2;
    ScriptedServer s(std::move(options));
    std::vector<std::unique_ptr<TestConnection>> slow;
    for (int i = 0; i < 100; ++i) {
      slow.push_back(std::make_unique<TestConnection>(s.port()));
      slow.back()->send(with_body ? "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                                    "Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
                                  : "GET /hea");
    }
    EXPECT_ALIVE(s);
    for (auto& connection : slow) {
      connection->send("a");  // trickling bytes does not extend the limit
      const std::string& answer = connection->read_all();
      if (with_body) {
        EXPECT_THAT(answer, StartsWith("HTTP/1.1 408 "));
      } else {
        EXPECT_EQ(answer, "");
      }
    }
    EXPECT_ALIVE(s);
  }
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

// /health answers though all connections are taken; what else comes waits, and gets 503 if there is
// more of it than may wait.
TEST(HttpLimits, E14HealthHasConnectionsInReserve) {
  for (const int threads : {1, 2}) {
    ScriptedOptions options;
    options.server.http.max_connections = 4;
    options.server.http_threads = threads;
    ScriptedServer s(std::move(options));
    std::vector<std::unique_ptr<TestConnection>> taken;
    for (int i = 0; i < 4; ++i) {
      taken.push_back(std::make_unique<TestConnection>(s.port()));
      taken.back()->send(request_text("GET", "/version"));
      EXPECT_THAT(taken.back()->read_answer(), StartsWith("HTTP/1.1 200"));
    }
    TestConnection waiting(s.port());
    waiting.send(request_text("POST", "/v1/completions", completion("a", 3)));
    for (int i = 0; i < 50; ++i) {
      for (const char* path : {"/health", "/ready", "/ping?x=1"}) {
        TestConnection c(s.port());
        c.send(request_text("GET", path));
        EXPECT_THAT(c.read_answer(), StartsWith("HTTP/1.1 200")) << path;
      }
    }
    taken[2].reset();  // makes room
    EXPECT_EQ(read_test_answer(waiting.read_answer()).json()["choices"][0]["text"],
              scripted_text("a", 3));

    std::vector<std::unique_ptr<TestConnection>> many;
    for (int i = 0; i < 12; ++i) {
      many.push_back(std::make_unique<TestConnection>(s.port()));
      many.back()->send(request_text("GET", "/version"));
    }
    const std::string refused = many.front()->read_answer();
    EXPECT_THAT(refused, StartsWith("HTTP/1.1 503"));
    EXPECT_THAT(refused, HasSubstr("--max-connections"));
    TestConnection c(s.port());
    c.send(request_text("GET", "/health"));
    EXPECT_THAT(c.read_answer(), StartsWith("HTTP/1.1 200"));
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

const std::string kChunkedHead =
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    "Transfer-Encoding: chunked\r\n";

std::string chunk(std::string_view text, std::string_view extension = "") {
  return fmt::format("{:x}{}\r\n{}\r\n", text.size(), extension, text);
}

// Sends `part` for ever; the answer of the server, which ends the connection long before.
std::string answer_to_endless(int port, const std::string& begin, const std::string& part) {
  TestConnection c(port);
  c.send(begin);
  int sent = 0;
  while (sent < 1 << 24 && c.send(part)) ++sent;
  EXPECT_LT(sent, 1 << 24);
  return c.read_all();
}

// RFC 9112, 7.1.1 and 7.1.2.
TEST(HttpLimits, E2TrailersAndExtensionsAreBounded) {
  ScriptedServer s{ScriptedOptions()};
  const std::string many(1 << 16, 'a');
  answer_to_endless(s.port(), kChunkedHead + "\r\n" + chunk("{") + "0\r\nX: ", many);
  answer_to_endless(s.port(), kChunkedHead + "\r\n1;x=", many);
  answer_to_endless(s.port(), kChunkedHead + "\r\n0;x=", many);
  std::string fields;
  for (int i = 0; i < 1000; ++i) fields += "a: b\r\n";
  answer_to_endless(s.port(), kChunkedHead + "\r\n0\r\n", fields);
  // Each extension is short, all of them are not.
  std::string chunks;
  for (int i = 0; i < 100; ++i) chunks += chunk(" ", ";x=" + std::string(50, 'a'));
  answer_to_endless(s.port(), kChunkedHead + "\r\n", chunks);
  // What ends soon after gets an answer.
  TestConnection told(s.port());
  told.send(kChunkedHead + "\r\n0\r\nX: " + std::string(40000, 'a') + "\r\n\r\n");
  EXPECT_THAT(told.read_all(), StartsWith("HTTP/1.1 431 "));
  TestConnection fits(s.port());
  fits.send(kChunkedHead + "\r\n" + chunk(completion("a", 2)) +
            "0\r\nX: " + std::string(32'000, 'a') + "\r\n\r\n");
  EXPECT_THAT(fits.read_answer(), StartsWith("HTTP/1.1 200 "));
  // Short ones are skipped, also byte by byte.
  const std::string body = completion("a", 2);
  const std::string good = kChunkedHead + "Connection: close\r\n\r\n" +
                           chunk(body.substr(0, 9), ";x;y=\"z\"") + chunk(body.substr(9)) +
                           "0;last\r\nX-Request-Id: of-the-trailer\r\n\r\n";
  TestConnection slow(s.port());
  for (const char c : good) slow.send({&c, 1});
  const TestAnswer answer = read_test_answer(slow.read_all());
  EXPECT_EQ(answer.json()["choices"][0]["text"], scripted_text("a", 2));
  EXPECT_EQ(answer.head.find("of-the-trailer"), std::string::npos);
  EXPECT_ALIVE(s);
}

// RFC 9110, 6.5.1: a trailer is no header, and a body without a key is not read.
TEST(HttpLimits, E2TheKeyIsInTheHead) {
  for (const int threads : {1, 2}) {
    ScriptedOptions options;
    options.server.api_keys = {"k"};
    options.server.http_threads = threads;
    ScriptedServer s(std::move(options));
    const auto refused = [&](const std::string& bytes) {
      TestConnection c(s.port());
      c.send(bytes);
      const std::string answer = c.read_all();
      EXPECT_THAT(answer, StartsWith("HTTP/1.1 401 ")) << bytes;
      EXPECT_THAT(answer, HasSubstr("Connection: close")) << bytes;
    };
    refused(kChunkedHead + "\r\n" + chunk(completion("a", 1)) +
            "0\r\nAuthorization: Bearer k\r\n\r\n");
    // Neither waits for a byte of the body.
    refused(kChunkedHead + "\r\n");
    refused(
        "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: 16000000\r\nExpect: 100-continue\r\n\r\n");
    TestConnection c(s.port());
    c.send(kChunkedHead + "Authorization: Bearer k\r\n\r\n" + chunk(completion("a", 1)) +
           "0\r\n\r\n");
    EXPECT_THAT(c.read_answer(), StartsWith("HTTP/1.1 200 "));
  }
}

TEST(HttpLimits, E2BodiesHaveATotal) {
  for (const int threads : {1, 2}) {
    ScriptedOptions options;
    options.server.http.max_bodies_bytes = 1 << 20;
    options.server.http_threads = threads;
    ScriptedServer s(std::move(options));
    const std::string head =
        "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: 700000\r\n\r\n";
    std::vector<std::unique_ptr<TestConnection>> all;
    for (int i = 0; i < 8; ++i) {
      all.push_back(std::make_unique<TestConnection>(s.port()));
      all.back()->send(head + std::string(600'000, ' '));
    }
    // One fits; the others are refused, in whatever order they arrived.
    EXPECT_TRUE(comes([&] { return metric(s.port(), "lathe_refused_requests_total") > 0; }));
    std::size_t told = 0;
    for (auto& c : all) c->close_sending();
    for (auto& c : all) {
      const TestAnswer answer = read_test_answer(c->read_all());
      if (answer.status == 0) continue;
      EXPECT_EQ(answer.status, 503);
      EXPECT_EQ(answer.json()["error"]["code"], "queue_full");
      ++told;
    }
    EXPECT_GE(told, 1u);
    all.clear();
    const std::string long_body = completion(std::string(900'000, ' '), 1);
    EXPECT_TRUE(comes([&] { return ask(s.port(), "POST", "/tokenize", long_body).status == 200; }));
    EXPECT_ALIVE(s);
  }
}

// A server that answers /big with `bytes` bytes, and /stream with a chunk of them; counts requests.
class BigAnswers {
 public:
  BigAnswers(std::size_t bytes, const HttpLimits& limits, int threads)
      : server_(std::move(*HttpServer::bind("127.0.0.1", 0, "", limits, threads))) {
    HttpHandler handler;
    handler.error = [](const HttpRequest&, int, std::string_view, std::string) {
      return HttpResponse();
    };
    handler.request = [this, bytes](const HttpRequest& request,
                                    const std::shared_ptr<HttpAnswer>& answer) {
      HttpResponse response;
      if (request.path == "/big") {
        ++asked_;
        response.body.resize(bytes, 'a');
      }
      if (request.path == "/stream") {
        stream_ = answer;
        answer->begin_stream({});
        answer->write(std::string(bytes, 'a'));
        return;
      }
      answer->send(std::move(response));
    };
    thread_ = std::thread([this, handler] { server_->run(handler, {}); });
  }
  ~BigAnswers() {
    server_->post([this] { server_->stop(); });
    thread_.join();
  }
  int port() const { return server_->port(); }
  int asked() const { return asked_; }
  void end_stream() {
    server_->post([this] { stream_->end_stream(); });
  }
  // Bytes of the last streamed answer that wait for the client.
  std::size_t unread() {
    std::promise<std::size_t> bytes;
    server_->post([&] { bytes.set_value(stream_ ? stream_->unsent() : 0); });
    return bytes.get_future().get();
  }
  bool lives() const {
    TestConnection c(port());
    c.send(request_text("GET", "/"));
    return c.read_answer().starts_with("HTTP/1.1 200 ");
  }

 private:
  std::unique_ptr<HttpServer> server_;
  std::shared_ptr<HttpAnswer> stream_;
  std::atomic<int> asked_{0};
  std::thread thread_;
};

// A client that sends requests without reading the answers does not fill the memory with them.
TEST(HttpLimits, E2UnreadAnswersHoldUpTheNextRequests) {
  constexpr int kRequests = 60;             // their answers are larger than the socket's buffers
  constexpr int kReceiveBuffer = 64 << 10;  // whatever the system allows
  for (const int threads : {1, 2}) {
    BigAnswers s(1 << 20, {.max_connections = 100}, threads);
    std::string many;
    for (int i = 0; i < kRequests; ++i) many += request_text("GET", "/big");
    TestConnection c(s.port(), kReceiveBuffer);
    c.send(many);
    EXPECT_TRUE(comes([&] { return s.asked() > 0; }));
    for (int i = 0; i < 200; ++i) EXPECT_TRUE(s.lives());
    EXPECT_LT(s.asked(), kRequests);
    for (int i = 0; i < kRequests; ++i) {
      EXPECT_EQ(read_test_answer(c.read_answer()).body.size(), 1u << 20) << i;
    }
    EXPECT_EQ(s.asked(), kRequests);
    // A connection does not keep that many requests: it answers some and closes.
    TestConnection greedy(s.port(), kReceiveBuffer);
    for (int i = 0; i < 100 && greedy.send(many); ++i) {
    }
    for (int i = 0; i < 200; ++i) EXPECT_TRUE(s.lives());  // while nothing is read
    greedy.read_all();
    EXPECT_LT(s.asked(), 10 * kRequests);
    EXPECT_TRUE(s.lives());
  }
}

// The time between requests begins when the client has read the last answer.
TEST(HttpLimits, ALongAnswerIsReadWhole) {
  constexpr std::size_t kBytes = 20 << 20;
  BigAnswers s(kBytes, {.max_connections = 100, .keep_alive_timeout = 1}, 1);
  TestConnection c(s.port());
  c.send(request_text("GET", "/big"));
  EXPECT_TRUE(comes([&] { return s.asked() == 1; }));
  std::this_thread::sleep_for(std::chrono::seconds(3));
  EXPECT_EQ(read_test_answer(c.read_answer()).body.size(), kBytes);
}

TEST(HttpLimits, E2AnswersHaveATotal) {
  constexpr std::size_t kBytes = 20 << 20;
  for (const int threads : {1, 2}) {
    const HttpLimits limits{
        .max_connections = 100, .max_bodies_bytes = kBytes + 1000, .max_unsent_bytes = 2 * kBytes};
    BigAnswers s(kBytes, limits, threads);
    constexpr int kReceiveBuffer = 64 << 10;  // far less than an answer, whatever the system allows
    TestConnection first(s.port(), kReceiveBuffer), second(s.port(), kReceiveBuffer);
    first.send(request_text("GET", "/stream", "", "Connection: close\r\n"));
    // Less than all: the socket is full and the rest has been counted.
    EXPECT_TRUE(comes([&] {
      const std::size_t left = s.unread();
      return left > 0 && left < kBytes;
    }));
    EXPECT_TRUE(s.lives());
    second.send(request_text("GET", "/big"));
    EXPECT_TRUE(comes([&] { return s.asked() == 1; }));
    // A client that reads as fast as the server writes leaves nothing to count. Each thread of the
    // server does its work in order, so the answer is counted once these connections are served.
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(s.lives());
    EXPECT_LT(second.read_all().size(), kBytes);
    s.end_stream();
    EXPECT_TRUE(first.read_all().ends_with("\r\n0\r\n\r\n"));
    // What was kept is free again.
    TestConnection third(s.port());
    third.send(request_text("GET", "/big"));
    EXPECT_EQ(read_test_answer(third.read_answer()).body.size(), kBytes);
    EXPECT_TRUE(s.lives());
  }
}

// A request that finds no memory, or a mistake of the server, ends its connection alone and is
// told.
TEST(HttpLimits, E2WithoutMemoryAConnectionEnds) {
  for (const int threads : {1, 2}) {
    auto bound = HttpServer::bind("127.0.0.1", 0, "", {.max_connections = 100}, threads);
    ASSERT_TRUE(bound);
    HttpServer& server = **bound;
    HttpHandler handler;
    handler.error = [](const HttpRequest&, int, std::string_view, std::string) {
      return HttpResponse();
    };
    handler.request = [](const HttpRequest& request, const std::shared_ptr<HttpAnswer>& answer) {
      if (request.path == "/big") throw std::bad_alloc();
      if (request.path == "/wrong") throw std::logic_error("a mistake");
      answer->send(HttpResponse());
    };
    std::mutex mutex;
    std::vector<std::string> told;
    handler.failed = [&](std::string_view what) {
      const std::lock_guard lock(mutex);
      told.emplace_back(what);
      throw std::bad_alloc();  // nor is there memory to tell it
    };
    std::thread thread([&] { server.run(handler, {}); });
    server.post([] { throw std::bad_alloc(); });
    TestConnection kept(server.port());
    kept.send(request_text("GET", "/"));
    EXPECT_THAT(kept.read_answer(), StartsWith("HTTP/1.1 200 "));
    TestConnection big(server.port());
    big.send(request_text("GET", "/big"));
    EXPECT_EQ(big.read_all(), "");
    TestConnection wrong(server.port());
    wrong.send(request_text("GET", "/wrong"));
    EXPECT_EQ(wrong.read_all(), "");
    EXPECT_TRUE(comes([&] {
      const std::lock_guard lock(mutex);
      return told == std::vector<std::string>{std::bad_alloc().what(), "a mistake"};
    }));
    kept.send(request_text("GET", "/"));
    EXPECT_THAT(kept.read_answer(), StartsWith("HTTP/1.1 200 "));
    server.post([&] { server.stop(); });
    thread.join();
  }
}

// A file that is no socket is not this server's to replace.
TEST(HttpLimits, E7OnlySocketsAreReplaced) {
  const std::string path = testing::TempDir() + "/lathe_e7";
  const auto bind = [&] { return HttpServer::bind("", 0, path, {.max_connections = 100}, 1); };
  std::filesystem::remove(path);
  std::filesystem::remove(path + ".link");
  std::ofstream(path) << "mine";
  EXPECT_FALSE(bind());
  EXPECT_EQ(std::filesystem::file_size(path), 4u);
  // A link to a file, or to a socket.
  std::filesystem::rename(path, path + ".link");
  std::filesystem::create_symlink(path + ".link", path);
  EXPECT_FALSE(bind());
  EXPECT_TRUE(std::filesystem::is_symlink(path));
  std::filesystem::remove(path);
  std::filesystem::remove(path + ".link");
  // The socket of a server that was killed.
  const int dead = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(dead, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  close(dead);
  {
    const auto live = bind();
    EXPECT_TRUE(live);
    EXPECT_FALSE(bind());  // somebody listens
    // What replaced the socket meanwhile stays.
    std::filesystem::remove(path);
    std::ofstream(path) << "mine";
  }
  EXPECT_TRUE(std::filesystem::is_regular_file(path));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace lathe
