// The kernel of one attention call, by its device and kind.
#pragma once

#include <optional>
#include <string_view>

#include "attn/capability.h"
#include "attn/problem.h"
#include "base/result.h"
#include "layout/pages/pool_view.h"

namespace lathe {

/// pool, extra: what it must read where it lies; a device may have several kernels of a kind.
/// Errors: no such kernel, none that reads them, or one that this build cannot run.
Result<Kernel> find_kernel(std::string_view device, std::string_view kind, ProblemKind problem,
                           const std::optional<ConstPoolView>& pool = {},
                           const std::optional<ConstPoolView>& extra = {});

}  // namespace lathe
