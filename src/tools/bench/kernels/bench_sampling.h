// `lathe bench sampling`: tokens from rows of logits, on the CPU against one read of the logits.
#pragma once

#include <cstdint>
#include <string>

namespace lathe {

struct BenchSamplingOptions {
  std::int64_t vocab = 129280;
  int rows = 16;
  int repeats = 9;
  int threads = 0;             // 0: 1 and 2; a GPU has none
  std::string device = "cpu";  // or "cuda"
  bool json = false;
};

/// Prints a table, or JSON, on stdout, and progress on stderr if that is a terminal. Returns the
/// exit code: 2 if a GPU is asked for and there is none.
int bench_sampling_command(const BenchSamplingOptions& options);

}  // namespace lathe
