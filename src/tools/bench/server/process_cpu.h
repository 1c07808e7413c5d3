// The CPU time and memory of threads and processes, as the system counts them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string_view>

namespace lathe {

struct CpuTime {
  double total = 0;             // seconds, exact
  double user = 0, system = 0;  // the two parts of it, in clock ticks

  CpuTime operator-(const CpuTime& before) const {
    return {total - before.total, user - before.user, system - before.system};
  }
  /// Seconds in user mode, by the ticks' shares.
  double in_user() const { return user > 0 ? total * user / (user + system) : 0; }
};

/// The first thread of this process with that name. 0: there is none.
pid_t find_thread(std::string_view name);
/// CPU time of a thread of this process.
CpuTime thread_cpu(pid_t thread);
/// CPU seconds of a process, over all threads.
double process_cpu(pid_t process);
/// How often a thread of this process has gone to sleep.
std::int64_t sleeps(pid_t thread);
/// Bytes of this process in memory.
std::int64_t resident_bytes();

}  // namespace lathe
