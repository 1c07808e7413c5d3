// lathe bench server: what the server costs on top of the engine, and whether it keeps its bounds
// under load. The server, with a scripted model, runs in this process on one core, and its clients
// in another process on another core.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lathe {

struct BenchServerOptions {
  std::vector<std::string> only;  // measurements by name; empty: all
  std::int64_t churn_seconds = 20;
  std::string peer;               // a command that starts a server to compare with; empty: none
  std::int64_t count_tokens = 0;  // stream this many tokens and exit, for callgrind; 0: measure
  bool parsing = false;           // with count_tokens: look for reasoning and tool calls
  bool json = false;
};

/// Runs and prints; returns the exit code: 1 if a bar is missed.
int bench_server_command(const BenchServerOptions& options);

/// What is wrong with a name for BenchServerOptions::only; empty: nothing.
std::string check_bench_server_name(const std::string& name);

}  // namespace lathe
