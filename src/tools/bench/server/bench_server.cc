#include "tools/bench/server/bench_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/json.h"
#include "tools/bench/server/bench_server_scene.h"
#include "tools/bench/server/load_client.h"
#include "tools/bench/server/process_cpu.h"
#include "tools/flags/command.h"

namespace lathe {
namespace {

constexpr std::string_view kServingThread = "lathe-http";

// One figure, what it is compared with, and the bar that it must meet.
struct Figure {
  std::string name;
  std::string value;
  std::string beside;  // what it is compared with, from the same run
  std::string bar;     // empty: no bar, only reported
  bool ok = true;
};

class ServerBench {
 public:
  ServerBench(const BenchServerOptions& options, LoadClient& load)
      : options_(options), load_(load) {}

  void instructions();
  void sends();
  void streams();
  void arrivals();
  void whole();
  void peer();
  void ends();
  void idle();
  void churn();

  const std::vector<Figure>& figures() const { return figures_; }

 private:
  void tell(Figure figure) {
    if (!options_.json) {
      print_out(fmt::format("{:44} {:22} {:40} {:24} {}\n", figure.name, figure.value,
                            figure.beside, figure.bar,
                            figure.bar.empty() ? ""
                            : figure.ok        ? "ok"
                                               : "MISSED"));
      flush_out();
    }
    figures_.push_back(std::move(figure));
  }

  struct Cost {
    double serving = 0, serving_user = 0;  // seconds of CPU for a token: the serving thread's
    double process = 0;                    // all threads
    double tokens_per_second = 0;
    LoadResult load;
  };
  Cost measure_streams(ServerScene& scene, LoadTask task, double seconds);

  const BenchServerOptions& options_;
  LoadClient& load_;
  std::vector<Figure> figures_;
};

double own_cpu() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

std::string micro(double seconds) { return fmt::format("{:.2f} us", seconds * 1e6); }
std::string milli(double seconds) { return fmt::format("{:.1f} ms", seconds * 1e3); }
std::string delivered(const LoadResult& r) {
  return fmt::format("{} of {} complete", r.complete, r.asked);
}

// The body of a GET, by a client of this process.
std::string get(int port, std::string_view path) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string out;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
    const std::string ask =
        fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
    if (::send(fd, ask.data(), ask.size(), MSG_NOSIGNAL) > 0) {
      std::array<char, 65536> part;
      for (ssize_t n; (n = recv(fd, part.data(), part.size(), 0)) > 0;) {
        out.append(part.data(), static_cast<std::size_t>(n));
      }
    }
  }
  ::close(fd);
  return out.substr(std::min(out.size(), out.find("\r\n\r\n") + 4));
}

// User instructions of the serving thread, in one process under callgrind. 0: there is no
// callgrind.
double count_instructions(std::int64_t tokens, bool parsing) {
  const std::string command = fmt::format(
      "valgrind --tool=callgrind --callgrind-out-file=/dev/null "
      "--toggle-collect='*AsioServer::run*' /proc/{}/exe bench server --count-tokens {} {} 2>&1",
      getpid(), tokens, parsing ? "--parsing" : "");
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return 0;
  std::string out;
  std::array<char, 4096> part;
  while (fgets(part.data(), static_cast<int>(part.size()), pipe) != nullptr) out += part.data();
  pclose(pipe);
  constexpr std::string_view kBefore = "Collected : ";
  const std::size_t at = out.find(kBefore);
  return at == std::string::npos ? 0 : std::atof(out.c_str() + at + kBefore.size());
}

// Bar 1.
void ServerBench::instructions() {
  for (const bool parsing : {false, true}) {
    const double limit = parsing ? 4000 : 2500;
    const std::string name =
        fmt::format("instructions per streamed token{}", parsing ? ", with parsing" : "");
    constexpr std::int64_t kFew = 200, kMany = 1200;
    const double few = count_instructions(kFew, parsing);
    const double many = count_instructions(kMany, parsing);
    if (few == 0 || many == 0) {
      tell({name, "not measured", "valgrind is missing; apt-get install valgrind", "", true});
      continue;
    }
    const double each = (many - few) / (kMany - kFew);
    tell({name, fmt::format("{:.0f}", each), fmt::format("{} tokens less {} tokens", kMany, kFew),
          fmt::format("at most {}", limit), each > 0 && each <= limit});
  }
}

