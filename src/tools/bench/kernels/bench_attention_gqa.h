// `lathe bench`: the CPU's grouped-query and ragged attention kernels.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lathe {

struct AttentionBenchOptions {
  std::vector<int> threads = {1, 0};  // 0 = one per core
  int repeats = 9;                    // medians are taken over these
  double most_seconds = 1.5;          // a row stops repeating after this long, but not before 3
};

/// GFLOP count a multiply-add as two: scores and values over the keys that a row sees, and for
/// ragged the expansion of every key once per head. GB are 10^9 bytes of keys and values, each
/// counted once.
struct AttentionBenchRow {
  std::string name;  // "gqa decode", "gqa extend", "ragged extend"
  std::string layout;
  std::int64_t batch = 0;
  std::int64_t rows = 0;  // per request
  std::int32_t heads = 0;
  std::int32_t kv_heads = 0;  // ragged: 1, the latent
  std::int64_t context = 0;
  int threads = 0;
  double seconds = 0;  // median of one call
  double gflop_per_s = 0;
  double gb_per_s = 0;
};

/// 32 query and 8 kv heads of 128, bf16 and fp8. Decode with batch 1 reads at least 64 MiB, well
/// over a third-level cache's share of one core.
std::vector<AttentionBenchRow> bench_gqa(const AttentionBenchOptions& options);

/// DeepSeek V3's latents, 16 heads (a rank of eight), one request.
std::vector<AttentionBenchRow> bench_ragged(const AttentionBenchOptions& options);

}  // namespace lathe
