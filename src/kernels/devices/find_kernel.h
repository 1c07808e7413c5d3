// Finds the kernel of a single attention call by device and kind.
#pragma once

#include <optional>
#include <string_view>

#include "attn/capability.h"
#include "attn/problem.h"
#include "base/result.h"
#include "layout/pages/pool_view.h"

namespace lathe {

/// pool, extra: the pools that it must read in place; a device may have several kernels of a kind.
/// Errors: no such kernel, none that reads these pools, or one that this build cannot run.
Result<Kernel> find_kernel(std::string_view device, std::string_view kind, ProblemKind problem,
                           const std::optional<ConstPoolView>& pool = {},
                           const std::optional<ConstPoolView>& extra = {});

}  // namespace lathe
