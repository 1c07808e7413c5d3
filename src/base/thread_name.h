// What tools such as top call a thread.
#pragma once

#include <pthread.h>

namespace lathe {

/// Of the calling thread; at most 15 bytes.
inline void name_thread(const char* name) { pthread_setname_np(pthread_self(), name); }

}  // namespace lathe
