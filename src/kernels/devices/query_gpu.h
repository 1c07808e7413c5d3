// Describes this computer's GPUs as Machines, from their properties and clocks.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "attn/machine.h"
#include "base/result.h"

namespace lathe {

/// How many GPUs there are; 0 where the build has no CUDA or no driver answers.
std::int32_t gpu_count();

/// Empty if there is no such GPU, or Lathe does not know its architecture.
std::optional<Machine> query_gpu(std::int32_t number = 0);

/// Makes a GPU the calling thread's. Errors: the device's.
Result<void> use_gpu(std::int32_t number);

/// Bytes of a GPU that are free now; 0 where there is no such GPU. Makes a context on it.
std::int64_t free_gpu_bytes(std::int32_t number = 0);

/// Whether each of these GPUs can read and write the memory of every other.
bool peer_access(std::span<const std::int32_t> numbers);

/// Whether NCCL is there, in a version that works. Opens it, and it stays open.
bool has_nccl();

}  // namespace lathe
