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

/// Prints a table, or JSON, on stdout, and progress on stderr if that is a terminal. Needs about
/// two minutes on a CPU. Returns the exit code: 2 if a GPU is asked for and there is none.
int bench_attention_command(const BenchAttentionOptions& options);

}  // namespace lathe
