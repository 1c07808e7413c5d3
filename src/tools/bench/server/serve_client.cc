#include "tools/bench/server/serve_client.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "base/json.h"
#include "io/text/quote.h"
#include "tools/bench/server/bench_server_scene.h"
#include "tools/bench/server/http_reader.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kErrorBytes = 300;  // of an answer that is an error
constexpr const char* kNotHttp = "one that is not HTTP, or not whole";

struct Addresses {
  explicit Addresses(const ServeTarget& target) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    const std::string port = fmt::format("{}", target.port);
    if (getaddrinfo(target.host.c_str(), port.c_str(), &hints, &list) != 0) list = nullptr;
  }
  ~Addresses() {
    if (list != nullptr) freeaddrinfo(list);
  }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;

  addrinfo* list = nullptr;
};

// A connected socket, or -1 with errno. The connection is made in the calling thread, so that one
// is refused at once.
int connect_to(const Addresses& addresses) {
  int fd = -1;
  for (addrinfo* a = addresses.list; a != nullptr; a = a->ai_next) {
    fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    if (fd < 0) continue;
    if (connect(fd, a->ai_addr, a->ai_addrlen) == 0) break;
    const int failed = errno;
    close(fd);
    errno = failed;
    fd = -1;
  }
  if (fd < 0) return fd;
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

std::string request_bytes(const ServeTarget& target, std::string_view method,
                          const std::string& path, const std::string& body) {
  const bool ipv6 = target.host.find(':') != std::string::npos;
  std::string out =
      fmt::format("{} {}{} HTTP/1.1\r\nHost: {}{}{}:{}\r\nAccept: application/json\r\n", method,
                  target.prefix, path, ipv6 ? "[" : "", target.host, ipv6 ? "]" : "", target.port);
  if (!target.api_key.empty()) out += fmt::format("Authorization: Bearer {}\r\n", target.api_key);
  if (method == "POST") {
    out += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
  }
  return out + "\r\n" + body;
}

// The text of a choice's part, be it of a text completion or of a chat.
void add_part_text(const Json& choice, std::string& out) {
  const auto add = [&](const Json& object, const char* name) {
    const auto at = object.find(name);
    if (at != object.end() && at->is_string()) out += at->get_ref<const std::string&>();
  };
  add(choice, "text");
  const auto delta = choice.find("delta");
  if (delta == choice.end() || !delta->is_object()) return;
  add(*delta, delta->contains("reasoning_content") ? "reasoning_content" : "reasoning");
  add(*delta, "content");
  const auto calls = delta->find("tool_calls");
  if (calls != delta->end() && !calls->is_null() && !calls->empty()) out += json_text(*calls);
}

class Sender {
 public:
  Sender(const ServeTarget& target, const std::string& path,
         const std::vector<ServeRequest>& requests, std::int64_t most,
         const std::function<void(std::size_t)>& progress)
      : target_(target),
        path_(path),
        requests_(requests),
        most_(most > 0 ? static_cast<std::size_t>(most) : requests.size()),
        progress_(progress),
        addresses_(target),
        records_(requests.size()),
        poll_(epoll_create1(EPOLL_CLOEXEC)),
        buffer_(256 << 10, '\0') {}
  ~Sender() {
    for (auto& [fd, connection] : connections_) close(fd);
    close(poll_);
  }

  std::vector<ServeRecord> run() {
    start_ = seconds_now();
    double told = 0;
    while (ended_ < requests_.size()) {
      const double now = seconds_now() - start_;
      while (next_ < requests_.size() && running_ < most_ && requests_[next_].due <= now) {
        send(next_++);
      }
      poll();
      if (seconds_now() - told > 0.5) {
        told = seconds_now();
        progress_(ended_);
      }
    }
    progress_(ended_);
    return std::move(records_);
  }

 private:
  struct Connection {
    int fd = -1;
    std::size_t request = 0;
    bool busy = false;
    bool reused = false;
    bool done = false;  // [DONE] has come
    std::string out;    // not sent yet
    std::string body;   // not parsed yet
    double last = 0;    // when its last part came
    HttpReader reader;
  };

  double now() const { return seconds_now() - start_; }

  void send(std::size_t i) {
    ++running_;
    records_[i].sent = now();
    Connection* connection = nullptr;
    if (!idle_.empty()) {
      connection = connections_.at(idle_.back()).get();
      idle_.pop_back();
      connection->reused = true;
    } else {
      connection = connect(i);
      if (connection == nullptr) return;
    }
    begin(*connection, i);
  }

  Connection* connect(std::size_t i) {
    const int fd = connect_to(addresses_);
    if (fd < 0) {
      end(i, addresses_.list == nullptr ? "the host has no address"
                                        : fmt::format("no connection: {}", std::strerror(errno)));
      return nullptr;
    }
    fcntl(fd, F_SETFL, O_NONBLOCK);
    auto& made = connections_[fd] = std::make_unique<Connection>();
    made->fd = fd;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    epoll_ctl(poll_, EPOLL_CTL_ADD, fd, &event);
    return made.get();
  }

  void begin(Connection& c, std::size_t i) {
    c.request = i;
    c.busy = true;
    c.done = false;
    c.body.clear();
    c.reader.reset();
    c.out = request_bytes(target_, "POST", path_, requests_[i].body);
    write(c);
  }

  void write(Connection& c) {
    while (!c.out.empty()) {
      const ssize_t n = ::send(c.fd, c.out.data(), c.out.size(), MSG_NOSIGNAL);
      if (n < 0) break;  // a broken connection shows when it is read
      c.out.erase(0, static_cast<std::size_t>(n));
    }
    epoll_event event{};
    event.events = c.out.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT;
    event.data.fd = c.fd;
    epoll_ctl(poll_, EPOLL_CTL_MOD, c.fd, &event);
  }

  void poll() {
    std::array<epoll_event, 512> events;
    // A request may go out up to a millisecond late, which is short against any answer.
    const bool waits = next_ < requests_.size() && running_ < most_;
    const int n = epoll_wait(poll_, events.data(), static_cast<int>(events.size()), waits ? 1 : 50);
    for (int i = 0; i < n; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      const auto at = connections_.find(event.data.fd);
      if (at == connections_.end()) continue;
      if ((event.events & EPOLLOUT) != 0) write(*at->second);
      if ((event.events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) read(*at->second);
    }
  }

  void read(Connection& c) {
    const ssize_t n = recv(c.fd, buffer_.data(), buffer_.size(), 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
      on_closed(c);
      return;
    }
    if (!c.reader.read(std::string_view(buffer_.data(), static_cast<std::size_t>(n)), c.body)) {
      drop(c, "the answer is not HTTP");
      return;
    }
    if (c.reader.status() == 200) read_lines(c);
    if (c.reader.done()) finish(c);
  }

  void on_closed(Connection& c) {
    if (!c.busy) {
      forget(c);
      return;
    }
    if (c.reader.closed()) {
      finish(c);
      return;
    }
    // A server may close a kept connection at the moment that a request comes.
    const bool again = c.reused && !c.reader.begun();
    const std::size_t i = c.request;
    if (!again) {
      drop(c, "the connection closed before the answer's end");
      return;
    }
    forget(c);
    if (Connection* fresh = connect(i)) begin(*fresh, i);
  }

  void read_lines(Connection& c) {
    std::size_t at = 0;
    for (std::size_t end; (end = c.body.find('\n', at)) != std::string::npos; at = end + 1) {
      std::string_view line = std::string_view(c.body).substr(at, end - at);
      if (!line.starts_with("data:")) continue;
      line.remove_prefix(line.starts_with("data: ") ? 6 : 5);
      if (line.starts_with("[DONE]")) {
        c.done = true;
      } else {
        read_event(c, line);
      }
    }
    c.body.erase(0, at);
  }

  void read_event(Connection& c, std::string_view text) {
    ServeRecord& record = records_[c.request];
    const Json event = read_json<Json>(text);
    if (!event.is_object()) return;
    if (const auto error = event.find("error"); error != event.end() && !error->is_null()) {
      record.error = json_text(*error).substr(0, kErrorBytes);
    }
    if (const auto usage = event.find("usage"); usage != event.end() && usage->is_object()) {
      record.input_tokens = usage->value("prompt_tokens", std::int64_t{0});
      record.output_tokens = usage->value("completion_tokens", std::int64_t{0});
    }
    const auto choices = event.find("choices");
    if (choices == event.end() || !choices->is_array() || choices->empty()) return;
    const std::size_t before = record.text.size();
    add_part_text((*choices)[0], record.text);
    const double t = now();
    if (record.first == 0) record.first = t;
    if (record.text.size() == before) return;
    if (record.parts++ > 0) record.gaps.push_back(t - c.last);
    c.last = t;
  }

  void finish(Connection& c) {
    ServeRecord& record = records_[c.request];
    if (c.reader.status() != 200) {
      record.error = fmt::format("HTTP {}: {}", c.reader.status(), c.body.substr(0, kErrorBytes));
    } else if (record.error.empty() && !c.done) {
      record.error = "the stream ended without [DONE]";
    }
    const std::size_t i = c.request;
    c.busy = false;
    if (c.reader.keeps()) {
      idle_.push_back(c.fd);
    } else {
      forget(c);
    }
    end(i, std::move(record.error));
  }

  void drop(Connection& c, std::string error) {
    const std::size_t i = c.request;
    forget(c);
    end(i, std::move(error));
  }

  void forget(Connection& c) {
    std::erase(idle_, c.fd);
    close(c.fd);
    connections_.erase(c.fd);
  }

  void end(std::size_t i, std::string error) {
    ServeRecord& record = records_[i];
    record.error = std::move(error);
    record.ended = now();
    if (record.output_tokens == 0) record.output_tokens = record.parts;
    --running_;
    ++ended_;
  }

  const ServeTarget& target_;
  const std::string& path_;
  const std::vector<ServeRequest>& requests_;
  std::size_t most_;
  const std::function<void(std::size_t)>& progress_;
  Addresses addresses_;
  std::vector<ServeRecord> records_;
  int poll_;
  std::string buffer_;
  double start_ = 0;
  std::size_t next_ = 0, running_ = 0, ended_ = 0;
  std::unordered_map<int, std::unique_ptr<Connection>> connections_;
  std::vector<int> idle_;
};

struct WholeAnswer {
  int status = 0;
  std::string body;
  std::string failure;  // not empty: there is no answer

  std::string text() const {
    return fmt::format("HTTP {}: {}", status, body.substr(0, kErrorBytes));
  }
};

// Sends one request and waits for its answer, at most `seconds` for each part of it; 0: any time.
WholeAnswer ask_once(const ServeTarget& target, const Addresses& addresses, std::string_view method,
                     const std::string& path, const std::string& body, double seconds) {
  WholeAnswer out;
  const int fd = connect_to(addresses);
  if (fd < 0) {
    out.failure = addresses.list == nullptr ? "a host without an address" : std::strerror(errno);
    return out;
  }
  if (seconds > 0) {
    timeval limit{};
    limit.tv_sec = static_cast<time_t>(seconds) + 1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  const std::string request = request_bytes(target, method, path, body);
  HttpReader reader;
  std::string buffer(64 << 10, '\0');
  bool good = ::send(fd, request.data(), request.size(), MSG_NOSIGNAL) ==
              static_cast<ssize_t>(request.size());
  while (good && !reader.done()) {
    const ssize_t n = recv(fd, buffer.data(), buffer.size(), 0);
    good = n > 0
               ? reader.read(std::string_view(buffer.data(), static_cast<std::size_t>(n)), out.body)
               : n == 0 && reader.closed();
  }
  close(fd);
  out.status = reader.status();
  if (!good) out.failure = reader.begun() ? kNotHttp : "none";
  return out;
}

}  // namespace

Result<ServeTarget> ServeTarget::parse(const std::string& base_url) {
  const auto wrong = [&](std::string hint) {
    return Error{ErrorCode::invalid_argument, "--base-url", "http://HOST[:PORT][/PATH]",
                 quote(base_url), std::move(hint)};
  };
  constexpr std::string_view kScheme = "http://";
  if (base_url.starts_with("https://")) return wrong("a proxy such as nginx or Caddy adds TLS");
  if (!base_url.starts_with(kScheme)) return wrong("");
  ServeTarget out;
  std::string_view rest = std::string_view(base_url).substr(kScheme.size());
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  out.prefix = rest.substr(slash);
  while (out.prefix.ends_with('/')) out.prefix.pop_back();
  if (out.prefix.ends_with("/v1")) out.prefix.resize(out.prefix.size() - 3);
  std::string_view host = rest.substr(0, slash);
  const std::size_t colon = host.rfind(':');
  if (colon != std::string_view::npos && host.find(']', colon) == std::string_view::npos) {
    const std::string_view port = host.substr(colon + 1);
    const auto read = std::from_chars(port.begin(), port.end(), out.port);
    if (read.ec != std::errc() || read.ptr != port.end() || out.port < 1 || out.port > 65535) {
      return wrong("");
    }
    host = host.substr(0, colon);
  }
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (host.empty()) return wrong("");
  out.host = host;
  return out;
}

std::vector<ServeRecord> send_requests(const ServeTarget& target, const std::string& path,
                                       const std::vector<ServeRequest>& requests, std::int64_t most,
                                       const std::function<void(std::size_t)>& progress) {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  return Sender(target, path, requests, most, progress).run();
}

Result<std::string> ask_server(const ServeTarget& target, std::string_view method,
                               const std::string& path, const std::string& body) {
  const auto failed = [&](std::string got) {
    return Error{ErrorCode::io, "--base-url", "an answer to " + path, std::move(got), ""};
  };
  const Addresses addresses(target);
  const WholeAnswer answer = ask_once(target, addresses, method, path, body, 0);
  if (!answer.failure.empty()) return failed(answer.failure);
  if (answer.status == 200) return answer.body;
  return failed(answer.text());
}

std::optional<std::string> wait_for_server(const ServeTarget& target, std::int64_t seconds,
                                           const std::function<void(const std::string&)>& on_wait) {
  constexpr double kPause = 0.5;
  const double end = seconds_now() + static_cast<double>(seconds);
  const Addresses addresses(target);
  if (addresses.list == nullptr) return std::nullopt;
  bool told = false;
  for (;;) {
    const double left = end - seconds_now();
    const WholeAnswer answer = ask_once(target, addresses, "GET", "/health", "", left);
    const bool loads = answer.status >= 502 && answer.status <= 504;
    const bool answers = answer.failure.empty() || answer.failure == kNotHttp;
    if (answers && !loads) return std::nullopt;
    std::string got = answer.failure.empty() ? answer.text() : answer.failure;
    if (seconds_now() + kPause >= end) return got;
    if (!std::exchange(told, true)) on_wait(got);
    sleep_seconds(kPause);
  }
}

}  // namespace lathe
