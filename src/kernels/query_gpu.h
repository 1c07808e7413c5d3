// The GPU of this computer, as a Machine.
#pragma once

#include <optional>

#include "attn/machine.h"

namespace lathe {

/// GPU 0 with its own limits. Empty where the build has no CUDA, no driver answers, or the
/// architecture is none that Lathe names.
std::optional<Machine> query_gpu();

}  // namespace lathe
