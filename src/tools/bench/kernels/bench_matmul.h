// `lathe bench matmul`: products with weights on the CPU against the machine's limits, measured in
// the same run.
#pragma once

#include <string>

namespace lathe {

struct BenchMatmulOptions {
  int repeats = 9;
  int threads = 0;   // 0: 1 and 2
  std::string only;  // cases of this name; empty: all
  bool json = false;
};

/// Prints a table, or JSON, on stdout; progress on stderr where that is a terminal. Returns the
/// exit code.
int bench_matmul_command(const BenchMatmulOptions& options);

}  // namespace lathe