ServerBench::Cost ServerBench::measure_streams(ServerScene& scene, LoadTask task, double seconds) {
  task.port = scene.port();
  const pid_t thread = find_thread(kServingThread);
  load_.start(task);
  Cost out;
  if (scene.wait_for_rows(task.streams)) {
    const CpuTime before = thread_cpu(thread);
    const double process = own_cpu();
    const std::int64_t rows = scene.rows();
    const double begin = seconds_now();
    sleep_seconds(seconds);
    const CpuTime took = thread_cpu(thread) - before;
    const auto tokens = static_cast<double>(scene.rows() - rows);
    out = {took.total / tokens,
           took.in_user() / tokens,
           (own_cpu() - process) / tokens,
           tokens / (seconds_now() - begin),
           {}};
  }
  out.load = load_.wait();
  return out;
}

// Bar 2.
void ServerBench::sends() {
  for (const int streams : {100, 1000}) {
    // At each of its ticks, every few milliseconds, the system notes whether a thread is in user
    // mode. The split needs hundreds of ticks, and steps that are not in phase with them.
    const double step = streams == 100 ? 0.0053 : 0.0193;
    constexpr double kSeconds = 12;
    const int tokens = static_cast<int>((kSeconds + 1) / step);
    LoadTask task;
    task.streams = streams;
    task.stream_tokens = tokens;
    Cost cost;
    {
      ServerScene scene({streams, tokens + 64, step, ""});
      cost = measure_streams(scene, task, kSeconds);
    }
    BareSender bare(streams, tokens, step);
    task.port = bare.port();
    const LoadResult plain = load_.run(task);
    const double each = bare.seconds_per_event();
    const double ratio = cost.serving / each;
    tell({fmt::format("CPU per token, {} streams", streams), micro(cost.serving),
          fmt::format("bare send() {}, ratio {:.2f}", micro(each), ratio), "ratio at most 2",
          ratio > 0 && ratio <= 2 && cost.load.complete == streams && plain.complete == streams});
    tell({fmt::format("  in user mode, {} streams", streams), micro(cost.serving_user),
          fmt::format("of {} of the whole process", micro(cost.process)), "at most 2.5 us",
          cost.serving_user > 0 && cost.serving_user <= 2.5e-6});
  }
}

// Bar 3.
void ServerBench::streams() {
  constexpr int kStreams = 10000, kTokens = 40;
  const std::int64_t before = resident_bytes();
  {
    ServerScene scene({kStreams, 128, 0.4, ""});
    LoadTask task;
    task.streams = kStreams;
    task.stream_tokens = kTokens;
    task.port = scene.port();
    const pid_t thread = find_thread(kServingThread);
    load_.start(task);
    const bool all = scene.wait_for_rows(kStreams);
    const double start = seconds_now(), cpu = own_cpu();
    const CpuTime serving = thread_cpu(thread);
    const std::int64_t rows = scene.rows();
    sleep_seconds(4);
    const double seconds = seconds_now() - start;
    const double rate = static_cast<double>(scene.rows() - rows) / seconds;
    const double share = (thread_cpu(thread) - serving).total / seconds;
    const double whole = (own_cpu() - cpu) / seconds;
    const double each = static_cast<double>(resident_bytes() - before) / kStreams / 1024;
    const LoadResult got = load_.wait();
    tell({"10,000 streams at once", fmt::format("{:.0f} tokens/s", rate),
          fmt::format("{}, {:.0f} % of a core of {:.0f} %", delivered(got), share * 100,
                      whole * 100),
          "20000 tokens/s, all", all && rate >= 20000 && got.complete == kStreams});
    tell({"  memory of each", fmt::format("{:.1f} KiB", each), "the engine's part included",
          "at most 20 KiB", each <= 20});
    const Percentiles& first = got.first_byte;
    tell({"  first byte", fmt::format("p50 {}", milli(first.p50)),
          fmt::format("p99 {}, steps of 400 ms", milli(first.p99)), "", true});
  }
  ServerScene scene({64, 128, 0, ""});
  LoadTask task;
  task.port = scene.port();
  task.idle = 1000;
  task.seconds = 5;
  load_.start(task);
  sleep_seconds(1.5);
  const pid_t thread = find_thread(kServingThread);
  const CpuTime from = thread_cpu(thread);
  sleep_seconds(3);
  const double share = (thread_cpu(thread) - from).total / 3;
  load_.wait();
  tell({"1,000 idle connections", fmt::format("{:.2f} % of a core", share * 100), "", "below 0.5 %",
        share < 0.005});
}

