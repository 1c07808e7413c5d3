// The flags of the benches of kernels.
#pragma once

#include "tools/flags/command.h"

namespace lathe {

/// Adds codec, attention, matmul, sampling and exchange to `lathe bench`.
void add_kernel_benches(Command bench, int& exit_code);

}  // namespace lathe
