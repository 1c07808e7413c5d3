// `lathe bench exchange`: sums over the ranks of a group, GPUs or groups of threads, with the norm
// that follows, as a step's layers make them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lathe {

struct BenchExchangeOptions {
  std::string device = "cuda";              // or cpu
  std::vector<std::int64_t> gpus = {0, 1};  // a rank's GPU; on a CPU the ranks are counted alone
  std::string exchange = "auto";  // peer, nccl; auto: peer, and nccl where the library is found
  std::vector<std::int64_t> rows = {1, 16, 64, 256, 1024, 8192};
  std::int64_t cols = 7168;
  int repeats = 9;
  bool json = false;
};

/// Prints microseconds of a sum_norm as a table or as JSON on stdout: on GPUs a recorded graph of
/// many, divided by their number. Returns the exit code: 2 if GPUs or the library are missing.
int bench_exchange_command(const BenchExchangeOptions& options);

}  // namespace lathe
