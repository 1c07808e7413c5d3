#include "tools/bench/server/bench_server_scene.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <ctime>
#include <string>
#include <vector>

#include "base/check.h"
#include "tools/bench/server/load_client.h"

namespace lathe {
namespace {

std::string chunk(std::string_view text) {
  return fmt::format("{:x}\r\n{}\r\n", text.size(), text);
}

// An event as /v1/chat/completions sends it.
std::string event(std::string_view delta, std::string_view end) {
  return chunk(fmt::format(
      R"(data: {{"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk",)"
      R"("created":1790000000,"model":"scripted","system_fingerprint":"lathe-0.1.0-01234567",)"
      R"("choices":[{{"index":0,"delta":{{{}}},"logprobs":null,"finish_reason":{}}}]}})"
      "\n\n",
      delta, end));
}

double cpu_of_this_thread() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

void send_all(int fd, const std::string& bytes) {
  const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (sent != static_cast<ssize_t>(bytes.size())) end_without_clients();
}

}  // namespace

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void sleep_seconds(double seconds) {
  if (seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

ServerScene::ServerScene(const SceneOptions& options) : step_seconds_(options.step_seconds) {
  ScriptedOptions o;
  o.max_running_requests = options.streams;
  o.max_total_tokens = options.streams * options.tokens_each;
  o.template_prefix = options.template_prefix;
  o.server.max_queued_requests = 2 * options.streams;
  o.server.http.max_connections = 16384;
  o.server.shutdown_timeout = 60;
  o.on_forward = [this](std::int64_t rows) {
    step(rows);
    return Result<void>();
  };
  server_ = std::make_unique<ScriptedServer>(std::move(o));
}

void ServerScene::step(std::int64_t rows) {
  const double now = seconds_now();
  {
    const std::lock_guard lock(mutex_);
    begun_.push_back(now);
    if (begun_.size() > kStepsKept) begun_.pop_front();
  }
  rows_ += rows;
  last_rows_ = rows;
  // A late step does not make the next ones come sooner.
  next_step_ = std::max(next_step_ + step_seconds_, now);
  sleep_seconds(next_step_ - now);
}

std::int64_t ServerScene::steps_since(double time) {
  const std::lock_guard lock(mutex_);
  return std::count_if(begun_.begin(), begun_.end(), [&](double t) { return t > time; });
}

bool ServerScene::wait_for_rows(std::int64_t rows) const {
  for (const double until = seconds_now() + 60; seconds_now() < until; sleep_seconds(0.002)) {
    if (last_rows() == rows) return true;
  }
  return false;
}

BareSender::BareSender(int streams, int tokens, double step_seconds) {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  listener_ = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* raw = reinterpret_cast<sockaddr*>(&address);
  LATHE_CHECK(listener_ >= 0 && bind(listener_, raw, size) == 0 && listen(listener_, 4096) == 0 &&
                  getsockname(listener_, raw, &size) == 0,
              "a listener");
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([=, this] { run(streams, tokens, step_seconds); });
}

BareSender::~BareSender() {
  if (thread_.joinable()) thread_.join();
  ::close(listener_);
}

void BareSender::run(int streams, int tokens, double step_seconds) {
  std::vector<int> clients;
  std::array<char, 4096> request;
  const std::string head =
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
      "Transfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < streams; ++i) {
    const int fd = accept(listener_, nullptr, nullptr);
    if (fd < 0) end_without_clients();
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (recv(fd, request.data(), request.size(), 0) <= 0) end_without_clients();
    clients.push_back(fd);
  }
  const std::string open = head + event(R"("role":"assistant","content":"")", "null");
  for (int fd : clients) send_all(fd, open);
  const std::string part = event(R"("content":" w42")", "null");
  double next = seconds_now();
  const double before = cpu_of_this_thread();
  for (int t = 0; t < tokens; ++t) {
    for (int fd : clients) send_all(fd, part);
    next += step_seconds;
    sleep_seconds(next - seconds_now());
  }
  seconds_per_event_ = (cpu_of_this_thread() - before) / (double{1} * streams * tokens);
  const std::string last = event("", R"("length")") + chunk("data: [DONE]\n\n") + "0\r\n\r\n";
  for (int fd : clients) {
    send_all(fd, last);
    ::close(fd);
  }
}

double BareSender::seconds_per_event() {
  thread_.join();
  return seconds_per_event_;
}

}  // namespace lathe
