// `lathe bench attention`: a device's attention kernels against the machine's limits, measured in
// the same run.
#pragma once

#include <string>

namespace lathe {

struct BenchAttentionOptions {
  std::string device = "cpu";  // or cuda: latent attention
  int repeats = 7;
  bool quick = false;  // fewer latent cases
  bool json = false;
};

/// Prints a table, or JSON, on stdout; progress on stderr where that is a terminal. Takes about two
/// minutes on a CPU. Returns the exit code, 2 without a GPU where one is asked for.
int bench_attention_command(const BenchAttentionOptions& options);

}  // namespace lathe
