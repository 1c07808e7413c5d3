// Which cache a stream of weights is prefetched to.
#pragma once

namespace lathe {

/// Whether this processor reads a stream faster through its first-level cache: Intel's. There a
/// prefetch to either level holds a miss buffer of the first level until the line has come, so one
/// to the second level only adds a miss later. AMD's holds none for the second level, and so has
/// more lines under way (bench/notes/cpu-matmul/04 and 06). False where the vendor is unknown.
bool streams_through_first_level();

}  // namespace lathe
