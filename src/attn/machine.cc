#include "attn/machine.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

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
  switch (device) {
    case Device::sm80:
      return {device, "A100", 108, 163 * 1024, 80 * kGiB, 2.039e12, 312e12, 312e12};
    case Device::sm90:
      return {device, "H200", 132, 227 * 1024, 139 * kGiB, 4.8e12, 989e12, 1979e12};
    case Device::sm100:
      return {device, "B200", 148, 227 * 1024, 178 * kGiB, 8e12, 2250e12, 4500e12};
    case Device::ref:
    case Device::cpu:
      break;
  }
  return host(device);
}

}  // namespace lathe
