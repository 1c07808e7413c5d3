#include "tools/bench/server/process_cpu.h"

#include <fmt/format.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace lathe {
namespace {

std::string read_all(const std::string& path) {
  std::ifstream in(path);
  std::stringstream out;
  out << in.rdbuf();
  return out.str();
}

struct Ticks {
  double user = 0, system = 0;  // seconds
};

// utime and stime, fields 14 and 15; the second, a name, may hold anything in parentheses.
Ticks ticks_of(const std::string& path) {
  const std::string text = read_all(path);
  const std::size_t name = text.rfind(')');
  if (name == std::string::npos) return {};
  std::istringstream fields(text.substr(name + 1));
  std::string skipped;
  for (int i = 3; i < 14; ++i) fields >> skipped;
  Ticks out;
  fields >> out.user >> out.system;
  const auto per_second = static_cast<double>(sysconf(_SC_CLK_TCK));
  out.user /= per_second;
  out.system /= per_second;
  return out;
}

// The clock that pthread_getcpuclockid() gives, from the thread's number.
clockid_t cpu_clock(pid_t thread) {
  return static_cast<clockid_t>(~static_cast<unsigned>(thread) << 3 | 6u);
}

}  // namespace

pid_t find_thread(std::string_view name) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string text = read_all((entry.path() / "comm").string());
    if (!text.empty()) text.pop_back();
    if (text == name) return static_cast<pid_t>(std::stol(entry.path().filename().string()));
  }
  return 0;
}

CpuTime thread_cpu(pid_t thread) {
  timespec t{};
  clock_gettime(cpu_clock(thread), &t);
  const Ticks ticks = ticks_of(fmt::format("/proc/self/task/{}/stat", thread));
  return {static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec), ticks.user,
          ticks.system};
}

double process_cpu(pid_t process) {
  const Ticks ticks = ticks_of(fmt::format("/proc/{}/stat", process));
  return ticks.user + ticks.system;
}

std::int64_t sleeps(pid_t thread) {
  const std::string text = read_all(fmt::format("/proc/self/task/{}/status", thread));
  constexpr std::string_view kName = "\nvoluntary_ctxt_switches:";
  const std::size_t at = text.find(kName);
  return at == std::string::npos ? 0 : std::atoll(text.c_str() + at + kName.size());
}

std::int64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  std::int64_t all = 0, resident = 0;
  in >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace lathe
