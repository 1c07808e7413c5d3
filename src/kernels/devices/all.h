// All kernels, adapters and backends of this build.
#pragma once

#include <memory>

#include "base/result.h"
#include "kernels/backend.h"
#include "plan/registry.h"

namespace lathe {

Registry all_kernels();
/// The kernels that whole models may use on a device. For a GPU there are no adapters: its kernels
/// over compact rows are for callers of single attention calls, who gather the rows themselves.
Registry model_kernels(Device device);

/// sm90: GPU 0. Errors: a device that whole models don't run on, or that is missing or unfit.
Result<std::unique_ptr<Backend>> make_backend(Device device);

}  // namespace lathe
