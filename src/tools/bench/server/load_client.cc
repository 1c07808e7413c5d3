#include "tools/bench/server/load_client.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/check.h"
#include "tools/flags/command.h"

namespace lathe {
namespace {

constexpr double kConnectionsPerSecond = 4000;  // what a listener's queue holds
constexpr double kSlowest = 300;                // seconds until clients give up
constexpr std::string_view kEvent = "data: ";
constexpr std::string_view kEnd = "\r\n0\r\n\r\n";

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Percentiles percentiles(std::vector<double>& values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double q) {
    return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
  };
  return {at(0.5), at(0.99), values.back()};
}

std::string post(std::string_view path, std::string_view body) {
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: {}\r\n\r\n{}",
      path, body.size(), body);
}

std::string chat(int prompt_bytes, int tokens, bool stream, bool parsing) {
  const std::string tool =
      parsing ? R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{}}}])" : "";
  return post(
      "/v1/chat/completions",
      fmt::format(R"({{"messages":[{{"role":"user","content":"{}"}}],"max_tokens":{},)"
                  R"("stream":{},"ignore_eos":true,"temperature":0{}}})",
                  std::string(static_cast<std::size_t>(prompt_bytes), 'a'), tokens, stream, tool));
}

// The purpose of a connection.
enum class Role { stream, arrival, loop, idle, health, big, churn };

// What a churn client does with an answer.
enum class Habit { take, leave, lag };

struct Client {
  int fd = -1;
  Role role = Role::stream;
  Habit habit = Habit::take;
  std::string out;           // not sent yet
  std::string in;            // of whole answers
  std::array<char, 8> tail;  // the last bytes of a stream
  std::size_t tail_size = 0;
  bool streams = true;
  bool got_any = false;
  bool ok = false;          // the status is 200
  int tokens = 0;           // wanted
  std::int64_t events = 0;  // received, of all kinds
  int leave_after = 0;
  double asked = 0, last = 0, next_read = 0;
};

// Events of an answer besides its tokens: the one with the role, the one with the reason, [DONE].
constexpr std::int64_t kOtherEvents = 3;

class Load {
 public:
  explicit Load(const LoadTask& task) : task_(task), random_(task.seed), poll_(epoll_create1(0)) {
    buffer_.resize(256 << 10);
  }
  ~Load() {
    for (auto& [fd, client] : clients_) ::close(fd);
    ::close(poll_);
  }

  LoadResult run() {
    start_ = now();
    for (int i = 0; i < task_.idle; ++i) begin(Role::idle);
    for (int i = 0; i < task_.closed_loop; ++i) begin(Role::loop);
    for (int i = 0; i < task_.churn; ++i) begin(Role::churn);
    do {
      launch();
      poll();
    } while (!over());
    result_.seconds = now() - start_;
    result_.first_byte = percentiles(task_.arrivals_per_second > 0 ? arrivals_ : streams_);
    result_.health = percentiles(health_);
    result_.gap = percentiles(gaps_);
    return result_;
  }

 private:
  bool time_left() const { return now() - beside_ < task_.seconds; }

  bool over() const {
    if (begun_ < task_.streams || open_ > 0) return now() - start_ > kSlowest + task_.seconds;
    return beside_ == 0 || !time_left();
  }

  // Starts the streams. The health probe, the large body and the arrivals begin once all streams
  // run.
  void launch() {
    while (begun_ < task_.streams && begun_ < 1 + (now() - start_) * kConnectionsPerSecond) {
      ++begun_;
      begin(Role::stream);
    }
    if (beside_ == 0 && std::ssize(streams_) == task_.streams) {
      beside_ = now();
      if (task_.big_body) begin(Role::big);
      if (task_.probe_health) begin(Role::health);
    }
    if (beside_ == 0) return;
    const double t = now() - beside_;
    while (t < task_.seconds && arrived_ < t * task_.arrivals_per_second) {
      ++arrived_;
      begin(Role::arrival);
    }
  }

  void begin(Role role) {
    if (role == Role::stream || role == Role::arrival) ++result_.asked;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(task_.port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      result_.failed_errno = errno;
      if (fd >= 0) ::close(fd);
      return;
    }
    fcntl(fd, F_SETFL, O_NONBLOCK);
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    Client& c = *(clients_[fd] = std::make_unique<Client>());
    c.fd = fd;
    c.role = role;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    epoll_ctl(poll_, EPOLL_CTL_ADD, fd, &event);
    if (role == Role::stream || role == Role::arrival) ++open_;
    ask(c);
  }

