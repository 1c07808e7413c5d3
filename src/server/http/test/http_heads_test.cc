// Heads of requests: what the standard asks for, targets, and requests that could be read as two.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/scripted/scripted_server.h"
#include "server/scripted/test/http_client_test_util.h"

namespace lathe {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(HttpHeads, E14HeadsFollowTheStandard) {
  ScriptedServer s{ScriptedOptions()};
  const auto status = [&](const std::string& bytes) {
    TestConnection c(s.port());
    c.send(bytes);
    return read_test_answer(c.read_all()).status;
  };
  const std::string end = "Connection: close\r\n\r\n";
  // RFC 9112, 3.2: exactly one Host, which is none of a request in HTTP/1.0.
  EXPECT_EQ(status("GET /health HTTP/1.1\r\n" + end), 400);
  EXPECT_EQ(status("GET /health HTTP/1.1\r\nHost: a b\r\n" + end), 400);
  EXPECT_EQ(status("GET /health HTTP/1.1\r\nHost: user@localhost\r\n" + end), 400);
  EXPECT_EQ(status("GET /health HTTP/1.1\r\nHost: localhost\r\n" + end), 200);
  // 3.2.2: an absolute URI counts, the Host beside it does not.
  EXPECT_EQ(status("GET http://localhost:1/health HTTP/1.1\r\nHost: a.example\r\n" + end), 200);
  EXPECT_EQ(status("GET http://localhost HTTP/1.1\r\nHost: localhost\r\n" + end), 200);
  EXPECT_EQ(status("GET http://a.example/health HTTP/1.1\r\nHost: localhost\r\n" + end), 403);
  for (const char* bad : {"localhost:abc", "localhost:-1", "localhost:1:2", "[::1", "[::1]x", "[]",
                          "[localhost]", "[::1]:a", "::1", "a[::1]", "localhost]"}) {
    EXPECT_EQ(status(fmt::format("GET /health HTTP/1.1\r\nHost: {}\r\n{}", bad, end)), 400) << bad;
    const std::string uri = fmt::format("GET http://{}/health HTTP/1.1\r\n", bad);
    EXPECT_EQ(status(uri + "Host: localhost\r\n" + end), 400) << bad;
  }
  for (const char* good : {"localhost:8000", "localhost:", "[::1]:80", "[::1]", "127.0.0.1"}) {
    EXPECT_EQ(status(fmt::format("GET /health HTTP/1.1\r\nHost: {}\r\n{}", good, end)), 200)
        << good;
  }
  // RFC 9110, 2.5: higher minor versions are read as the highest known one.
  for (const char* version : {"HTTP/1.2", "HTTP/1.9"}) {
    TestConnection c(s.port());
    c.send(fmt::format("GET /health {}\r\nHost: localhost\r\n\r\n", version));
    EXPECT_THAT(c.read_answer(), StartsWith("HTTP/1.1 200 ")) << version;
    c.send("GET /health HTTP/1.");  // the connection stays; a line in two parts
    c.send("3\r\nHost: localhost\r\n\r\n");
    EXPECT_THAT(c.read_answer(), StartsWith("HTTP/1.1 200 ")) << version;
  }
  EXPECT_EQ(status("GET /health HTTP/1.2\r\n" + end), 400);  // without a Host
  // Fields that may come once.
  for (const char* field : {"Authorization: a", "X-Api-Key: a", "Content-Type: a/b", "Origin: a"}) {
    EXPECT_EQ(status(fmt::format("GET /health HTTP/1.1\r\nHost: localhost\r\n{0}\r\n{0}\r\n{1}",
                                 field, end)),
              400)
        << field;
  }
  // RFC 9110, 10.1.1: no 100 for a client of HTTP/1.0.
  const std::string body = completion("a", 1);
  TestConnection old(s.port());
  old.send(
      fmt::format("POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\n"
                  "Expect: 100-continue\r\nContent-Length: {}\r\n\r\n{}",
                  body.size(), body));
  EXPECT_THAT(old.read_all(), StartsWith("HTTP/1.1 200 "));
  TestConnection young(s.port());
  young.send(request_text("POST", "/v1/completions", body, "Expect: 100-continue\r\n"));
  EXPECT_THAT(young.read_until("200 OK"), StartsWith("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200"));
  EXPECT_ALIVE(s);
}

TEST(HttpHeads, FaultsAreShown) {
  ScriptedServer s{ScriptedOptions()};
  const auto message = [&](const std::string& head) {
    TestConnection c(s.port());
    c.send(head + "Connection: close\r\n\r\n");
    return read_test_answer(c.read_all()).json()["error"]["message"].get<std::string>();
  };
  const std::string post = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n";
  EXPECT_EQ(message(post + "Content-Length: -1\r\n"),
            "Content-Length: wanted a number of bytes, got -1");
  EXPECT_EQ(message(post + "Content-Length: 1\r\nContent-Length: 2\r\n"),
            "Content-Length: wanted one, got 1 and 2");
  EXPECT_EQ(message(post + "Content-Length: 1\r\nContent-Length: x\r\n"),
            "Content-Length: wanted a number of bytes, got x");
  const std::string chunked = post + "Transfer-Encoding: chunked\r\n";
  EXPECT_EQ(message(post + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n"),
            "Transfer-Encoding: wanted none beside Content-Length, got chunked");
  EXPECT_EQ(message(chunked + "Content-Length: 5\r\n"),
            "Content-Length: wanted none beside Transfer-Encoding, got 5");
  EXPECT_EQ(message(chunked + "Transfer-Encoding: gzip\r\n"),
            "Transfer-Encoding: wanted one, got another, gzip");
  EXPECT_EQ(message(post + "Content-Length:\r\n"),
            "Content-Length: wanted a number of bytes, got nothing");
  EXPECT_EQ(message(post + "Content-Length: 0\r\nContent-Type: text/plain\r\n"),
            "Content-Type: wanted application/json, got text/plain; curl -H 'Content-Type: "
            "application/json'");
  EXPECT_THAT(message(post + "Content-Length: 0\r\n"),
              HasSubstr("wanted application/json, got none;"));
  EXPECT_EQ(message(post + "Content-Encoding: gzip\r\n"),
            "Content-Encoding: wanted none, got gzip");
  EXPECT_EQ(message(post + "Transfer-Encoding: gzip, chunked\r\n"),
            "Transfer-Encoding: wanted chunked, got gzip, chunked");
  EXPECT_EQ(message(post + "Origin: a\r\nOrigin: b\r\n"), "Origin: wanted one, got 2");
  EXPECT_EQ(message("GET /health HTTP/1.1\r\nHost: a b\r\n"),
            "Host: wanted a name or address, got a b");
  EXPECT_THAT(message("GET /health HTTP/9.9\r\n"), HasSubstr("got GET /health HTTP/9.9 ("));
  EXPECT_THAT(message(post + "a b: c\r\n"),
              StartsWith("headers: wanted NAME: VALUE, got a b: c ("));
  EXPECT_THAT(message("GET /%zz HTTP/1.1\r\nHost: localhost\r\n"), HasSubstr("got /%zz"));
  const auto flush = [&](const std::string& seconds) {
    const std::string target = "/flush_cache?timeout=" + seconds;
    return ask(s.port(), "POST", target).json()["error"]["message"].get<std::string>();
  };
  EXPECT_EQ(flush("abc"), "timeout: wanted seconds from 0 to 1000000, got abc");
  EXPECT_THAT(flush("-1"), HasSubstr("got -1"));
  EXPECT_THAT(flush(""), HasSubstr("got nothing"));
}

// RFC 9112, 7.1; RFC 9110, 6.5.1: a trailer says nothing about the body's length.
TEST(HttpHeads, FaultsOfChunksAreShown) {
  ScriptedServer s{ScriptedOptions()};
  const auto message = [&](const std::string& body) {
    TestConnection c(s.port());
    c.send(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" +
        body);
    return read_test_answer(c.read_all()).json()["error"]["message"].get<std::string>();
  };
  const std::string chunk = "1\r\n{\r\n", trailer = "trailer: wanted NAME: VALUE, and nothing";
  for (const std::string& begin : {std::string("0\r\n"), chunk + "0;x=y\r\n"}) {
    for (const char* line : {"a b: c", "no colon", ": none", "Content-Length: 5", "X: \x01",
                             "Transfer-Encoding: chunked", "Connection: ,;"}) {
      const std::string said = message(begin + "A: 1\r\n" + line + "\r\n\r\n");
      EXPECT_THAT(said, StartsWith(trailer)) << line;
      EXPECT_THAT(said, HasSubstr("got " + shown_text(line) + " (")) << line;
    }
  }
  EXPECT_EQ(message("1;a=\"\x01\"\r\n{\r\n0\r\n\r\n"),
            "chunk: wanted SIZE;NAME=VALUE, got 1;a=\"\\x01\"");
  EXPECT_EQ(message("1;a=\r\n{\r\n0\r\n\r\n"), "chunk: wanted SIZE;NAME=VALUE, got 1;a=");
  for (const auto& [bytes, shown] : {std::pair{std::string("xyz\r\n\r\n"), "xyz"},
                                     {chunk + "xyz\r\n\r\n", "xyz"},
                                     {"\r\n\r\n\r\n", "nothing"},
                                     {chunk + "\r\n\r\n", "nothing"},
                                     {"-1\r\n\r\n", "-1"}}) {
    const std::string said = message(bytes);
    EXPECT_THAT(said, StartsWith("chunk: wanted its size in hexadecimal digits")) << bytes;
    EXPECT_THAT(said, HasSubstr(std::string("got ") + shown + " (")) << bytes;
  }
}

// RFC 9112, 2.2 and 7.1: answered at once, also where what follows could be the rest of a line.
TEST(HttpHeads, LineFeedsAloneEndNoLine) {
  ScriptedServer s{ScriptedOptions()};
  const auto message = [&](const std::string& bytes) {
    TestConnection c(s.port());
    c.send(bytes);
    return read_test_answer(c.read_all()).json()["error"]["message"].get<std::string>();
  };
  const std::string get = "GET /health HTTP/1.1", host = "Host: localhost";
  for (const std::string& head :
       {get + "\n", get + "\n" + host + "\n\n", get + "\n" + host + "\r\n\r\n",
        get + "\r\n" + host + "\n", get + "\r\n" + host + "\r\n\n",
        get + "\r\n" + host + "\nX: y\r\n\r\n"}) {
    EXPECT_EQ(message(head), "headers: wanted CRLF behind each, got a line feed alone") << head;
  }
  const std::string body = completion("a", 1), size = fmt::format("{:x}", body.size());
  const std::string data = size + "\r\n" + body;
  for (const std::string& chunks :
       {size + "\n", size + "\n" + body + "\n0\n\n", size + "\n" + body + "\r\n0\r\n\r\n",
        size + ";a=b\n" + body + "\r\n0\r\n\r\n", size + ";a=\"x\ny\"\r\n" + body + "\r\n0\r\n\r\n",
        data + "\n0\r\n\r\n", data + "\r\n0\n\r\n", data + "\r\n0\n\n", data + "\r\n0\r\n\n",
        data + "\r\n0\r\nX: y\n\r\n", data + "\r\n0\r\nX: y\n\n"}) {
    EXPECT_EQ(message("POST /v1/completions HTTP/1.1\r\n" + host +
                      "\r\nContent-Type: application/json\r\n"
                      "Transfer-Encoding: chunked\r\n\r\n" +
                      chunks),
              "chunk: wanted CRLF behind its size, its data and the trailer's lines, got a line "
              "feed alone")
        << chunks;
  }
}

// RFC 9112, 2.2.
TEST(HttpHeads, EmptyLinesBeforeARequestAreIgnored) {
  ScriptedServer s{ScriptedOptions()};
  const std::string get = request_text("GET", "/health");
  for (const char* lines : {"\r\n", "\r\n\r\n"}) {
    TestConnection c(s.port());
    c.send(lines + get);
    EXPECT_THAT(c.read_answer(), StartsWith("HTTP/1.1 200 "));
    // After a body, as old browsers sent it, with the next request at once.
    c.send(request_text("POST", "/v1/completions", completion("a", 3)) + lines + get);
    EXPECT_THAT(c.read_answer(), StartsWith("HTTP/1.1 200 "));
    EXPECT_THAT(c.read_answer(), StartsWith("HTTP/1.1 200 "));
  }
  TestConnection parts(s.port());
  parts.send("\r");
  EXPECT_ALIVE(s);
  parts.send("\n" + get);
  EXPECT_THAT(parts.read_answer(), StartsWith("HTTP/1.1 200 "));
  TestConnection bare(s.port());
  bare.send("\r" + get);
  EXPECT_THAT(bare.read_answer(), StartsWith("HTTP/1.1 400 "));
}

// RFC 3986, 2.1.
TEST(HttpHeads, TargetsAreDecoded) {
  ScriptedOptions options;
  options.server.names = {"org/tiny", "a%b c"};
  options.server.api_keys = {"secret"};
  options.server.admin_key = "admin";
  ScriptedServer s(std::move(options));
  const auto status = [&](const std::string& method, const std::string& target,
                          const std::string& key = "secret") {
    TestConnection c(s.port());
    const std::string header = key.empty() ? "" : "Authorization: Bearer " + key + "\r\n";
    c.send(request_text(method, target, "", header));
    return read_test_answer(c.read_answer()).status;
  };
  for (const char* target :
       {"/v1/models/org%2Ftiny", "/v1/models/org%2ftiny", "/v1/models/org/tiny",
        "/v1/models/%6frg/tin%79", "/v1/%6dodels", "/v1/models/a%25b%20c", "/%6detrics",
        "http://localhost/v1/%6Dodels"}) {
    EXPECT_EQ(status("GET", target), 200) << target;
    // The key is asked for by the path that counts.
    EXPECT_EQ(status("GET", target, ""), 401) << target;
    EXPECT_EQ(status("GET", target, "wrong"), 401) << target;
  }
  EXPECT_EQ(status("GET", "/v1/models/org%252Ftiny"), 404);  // decoded once
  EXPECT_EQ(status("POST", "/flush%5Fcache"), 401);
  EXPECT_EQ(status("POST", "/flush%5Fcache?timeout=%31", "admin"), 200);
  EXPECT_EQ(status("POST", "/flush_cache?timeout=%78", "admin"), 400);
  EXPECT_EQ(status("GET", "/%68ealth", ""), 200);
  for (const char* bad : {"%", "%4", "%zz", "%+1", "%-1", "%00", "%0a", "%0D", "%1f", "%7F"}) {
    EXPECT_EQ(status("GET", fmt::format("/v1/models/{}", bad)), 400) << bad;
    EXPECT_EQ(status("GET", fmt::format("/health?a={}", bad)), 400) << bad;
  }
  EXPECT_EQ(status("GET", "/v1/models"), 200);
}

TEST(HttpHeads, RequestsThatAreTwoThingsAreRefused) {
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
    EXPECT_EQ(answer.find("\r\n\r\n"), answer.rfind("\r\n\r\n")) << bad;  // one head
  }
  EXPECT_ALIVE(s);
}

}  // namespace
}  // namespace lathe
