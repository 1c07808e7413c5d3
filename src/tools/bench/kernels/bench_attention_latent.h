// Measures the CPU's latent attention against the machine's limits in the same run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lathe {

struct LatentBenchOptions {
  int repeats = 7;              // medians are taken over these
  double least_seconds = 0.02;  // a repeat calls the kernel until this much has passed
  std::vector<int> threads;     // empty: 1, and one per usable core
  bool quick = false;           // only the cases of 16 heads and 4096 keys
};

/// Splits are fixed (Execution::batch_invariant). The limits are measured just before, with the
/// same number of threads; a case's repeats alternate between few and many threads. A pair of a
/// head and a key costs 2 (qk_dim + v_dim) FLOPs. Bytes are the stored bytes of the keys, once per
/// row that has its own list, else once per request.
struct LatentBenchRow {
  std::string name;    // dense_decode, sparse_decode, v4_decode, dense_extend
  std::string layout;  // CacheLayout::name
  std::int64_t batch = 0;
  std::int64_t rows = 1;  // of q per request
  std::int64_t heads = 0;
  std::int64_t context = 0;
  std::int64_t k = 0;  // keys of a row's list; 0 = none
  int threads = 1;
  double seconds = 0;  // median of a call
  double gflops = 0;
  double gbps = 0;
  double peak_gflops = 0;
  double read_gbps = 0;
  double share = 0;  // of the nearer limit: least possible seconds / seconds
  double scaling =
      0;  // seconds with the first number of threads / seconds, taken in turns; 0 = not taken
};

/// Needs about a minute and some 400 MB.
std::vector<LatentBenchRow> run_latent_bench(const LatentBenchOptions& options);

}  // namespace lathe
