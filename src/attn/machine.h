// Machine: the hardware that a plan is for. It is queried from this computer, or described: a
// laptop can make a plan for an H200.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/enum.h"

namespace lathe {

/// Where a kernel runs. `ref` is the double-precision oracle on the CPU; sm80, sm90 and sm100 are
/// GPU architectures.
#define LATHE_DEVICES(X) X(ref) X(cpu) X(sm80) X(sm90) X(sm100)
LATHE_ENUM(Device, LATHE_DEVICES)

constexpr bool is_gpu(Device d) { return d != Device::ref && d != Device::cpu; }

struct Machine {
  Device device = Device::cpu;
  std::string model;                    // "H200", for messages
  std::int32_t processors = 1;          // multiprocessors or cores
  std::int64_t block_shared_bytes = 0;  // most shared memory of one block; 0 on a CPU
  std::int64_t memory_bytes = 0;
  // Peak rates for the cost model, which ranks candidates. They are not promises.
  double bytes_per_second = 0;
  double bf16_flops = 0;
  double fp8_flops = 0;  // bf16_flops if the machine has no fp8 arithmetic

  // Devices of this kind that can share a model, and how they exchange.
  std::int32_t ranks = 1;
  std::vector<std::int64_t> free_bytes;  // [ranks] of each device; empty: memory_bytes of each
  double link_bytes_per_second = 0;      // from one device to its peers, in one direction
  bool peers = true;                     // every device reads and writes the memory of every other
  bool nccl = true;                      // NCCL can be opened

  bool operator==(const Machine&) const = default;
};

/// A typical machine of a device: A100 for sm80, H200 for sm90, B200 for sm100; for cpu and ref the
/// host.
Machine describe_machine(Device device);

/// `ranks` such devices: GPUs that NVLink joins, or a CPU's threads in groups.
Machine with_ranks(Machine machine, std::int32_t ranks);

/// What one rank of `ranks` has: the least free memory of the GPUs, or its part of a CPU.
Machine rank_machine(Machine machine, std::int32_t ranks);

}  // namespace lathe
