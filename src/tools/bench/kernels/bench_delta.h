// `lathe bench attention`: the CPU's decode steps of delta-rule layers.
#pragma once

#include <vector>

#include "tools/bench/kernels/bench_attention_latent.h"

namespace lathe {

/// GDN of Qwen3.5-35B-A3B (32 value heads of 128, 16 key heads) and KDA of Kimi-Linear (32 heads),
/// a row of each request. Steps write the states to other slots than they read, as an engine's do.
/// gbps counts the states once, as they are read; read_gbps is a read of the states, in turns with
/// the steps.
std::vector<LatentBenchRow> bench_delta(int repeats);

}  // namespace lathe