  void ask(Client& c) {
    c.asked = c.last = now();
    c.got_any = c.ok = false;
    c.events = 0;
    c.tail_size = 0;
    c.in.clear();
    switch (c.role) {
      case Role::stream:
        c.tokens = task_.stream_tokens;
        c.leave_after = task_.leave_after;
        c.out = chat(task_.prompt_bytes, c.tokens, true, task_.parsing);
        break;
      case Role::arrival:
        c.tokens = task_.arrival_tokens;
        c.out = chat(task_.prompt_bytes, c.tokens, true, task_.parsing);
        break;
      case Role::loop:
        c.streams = false;
        c.out = post("/v1/completions", R"({"prompt":"a","max_tokens":1,"temperature":0})");
        break;
      case Role::idle:
      case Role::health:
        c.streams = false;
        c.out = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
        break;
      case Role::big:
        c.streams = false;
        c.out = post("/v1/completions",
                     R"({"prompt":")" + std::string((16 << 20) - 64, 'a') + R"(","max_tokens":1})");
        break;
      case Role::churn:
        choose(c);
        break;
    }
    send_some(c);
  }

  void choose(Client& c) {
    const auto below = [&](int n) { return std::uniform_int_distribution<int>(0, n - 1)(random_); };
    c.habit = Habit::take;
    c.leave_after = 0;
    c.tokens = 1 + below(200);
    c.streams = true;
    switch (below(8)) {
      case 0:
        c.streams = false;
        c.out = chat(1 + below(2000), c.tokens, false, false);
        break;
      case 1:
        c.streams = false;
        c.out = post("/v1/chat/completions", R"({"messages": [], "temperature": "hot")");
        break;
      case 2:
        c.streams = false;
        c.out = "GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n";
        break;
      case 3:
        c.habit = Habit::lag;
        c.out = chat(16, c.tokens, true, false);
        break;
      case 4:
      case 5:
        c.habit = Habit::leave;
        c.leave_after = 1 + below(c.tokens);
        c.out = chat(1 + below(2000), c.tokens, true, false);
        break;
      default:
        c.out = chat(1 + below(2000), c.tokens, true, false);
    }
  }

  void send_some(Client& c) {
    while (!c.out.empty()) {
      const ssize_t n = ::send(c.fd, c.out.data(), c.out.size(), MSG_NOSIGNAL);
      if (n < 0 && errno == EAGAIN) break;
      if (n < 0) {
        end(c);
        return;
      }
      c.out.erase(0, static_cast<std::size_t>(n));
    }
    epoll_event event{};
    event.events = c.out.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT;
    event.data.fd = c.fd;
    epoll_ctl(poll_, EPOLL_CTL_MOD, c.fd, &event);
  }

  void poll() {
    std::array<epoll_event, 512> events;
    const int n = epoll_wait(poll_, events.data(), static_cast<int>(events.size()), 5);
    for (int i = 0; i < n; ++i) {
      const auto at = clients_.find(events[static_cast<std::size_t>(i)].data.fd);
      if (at == clients_.end()) continue;
      Client& c = *at->second;
      if (events[static_cast<std::size_t>(i)].events & EPOLLOUT) {
        send_some(c);
        if (clients_.find(events[static_cast<std::size_t>(i)].data.fd) == clients_.end()) continue;
      }
      if (events[static_cast<std::size_t>(i)].events & ~EPOLLOUT) read_some(c);
    }
    wake_sleepers();
  }

  // Probes that pause between questions, and readers that lag.
  void wake_sleepers() {
    const double t = now();
    std::vector<int> due;
    due.swap(sleepers_);
    for (int fd : due) {
      const auto at = clients_.find(fd);
      if (at == clients_.end()) continue;
      Client& c = *at->second;
      if (c.next_read > t) {
        sleepers_.push_back(fd);
      } else if (c.role == Role::health) {
        if (time_left()) ask(c);
      } else {
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.fd = fd;
        epoll_ctl(poll_, EPOLL_CTL_MOD, fd, &event);
      }
    }
  }

  void sleep(Client& c, double seconds) {
    c.next_read = now() + seconds;
    sleepers_.push_back(c.fd);
  }

  void read_some(Client& c) {
    const std::size_t most = c.habit == Habit::lag ? 512 : buffer_.size();
    const ssize_t n = recv(c.fd, buffer_.data(), most, 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
      if (n < 0) result_.failed_errno = errno;
      end(c);
      return;
    }
    const std::string_view got(buffer_.data(), static_cast<std::size_t>(n));
    result_.bytes += n;
    const double t = now();
    if (!c.got_any) {
      c.got_any = true;
      c.ok = got.starts_with("HTTP/1.1 200");
      if (c.role == Role::stream) streams_.push_back(t - c.asked);
      if (c.role == Role::arrival) arrivals_.push_back(t - c.asked);
    } else if (c.role == Role::stream && beside_ > 0 && c.last >= beside_) {
      gaps_.push_back(t - c.last);
    }
    c.last = t;
    if (c.streams && c.ok) {
      take_events(c, got);
    } else {
      take_whole(c, got);
    }
  }

