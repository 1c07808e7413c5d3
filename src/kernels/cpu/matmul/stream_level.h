// Which cache level to prefetch streamed weights to.
#pragma once

namespace lathe {

/// Whether this processor reads a stream faster if it is prefetched to the first-level cache.
/// Intel's do; AMD's are faster with the second level (measured, bench/notes/cpu-matmul/06 and 04).
/// False for other vendors.
bool streams_through_first_level();

}  // namespace lathe