// Bar 4.
void ServerBench::arrivals() {
  constexpr double kStep = 0.03, kSeconds = 10;
  for (const bool big : {false, true}) {
    ServerScene scene({1200, 600, kStep, ""});
    LoadTask task;
    task.port = scene.port();
    task.streams = 1000;
    task.stream_tokens = static_cast<int>((kSeconds + 2) / kStep);
    task.arrivals_per_second = big ? 0 : 100;
    task.arrival_tokens = 4;
    task.prompt_bytes = big ? 16 : 2048;
    task.seconds = kSeconds;
    task.probe_health = true;
    if (big) {
      // Its body comes while all streams run.
      task.big_body = true;
      task.seconds = 3;
    }
    const LoadResult got = load_.run(task);
    const std::string beside = fmt::format("1000 streams, steps of 30 ms, {}", delivered(got));
    if (!big) {
      tell({"first byte at 100 arrivals/s", fmt::format("p99 {}", milli(got.first_byte.p99)),
            beside, "a step and 50 ms",
            got.first_byte.p99 > 0 && got.first_byte.p99 <= kStep + 0.05 &&
                got.complete == got.asked});
    }
    tell({big ? "/health during a body of 16 MiB" : "/health meanwhile",
          fmt::format("p99 {}", milli(got.health.p99)),
          fmt::format("max {}", milli(got.health.max)), "at most 10 ms",
          got.health.p99 > 0 && got.health.p99 <= 0.01});
    if (big) {
      tell({"  between events of streams", fmt::format("p99 {}", milli(got.gap.p99)),
            fmt::format("max {}, steps of 30 ms", milli(got.gap.max)), "a step and 50 ms",
            got.gap.max > 0 && got.gap.max <= kStep + 0.05});
    }
  }
}

// Bar 5, requests that are answered whole.
void ServerBench::whole() {
  ServerScene scene({64, 128, 0, ""});
  LoadTask task;
  task.port = scene.port();
  task.closed_loop = 64;
  task.seconds = 4;
  const pid_t thread = find_thread(kServingThread);
  const double from = thread_cpu(thread).total;
  const LoadResult got = load_.run(task);
  const double rate = static_cast<double>(got.complete) / got.seconds;
  tell({"whole answers of a token, 64 clients", fmt::format("{:.0f} /s", rate),
        fmt::format("{:.0f} % of a core by the serving thread",
                    (thread_cpu(thread).total - from) / got.seconds * 100),
        "at least 5000 /s", rate >= 5000});
}

