// The benches on this computer's GPU: the same cases, rows and figures as on the CPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "tools/bench/kernels/bench_attention_latent.h"
#include "tools/bench/kernels/bench_codec.h"

namespace lathe {

struct GpuInfo {
  std::string model;
  int processors = 0;
};

/// Makes the GPU current for the calling thread. Errors: a build without CUDA; open_device()'s
/// (kernels/cuda/common/device.h).
Result<GpuInfo> open_gpu();

/// Latent attention, timed by CUDA events without the schedule, which a step's layers share. A
/// row's `threads` are the GPU's processors. read_gbps is the rate of a copy in the same run, read
/// plus written; peak_gflops is the rate of large bf16 GEMMs on an H200, scaled by the number of
/// processors. Call open_gpu() first.
std::vector<LatentBenchRow> bench_latent_on_gpu(const GpuInfo& gpu, int repeats, bool quick);

/// The codecs against a copy on the device, in the same run. Call open_gpu() first.
std::vector<CodecBenchRow> bench_codec_on_gpu(std::int64_t bytes, int repeats);

}  // namespace lathe
