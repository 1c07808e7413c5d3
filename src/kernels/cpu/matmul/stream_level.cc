#include "kernels/cpu/matmul/stream_level.h"

namespace lathe {

bool streams_through_first_level() {
#if defined(__x86_64__) && defined(__GNUC__)
  return __builtin_cpu_is("intel") != 0;
#else
  return false;
#endif
}

}  // namespace lathe
