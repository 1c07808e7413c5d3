#include "kernels/cpu/register.h"

namespace lathe {

void register_cpu_kernels(Registry&) {}

}  // namespace lathe
