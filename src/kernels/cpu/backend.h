// The CPU's backend: each operator calls its SIMD kernel, split over the threads of a pool.
#pragma once

#include <memory>

#include "kernels/backend.h"

namespace lathe {

std::unique_ptr<Backend> make_cpu_backend();

}  // namespace lathe
