// `lathe bench attention`: the CPU's attention kernels beside the machine's limits, measured in the same run.
#pragma once

namespace lathe {

struct BenchAttentionOptions {
  int repeats = 7;
  bool quick = false;  // fewer latent cases
  bool json = false;
};

/// Prints a table, or JSON, on stdout; progress on stderr where that is a terminal. Takes about two minutes. Returns the exit code.
int bench_attention_command(const BenchAttentionOptions& options);

}  // namespace lathe