// Bar 5, against another server.
void ServerBench::peer() {
  if (options_.peer.empty()) {
    tell({"CPU per token against another server", "not measured", "--peer COMMAND", "", true});
    return;
  }
  int out[2];
  LATHE_CHECK(pipe(out) == 0, "a pipe");
  const pid_t process = fork();
  if (process == 0) {
    dup2(out[1], STDOUT_FILENO);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // its group gets no interrupt
    execl("/bin/sh", "sh", "-c", ("exec " + options_.peer).c_str(), nullptr);
    std::_Exit(127);
  }
  ::close(out[1]);
  FILE* lines = fdopen(out[0], "r");
  int port = 0;
  if (fscanf(lines, "%d", &port) != 1) port = 0;
  for (const int streams : {100, 1000}) {
    LoadTask task;
    task.streams = streams;
    task.stream_tokens = 100;
    task.port = port;
    const double before = process_cpu(process);
    const LoadResult theirs = port > 0 ? load_.run(task) : LoadResult();
    const auto tokens = static_cast<double>(std::max<std::int64_t>(1, theirs.tokens));
    const double their_cost = (process_cpu(process) - before) / tokens;
    ServerScene scene({streams, 256, 0.03, ""});
    task.port = scene.port();
    const double own = own_cpu();
    const LoadResult ours = load_.run(task);
    const double cost =
        (own_cpu() - own) / static_cast<double>(std::max<std::int64_t>(1, ours.tokens));
    const double ratio = their_cost / cost;
    tell({fmt::format("CPU per token, whole process, {} streams", streams), micro(cost),
          fmt::format("the other's {}, ratio {:.1f}; first byte p99 {}, {}", micro(their_cost),
                      ratio, milli(ours.first_byte.p99), milli(theirs.first_byte.p99)),
          "ratio at least 5",
          ratio >= 5 && ours.complete == streams && theirs.complete == streams});
  }
  kill(process, SIGTERM);
  waitpid(process, nullptr, 0);
  fclose(lines);
}

// Bar 6.
void ServerBench::ends() {
  std::int64_t worst = 0;
  {
    ServerScene scene({64, 4096, 0.02, ""});
    LoadTask task;
    task.port = scene.port();
    task.streams = 50;
    task.stream_tokens = 4000;
    for (int round = 0; round < 20; ++round) {
      task.leave_after = 2 + round;
      const double left = load_.run(task).left_at;
      sleep_seconds(0.3);
      worst = std::max(worst, scene.steps_since(left));
    }
    const std::string page = get(scene.port(), "/metrics");
    const bool free = page.find("\nlathe_num_held_pages 0\n") != std::string::npos;
    tell({"steps until pages of a client that left are free", fmt::format("{}", worst),
          fmt::format("1000 streams of 4000 tokens, 50 at once{}", free ? "" : ", pages are held"),
          "at most 2", free && worst <= 2});
  }
  ServerScene scene({1000, 512, 0.02, ""});
  LoadTask task;
  task.port = scene.port();
  task.streams = 1000;
  task.stream_tokens = 100;
  load_.start(task);
  const bool all = scene.wait_for_rows(1000);
  kill(getpid(), SIGTERM);
  const LoadResult got = load_.wait();
  const int code = scene.server().wait();
  tell({"SIGTERM in 1,000 streams", delivered(got), fmt::format("exit code {}", code), "all, 0",
        all && got.complete == 1000 && code == 0});
}

// Bar 7.
void ServerBench::idle() {
  ServerScene scene({64, 128, 0, ""});
  sleep_seconds(1);
  const pid_t thread = find_thread(kServingThread);
  const double cpu = own_cpu();
  const std::int64_t before = sleeps(thread);
  constexpr double kSeconds = 5;
  sleep_seconds(kSeconds);
  const double share = (own_cpu() - cpu) / kSeconds;
  const double wakes = static_cast<double>(sleeps(thread) - before) / kSeconds;
  tell({"idle server", fmt::format("{:.3f} % of a core", share * 100),
        fmt::format("{:.1f} wakes a second", wakes), "below 0.5 %, one a second",
        share < 0.005 && wakes <= 1.2});
}