  void take_events(Client& c, std::string_view got) {
    // Two reads may share an event, or the end.
    std::string joined(c.tail.data(), c.tail_size);
    const std::size_t before = joined.size();
    joined += got.substr(0, 64);
    const auto count = [&](std::string_view text, std::size_t past) {
      for (std::size_t at = 0; (at = text.find(kEvent, at)) != std::string_view::npos;) {
        at += kEvent.size();
        if (at > past) ++c.events;
      }
    };
    count(std::string_view(joined).substr(0, std::min(joined.size(), before + kEvent.size() - 1)),
          before);
    count(got, 0);
    std::string ending = joined;
    if (got.size() > 64) ending = std::string(got.substr(got.size() - 16));
    c.tail_size = std::min(ending.size(), c.tail.size());
    std::copy(ending.end() - static_cast<std::ptrdiff_t>(c.tail_size), ending.end(),
              c.tail.begin());
    if (ending.ends_with(kEnd)) {
      result_.tokens += std::max<std::int64_t>(0, c.events - kOtherEvents);
      answered(c, c.events == c.tokens + kOtherEvents);
      return;
    }
    if (c.leave_after > 0 && c.events >= c.leave_after) {
      ++result_.complete;
      result_.left_at = now();
      end(c);
      return;
    }
    if (c.habit == Habit::lag) {
      epoll_event event{};
      event.data.fd = c.fd;
      epoll_ctl(poll_, EPOLL_CTL_MOD, c.fd, &event);
      sleep(c, 0.05);
    }
  }

  void take_whole(Client& c, std::string_view got) {
    c.in += got;
    const std::size_t head = c.in.find("\r\n\r\n");
    constexpr std::string_view kLength = "Content-Length: ";
    const std::size_t length = c.in.find(kLength);
    if (head == std::string::npos || length == std::string::npos) return;
    const auto bytes = static_cast<std::size_t>(std::atoll(c.in.c_str() + length + kLength.size()));
    if (c.in.size() < head + 4 + bytes) return;
    if (c.role == Role::health) health_.push_back(now() - c.asked);
    if (c.role == Role::loop) {
      ++result_.asked;
      ++result_.tokens;
    }
    answered(c, c.ok);
  }

  // A complete answer has arrived.
  void answered(Client& c, bool complete) {
    if (complete && c.role != Role::health && c.role != Role::idle) ++result_.complete;
    switch (c.role) {
      case Role::stream:
      case Role::arrival:
      case Role::big:
        end(c);
        break;
      case Role::health:
        sleep(c, 0.02);
        break;
      case Role::idle:
        break;
      case Role::loop:
      case Role::churn:
        if (time_left()) {
          ask(c);
        } else {
          end(c);
        }
    }
  }

  void end(Client& c) {
    const Role role = c.role;
    if (role == Role::stream || role == Role::arrival) --open_;
    ::close(c.fd);
    clients_.erase(c.fd);
    if (role == Role::churn && time_left()) begin(Role::churn);
  }

  LoadTask task_;
  std::mt19937_64 random_;
  int poll_;
  double start_ = 0;
  double beside_ = 0;  // when all streams had begun; 0: not yet
  int begun_ = 0, arrived_ = 0, open_ = 0;
  std::unordered_map<int, std::unique_ptr<Client>> clients_;
  std::vector<int> sleepers_;
  std::vector<double> streams_, arrivals_, health_, gaps_;
  std::string buffer_;
  LoadResult result_;
};

void serve_tasks(int socket) {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  LoadTask task;
  while (recv(socket, &task, sizeof task, MSG_WAITALL) == static_cast<ssize_t>(sizeof task)) {
    const LoadResult result = Load(task).run();
    if (::send(socket, &result, sizeof result, MSG_NOSIGNAL) < 0) return;
  }
}

}  // namespace

void end_without_clients() {
  static std::atomic_flag once;
  while (once.test_and_set()) ::pause();  // another thread ends the process
  print_err("lathe: bench server: wanted clients to the end, got their process ended before\n");
  std::fflush(nullptr);
  std::_Exit(kExitFailure);
}

LoadClient::LoadClient(int cpu) {
  int pair[2];
  LATHE_CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "two sockets");
  process_ = fork();
  LATHE_CHECK(process_ >= 0, "a second process");
  if (process_ == 0) {
    ::close(pair[0]);
    run_on_core(cpu);
    serve_tasks(pair[1]);
    std::_Exit(0);
  }
  ::close(pair[1]);
  socket_ = pair[0];
}

LoadClient::~LoadClient() {
  ::close(socket_);  // which ends its loop
  waitpid(process_, nullptr, 0);
}

void LoadClient::start(const LoadTask& task) {
  if (::send(socket_, &task, sizeof task, MSG_NOSIGNAL) != ssize_t{sizeof task}) {
    end_without_clients();
  }
}

LoadResult LoadClient::wait() {
  LoadResult out;
  if (recv(socket_, &out, sizeof out, MSG_WAITALL) != ssize_t{sizeof out}) end_without_clients();
  return out;
}

void run_on_core(int cpu) {
  cpu_set_t may;
  if (sched_getaffinity(0, sizeof may, &may) != 0 || CPU_COUNT(&may) < 2) return;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (!CPU_ISSET(i, &may) || cpu-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(i, &one);
    sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

}  // namespace lathe
