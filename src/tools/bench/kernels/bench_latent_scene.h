// Shared by the benches of latent attention on all devices: a cache, the arguments of a case in
// host memory, and how a case's time becomes a row.
#pragma once

#include <cstdint>
#include <vector>

#include "attn/attend.h"
#include "tools/bench/kernels/bench_attention_latent.h"

namespace lathe {

inline constexpr std::int32_t kBenchPage = 64;

/// A pool of random rows that the cases share, its pages in shuffled order.
struct LatentBenchCache {
  CacheLayout layout;
  std::int64_t tokens;
  std::vector<std::byte> bytes;
  std::vector<PageId> pages;

  LatentBenchCache(const CacheLayout& l, std::int64_t n);
  ConstPoolView view() const { return {bytes.data(), layout, kBenchPage, tokens / kBenchPage}; }
};

struct LatentBenchCase {
  const char* name;
  ProblemKind problem;
  std::int64_t batch, rows, heads, context;
  std::int64_t k;  // keys of a row's list; 0 = by page table
};

/// The arguments of a case, q and out in f32, and what they point to. Requests share pages where
/// the cache has too few.
struct LatentBenchSetup {
  std::vector<float> q, out;
  std::vector<std::int32_t> indptr{0}, lens, list;
  std::vector<PageId> table;
  AttendArgs args;

  LatentBenchSetup(const LatentBenchCase& c, const LatentBenchCache& cache);
  LatentBenchSetup(const LatentBenchSetup&) = delete;
};

/// A case's figures and limits; the caller fills in threads and scaling.
LatentBenchRow latent_bench_row(const LatentBenchCase& c, const AttentionProblem& problem,
                                const CacheLayout& layout, double seconds, double peak_gflops,
                                double read_gbps);

}  // namespace lathe