// Bar 7.
void ServerBench::churn() {
  ServerScene scene({64, 4096, 0.002, ""});
  LoadTask task;
  task.port = scene.port();
  task.churn = 48;
  const auto seconds = static_cast<double>(options_.churn_seconds);
  task.seconds = seconds;
  load_.start(task);
  // By then everything that grows at the start has grown.
  sleep_seconds(seconds / 4);
  const auto early = static_cast<double>(resident_bytes());
  sleep_seconds(seconds * 0.7);
  const auto late = static_cast<double>(resident_bytes());
  const LoadResult got = load_.wait();
  std::string left;
  for (int i = 0; i < 100; ++i) {
    left.clear();
    const std::string page = get(scene.port(), "/metrics");
    for (const char* gauge : {"num_running_reqs", "num_queue_reqs", "queued_tokens", "open_streams",
                              "num_used_tokens", "num_held_pages", "gen_throughput"}) {
      if (page.find(fmt::format("\nlathe_{} 0\n", gauge)) == std::string::npos) {
        left += fmt::format(" {}", gauge);
      }
    }
    if (left.empty()) break;
    sleep_seconds(0.1);
  }
  const double growth = late / early - 1;
  tell({fmt::format("churn of {} s: memory", options_.churn_seconds),
        fmt::format("{:+.1f} %", growth * 100),
        fmt::format("{:.0f} MiB, {} answers", late / (1 << 20), got.complete), "flat to 5 %",
        growth <= 0.05 && got.complete > 0});
  tell({"  gauges and pages after it", left.empty() ? "all 0" : "not 0:" + left, "", "all 0",
        left.empty()});
}

struct Measurement {
  const char* name;
  void (ServerBench::*run)();
};
constexpr Measurement kMeasurements[] = {
    // First: what other rows leave in the heap would count as memory of its streams.
    {"streams", &ServerBench::streams}, {"instructions", &ServerBench::instructions},
    {"sends", &ServerBench::sends},     {"arrivals", &ServerBench::arrivals},
    {"whole", &ServerBench::whole},     {"peer", &ServerBench::peer},
    {"ends", &ServerBench::ends},       {"idle", &ServerBench::idle},
    {"churn", &ServerBench::churn},
};

// One stream to a client of this process, for callgrind, which would not follow another.
int count_tokens(const BenchServerOptions& options) {
  ServerScene scene(
      {1, 16 + options.count_tokens, 0.001, options.parsing ? "{# </think> <tool_call> #}" : ""});
  const std::string tools =
      options.parsing ? R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{}}}])"
                      : "";
  const std::string body =
      fmt::format(R"({{"messages":[{{"role":"user","content":"a"}}],"max_tokens":{},"stream":true,)"
                  R"("ignore_eos":true{}}})",
                  options.count_tokens, tools);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(scene.port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const std::string ask = fmt::format(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
      "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
      body.size(), body);
  bool ok = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
            ::send(fd, ask.data(), ask.size(), MSG_NOSIGNAL) > 0;
  std::array<char, 65536> part;
  std::string all;
  for (ssize_t n; ok && (n = recv(fd, part.data(), part.size(), 0)) > 0;) {
    all.append(part.data(), static_cast<std::size_t>(n));
  }
  ::close(fd);
  ok = ok && all.find("data: [DONE]") != std::string::npos;
  return ok ? kExitOk : kExitFailure;
}

}  // namespace

std::string check_bench_server_name(const std::string& name) {
  std::string known;
  for (const Measurement& m : kMeasurements) {
    if (name == m.name) return "";
    known += fmt::format("{}{}", known.empty() ? "" : ", ", m.name);
  }
  return fmt::format("wanted one of {}, got {}", known, name);
}

int bench_server_command(const BenchServerOptions& options) {
  if (options.count_tokens > 0) return count_tokens(options);
  LoadClient load(1);
  run_on_core(0);
  ServerBench bench(options, load);
  for (const Measurement& m : kMeasurements) {
    const bool wanted = options.only.empty() || std::find(options.only.begin(), options.only.end(),
                                                          m.name) != options.only.end();
    if (wanted) (bench.*m.run)();
  }
  bool ok = true;
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Figure& f : bench.figures()) {
    ok &= f.ok;
    rows.push_back(
        {{"name", f.name}, {"value", f.value}, {"beside", f.beside}, {"bar", f.bar}, {"ok", f.ok}});
  }
  if (options.json) print_out(json_text(rows, 2) + "\n");
  return ok ? kExitOk : kExitFailure;
}

}  // namespace lathe
