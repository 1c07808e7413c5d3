// An HTTP client for tests: a blocking connection, and queries on a server's answers.
#pragma once

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace lathe {

class TestConnection {
 public:
  /// `receive_buffer`: size of the socket's receive buffer; 0: the system's default. `fd`: an
  /// existing socket.
  explicit TestConnection(int port, int receive_buffer = 0, int fd = -1)
      : fd_(fd >= 0 ? fd : socket(AF_INET, SOCK_STREAM, 0)) {
    const timeval limit{60, 0};  // far longer than any answer needs
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (receive_buffer > 0) {
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) close();
  }
  ~TestConnection() { close(); }
  TestConnection(const TestConnection&) = delete;
  TestConnection& operator=(const TestConnection&) = delete;

  bool connected() const { return fd_ >= 0; }
  /// Returns false if the peer has closed.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }
  /// Reads at least a byte; empty at the end.
  std::string read_some(std::size_t most = 65536) {
    std::string out(most, '\0');
    const ssize_t n = recv(fd_, out.data(), out.size(), 0);
    out.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    got_ += out;
    return out;
  }
  /// Reads until everything received contains `text`, or the end; returns all of it.
  const std::string& read_until(std::string_view text) {
    while (got_.find(text) == std::string::npos && !read_some().empty()) {
    }
    return got_;
  }
  const std::string& read_all() {
    while (!read_some().empty()) {
    }
    return got_;
  }
  /// Reads one whole answer and keeps the connection.
  std::string read_answer() {
    const std::size_t head = read_until("\r\n\r\n").find("\r\n\r\n");
    const std::size_t at = got_.find("Content-Length: ");
    if (head == std::string::npos || at == std::string::npos) return std::exchange(got_, "");
    const std::size_t size =
        head + 4 + static_cast<std::size_t>(std::atoll(got_.c_str() + at + 16));
    while (got_.size() < size && !read_some().empty()) {
    }
    std::string out = got_.substr(0, size);
    got_.erase(0, size);
    return out;
  }
  void close_sending() { shutdown(fd_, SHUT_WR); }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
  std::string got_;
};

struct TestAnswer {
  int status = 0;  // 0: no answer
  std::string head;
  std::string body;  // with chunks joined
  nlohmann::json json() const { return nlohmann::json::parse(body, nullptr, false); }
  /// The events of a stream before [DONE].
  std::vector<nlohmann::json> events() const {
    std::vector<nlohmann::json> out;
    for (std::size_t at = 0; at < body.size();) {
      const std::size_t end = std::min(body.find("\n\n", at), body.size());
      const std::string_view event = std::string_view(body).substr(at, end - at);
      at = end + 2;
      if (event.starts_with("data: {")) out.push_back(nlohmann::json::parse(event.substr(6)));
    }
    return out;
  }
};

inline TestAnswer read_test_answer(const std::string& raw) {
  TestAnswer out;
  const std::size_t head = raw.find("\r\n\r\n");
  if (!raw.starts_with("HTTP/1.1 ") || head == std::string::npos) return out;
  out.status = std::atoi(raw.c_str() + 9);
  out.head = raw.substr(0, head);
  std::string_view rest = std::string_view(raw).substr(head + 4);
  if (out.head.find("Transfer-Encoding: chunked") == std::string::npos) {
    out.body = rest;
    return out;
  }
  while (!rest.empty()) {
    const std::size_t line = rest.find("\r\n");
    if (line == std::string_view::npos) break;
    const auto size = std::strtoul(std::string(rest.substr(0, line)).c_str(), nullptr, 16);
    rest.remove_prefix(line + 2);
    out.body += rest.substr(0, size);
    rest.remove_prefix(std::min(rest.size(), size + 2));
  }
  return out;
}

inline std::string request_text(std::string_view method, std::string_view path,
                                std::string_view body = "", std::string_view headers = "") {
  return fmt::format(
      "{} {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{}"
      "Content-Length: {}\r\n\r\n{}",
      method, path, headers, body.size(), body);
}

/// Sends a request on a connection of its own.
inline TestAnswer ask(int port, std::string_view method, std::string_view path,
                      std::string_view body = "", std::string_view headers = "") {
  TestConnection c(port);
  c.send(request_text(method, path, body, fmt::format("Connection: close\r\n{}", headers)));
  return read_test_answer(c.read_all());
}

/// A metric's value, summed over its labels.
inline double metric(int port, std::string_view name) {
  const std::string page = ask(port, "GET", "/metrics").body;
  double sum = 0;
  for (std::size_t at = 0; at < page.size();) {
    const std::size_t end = std::min(page.find('\n', at), page.size());
    const std::string line = page.substr(at, end - at);
    at = end + 1;
    if (!line.starts_with(name)) continue;
    const char next = line[name.size()];
    if (next == ' ' || next == '{') sum += std::atof(line.c_str() + line.rfind(' '));
  }
  return sum;
}

/// Polls until the condition holds, for at most a minute.
template <class Condition>
testing::AssertionResult comes(const Condition& condition) {
  for (int i = 0; i < 6000; ++i) {
    if (condition()) return testing::AssertionSuccess();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return testing::AssertionFailure() << "the condition did not become true";
}

/// A body of /v1/completions.
inline std::string completion(std::string_view prompt, int max_tokens, std::string_view more = "") {
  return fmt::format(R"({{"prompt":"{}","max_tokens":{},"ignore_eos":true,"temperature":0{}}})",
                     prompt, max_tokens, more);
}

/// Every gauge of requests and pages is 0, and a request is answered.
#define EXPECT_ALIVE(scene)                                                                       \
  do {                                                                                            \
    const TestAnswer alive_ = ask((scene).port(), "POST", "/v1/completions", completion("q", 5)); \
    EXPECT_EQ(alive_.status, 200) << alive_.body;                                                 \
    if (alive_.status == 200) {                                                                   \
      EXPECT_EQ(alive_.json()["choices"][0]["text"], scripted_text("q", 5));                      \
    }                                                                                             \
    for (const char* gauge_ : {"lathe_num_held_pages", "lathe_num_running_reqs",                  \
                               "lathe_num_queue_reqs", "lathe_queued_tokens"}) {                  \
      EXPECT_TRUE(comes([&] { return metric((scene).port(), gauge_) == 0; })) << gauge_;          \
    }                                                                                             \
  } while (false)

}  // namespace lathe
