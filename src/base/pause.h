// pause_thread(): for loops that wait for another thread without sleeping.
#pragma once

#if !defined(__x86_64__) && !defined(__i386__)
#include <thread>
#endif

namespace lathe {

/// Waits some 40 to 140 cycles. A loop without it would use half of a core that another thread
/// shares, and would leave late, as the processor has to undo the loads that it ran ahead.
inline void pause_thread() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace lathe
