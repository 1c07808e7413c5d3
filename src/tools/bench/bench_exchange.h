// `lathe bench exchange`: sums over the GPUs of a group with the norm that follows, as a step's
// layers make them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lathe {

struct BenchExchangeOptions {
  std::vector<std::int64_t> gpus = {0, 1};
  std::string exchange = "auto";  // peer, nccl; auto: peer, and nccl where the library is found
  std::vector<std::int64_t> rows = {1, 16, 64, 256, 1024, 8192};
  std::int64_t cols = 7168;
  int repeats = 9;
  bool json = false;
};

/// Prints microseconds of a sum_norm, a recorded graph of many divided by their number, as a table
/// or as JSON on stdout. Returns the exit code: 2 if GPUs or the library are missing.
int bench_exchange_command(const BenchExchangeOptions& options);

}  // namespace lathe
