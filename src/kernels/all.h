// Every kernel, adapter and backend that this build knows.
#pragma once

#include <memory>

#include "attn/registry.h"
#include "base/result.h"
#include "kernels/backend.h"

namespace lathe {

Registry all_kernels();

/// Errors: a device that whole models don't run on.
Result<std::unique_ptr<Backend>> make_backend(Device device);

}  // namespace lathe
