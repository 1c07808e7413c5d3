// Every kernel and adapter that this build knows.
#pragma once

#include "attn/registry.h"

namespace lathe {

Registry all_kernels();

}  // namespace lathe
