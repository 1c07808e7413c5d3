#include "attn/machine.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "attn/ranks.h"

namespace lathe {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

// Per core of a current server: about 10 GB/s of memory, and 32 fused multiply-adds of f32 per
// cycle at 3 GHz.
Machine host(Device device) {
  Machine m;
  m.device = device;
  m.model = "host";
  m.processors = static_cast<std::int32_t>(std::max(1u, std::thread::hardware_concurrency()));
  m.memory_bytes = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  m.bytes_per_second = 10e9 * m.processors;
  m.bf16_flops = 2 * 32 * 3e9 * m.processors;
  m.fp8_flops = m.bf16_flops;
  return m;
}

}  // namespace

// Numbers of the vendors' data sheets. block_shared_bytes is
// cudaDevAttrMaxSharedMemoryPerBlockOptin, 1 KiB less than a multiprocessor has.
Machine describe_machine(Device device) {
  Machine m;
  m.device = device;
  switch (device) {
    case Device::sm80:
      m.model = "A100";
      m.processors = 108;
      m.block_shared_bytes = 163 * 1024;
      m.memory_bytes = 80 * kGiB;
      m.bytes_per_second = 2.039e12;
      m.bf16_flops = m.fp8_flops = 312e12;
      return with_ranks(m, 1);
    case Device::sm90:
      m.model = "H200";
      m.processors = 132;
      m.block_shared_bytes = 227 * 1024;
      m.memory_bytes = 139 * kGiB;
      m.bytes_per_second = 4.8e12;
      m.bf16_flops = 989e12;
      m.fp8_flops = 1979e12;
      return with_ranks(m, 1);
    case Device::sm100:
      m.model = "B200";
      m.processors = 148;
      m.block_shared_bytes = 227 * 1024;
      m.memory_bytes = 178 * kGiB;
      m.bytes_per_second = 8e12;
      m.bf16_flops = 2250e12;
      m.fp8_flops = 4500e12;
      return with_ranks(m, 1);
    case Device::ref:
    case Device::cpu:
      break;
  }
  return with_ranks(host(device), kMostRanks);
}

Machine with_ranks(Machine machine, std::int32_t ranks) {
  constexpr double kNvlink = 366e9;  // measured between two H200 with 18 links
  machine.ranks = ranks;
  // Threads exchange through memory: a write and a read.
  machine.link_bytes_per_second = is_gpu(machine.device) ? kNvlink : machine.bytes_per_second / 2;
  return machine;
}

Machine rank_machine(Machine machine, std::int32_t ranks) {
  if (is_gpu(machine.device)) {
    const auto n = std::min(static_cast<std::size_t>(ranks), machine.free_bytes.size());
    for (std::size_t r = 0; r < n; ++r) {
      machine.memory_bytes = std::min(machine.memory_bytes, machine.free_bytes[r]);
    }
    return machine;
  }
  machine.processors = std::max(1, machine.processors / ranks);
  machine.memory_bytes /= ranks;
  for (double* rate : {&machine.bytes_per_second, &machine.bf16_flops, &machine.fp8_flops}) {
    *rate /= ranks;
  }
  return machine;
}

}  // namespace lathe
