// Checks what the CPU's latent kernels need beyond check_latent_args().
#pragma once

#include "attn/attend.h"

namespace lathe {

/// check_latent_args(), and that the scales are within the codecs' bounds, so that decoding cannot
/// fail after outputs have been written.
Result<void> check_cpu_latent_args(const AttendArgs& args);

}  // namespace lathe
