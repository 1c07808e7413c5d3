// Describes this computer's GPU as a Machine, from its properties and clocks.
#pragma once

#include <cstdint>
#include <optional>

#include "attn/machine.h"

namespace lathe {

/// GPU 0. Empty if the build has no CUDA, no driver answers, or Lathe does not know the
/// architecture.
std::optional<Machine> query_gpu();

/// Bytes of GPU 0 that are free now; 0 where there is no GPU.
std::int64_t free_gpu_bytes();

}  // namespace lathe
