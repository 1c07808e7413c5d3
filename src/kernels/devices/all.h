// Every kernel, adapter and backend that this build knows.
#pragma once

#include <memory>

#include "base/result.h"
#include "kernels/backend.h"
#include "plan/registry.h"

namespace lathe {

Registry all_kernels();
/// Those of whole models on a device. A GPU's have no adapters: kernels over compact rows are for
/// callers of one attention call, who gather the rows themselves.
Registry model_kernels(Device device);

/// sm90: GPU 0. Errors: a device that whole models don't run on, or that is not there or unfit.
Result<std::unique_ptr<Backend>> make_backend(Device device);

}  // namespace lathe
