// Every kernel and adapter that this build holds.
#pragma once

#include "attn/registry.h"

namespace lathe {

Registry all_kernels();

}  // namespace lathe
