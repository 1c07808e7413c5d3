// Names of threads, as top and gdb show them.
#pragma once

#include <pthread.h>

namespace lathe {

/// Names the calling thread. At most 15 bytes.
inline void name_thread(const char* name) { pthread_setname_np(pthread_self(), name); }

}  // namespace lathe
