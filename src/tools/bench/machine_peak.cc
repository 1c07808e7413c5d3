#include "tools/bench/machine_peak.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

#include "base/arena.h"
#include "kernels/cpu/matmul/matmul_bf16.h"
#include "layout/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tools/bench/machine_peak.cc"
#include "hwy/foreach_target.h"
// The SIMD headers follow foreach_target.h, which includes this file once per target.
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lathe {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Twelve chains: more than latency times pipes on any known CPU, and few enough for 16 registers.
// Returns the FLOPs done.
double fma_loop(std::int64_t rounds, float* sink) {
  const hn::ScalableTag<float> d;
  const auto a = hn::Set(d, sink[0]);  // unknown to the compiler
  const auto b = hn::Set(d, sink[1]);
  // The compiler would merge chains that start with the same value.
  auto x0 = hn::Set(d, sink[2]), x1 = hn::Set(d, sink[3]), x2 = hn::Set(d, sink[4]);
  auto x3 = hn::Set(d, sink[5]), x4 = hn::Set(d, sink[6]), x5 = hn::Set(d, sink[7]);
  auto x6 = hn::Set(d, sink[8]), x7 = hn::Set(d, sink[9]), x8 = hn::Set(d, sink[10]);
  auto x9 = hn::Set(d, sink[11]), x10 = hn::Set(d, sink[12]), x11 = hn::Set(d, sink[13]);
  for (std::int64_t i = 0; i < rounds; ++i) {
    x0 = hn::MulAdd(x0, a, b);
    x1 = hn::MulAdd(x1, a, b);
    x2 = hn::MulAdd(x2, a, b);
    x3 = hn::MulAdd(x3, a, b);
    x4 = hn::MulAdd(x4, a, b);
    x5 = hn::MulAdd(x5, a, b);
    x6 = hn::MulAdd(x6, a, b);
    x7 = hn::MulAdd(x7, a, b);
    x8 = hn::MulAdd(x8, a, b);
    x9 = hn::MulAdd(x9, a, b);
    x10 = hn::MulAdd(x10, a, b);
    x11 = hn::MulAdd(x11, a, b);
  }
  const auto s0 = hn::Add(hn::Add(x0, x1), hn::Add(x2, x3));
  const auto s1 = hn::Add(hn::Add(x4, x5), hn::Add(x6, x7));
  const auto s2 = hn::Add(hn::Add(x8, x9), hn::Add(x10, x11));
  sink[2] = hn::GetLane(hn::SumOfLanes(d, hn::Add(s0, hn::Add(s1, s2))));
  return static_cast<double>(rounds) * 12 * 2 * static_cast<double>(hn::Lanes(d));
}

// The sum of n floats, without a tail of fewer than four vectors.
void read_loop(const float* from, std::int64_t n, float* sink) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  for (std::int64_t i = 0; i + 4 * lanes <= n; i += 4 * lanes) {
    s0 = hn::Add(s0, hn::LoadU(d, from + i));
    s1 = hn::Add(s1, hn::LoadU(d, from + i + lanes));
    s2 = hn::Add(s2, hn::LoadU(d, from + i + 2 * lanes));
    s3 = hn::Add(s3, hn::LoadU(d, from + i + 3 * lanes));
  }
  sink[0] += hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}

// Copies n floats past the caches, without a tail of less than a vector. `to`: aligned to 64 bytes.
void copy_loop(const float* from, std::int64_t n, float* to) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i + lanes <= n; i += lanes)
    hn::Stream(hn::LoadU(d, from + i), d, to + i);
  hwy::FlushStream();
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lathe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(fma_loop);
HWY_EXPORT(read_loop);
HWY_EXPORT(copy_loop);

namespace {

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}
template <class F>
double seconds_of(F f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
template <class F>
double median_seconds(int repeats, F f) {
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) seconds.push_back(seconds_of(f));
  return median_of(std::move(seconds));
}

struct alignas(64) Line {
  float values[16] = {0.999f, 0.001f, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
};

// loop(rounds, sink) on every thread, FLOPs returned.
template <class Loop>
double peak_gflops(ThreadPool& threads, int repeats, Loop loop) {
  constexpr std::int64_t kRounds = 4'000'000;
  const int n = threads.threads();
  std::vector<Line> lines(static_cast<std::size_t>(n));
  std::vector<double> flops(static_cast<std::size_t>(n));
  const double seconds = median_seconds(repeats, [&] {
    threads.run(n, [&](std::int64_t task, int) {
      const auto t = static_cast<std::size_t>(task);
      flops[t] = loop(kRounds, lines[t].values);
    });
  });
  double all = 0;
  for (const double f : flops) all += f;
  return all / seconds / 1e9;
}

}  // namespace

double measure_peak_gflops(ThreadPool& threads, int repeats) {
  return peak_gflops(threads, repeats, [](std::int64_t rounds, float* sink) {
    return HWY_DYNAMIC_DISPATCH(fma_loop)(rounds, sink);
  });
}

double measure_bf16_peak_gflops(ThreadPool& threads, int repeats) {
  return cpu_has_bf16_dot() ? peak_gflops(threads, repeats, bf16_dot_loop) : 0;
}

namespace {

// Seconds of loop(from, n, worker) over all of `data`, in blocks on all threads of the pool.
template <class Loop>
double pass_seconds(ThreadPool& threads, std::span<const float> data, Loop loop) {
  constexpr std::size_t kBlock = 1 << 18;  // floats
  return seconds_of([&] {
    threads.run(static_cast<std::int64_t>((data.size() + kBlock - 1) / kBlock),
                [&](std::int64_t task, int worker) {
                  const auto begin = static_cast<std::size_t>(task) * kBlock;
                  const std::size_t n = std::min(kBlock, data.size() - begin);
                  loop(data.data() + begin, static_cast<std::int64_t>(n), worker);
                });
  });
}

}  // namespace

double read_seconds(ThreadPool& threads, std::span<const float> data) {
  std::vector<Line> lines(static_cast<std::size_t>(threads.threads()));
  return pass_seconds(threads, data, [&](const float* from, std::int64_t n, int worker) {
    HWY_DYNAMIC_DISPATCH(read_loop)(from, n, lines[static_cast<std::size_t>(worker)].values);
  });
}

double copy_seconds(ThreadPool& threads, std::span<const float> data, float* to) {
  return pass_seconds(threads, data, [&](const float* from, std::int64_t n, int) {
    HWY_DYNAMIC_DISPATCH(copy_loop)(from, n, to + (from - data.data()));
  });
}

double measure_read_gbps(ThreadPool& threads, std::int64_t bytes, int repeats) {
  Arena arena;  // pages of the kind that caches have
  const std::span data(arena.take_array<float>(bytes / 4), static_cast<std::size_t>(bytes / 4));
  std::ranges::fill(data, 1.0f);
  return static_cast<double>(bytes) / 1e9 /
         median_seconds(repeats, [&] { static_cast<void>(read_seconds(threads, data)); });
}

}  // namespace lathe
#endif  // HWY_ONCE
