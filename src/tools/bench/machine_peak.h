// Measures the peak rates of the machine's arithmetic and memory: the limits that kernels are
// compared with.
#pragma once

#include <cstdint>
#include <span>

#include "base/threads.h"

namespace lathe {

/// Peak GFLOP/s of FMAs on registers, on all threads of the pool (a multiply-add counts as two).
/// The median of `repeats` runs of some milliseconds.
double measure_peak_gflops(ThreadPool& threads, int repeats = 5);

/// Peak GFLOP/s of dot products of bf16 pairs (a pair is two multiply-adds); 0 if the CPU has none.
double measure_bf16_peak_gflops(ThreadPool& threads, int repeats = 5);

/// Seconds of one streaming read of `data`, on all threads of the pool.
double read_seconds(ThreadPool& threads, std::span<const float> data);

/// Seconds of one copy of `data` past the caches to [data.size()] floats at `to`, which are aligned
/// to 64 bytes.
double copy_seconds(ThreadPool& threads, std::span<const float> data, float* to);

/// A streaming read of `bytes`, on all threads of the pool: GB/s (10^9 bytes). The median of
/// `repeats` passes. `bytes` should be well over the last-level cache.
double measure_read_gbps(ThreadPool& threads, std::int64_t bytes = std::int64_t{256} << 20,
                         int repeats = 5);

}  // namespace lathe
