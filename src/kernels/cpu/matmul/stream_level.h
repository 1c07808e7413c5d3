// Which cache a stream of weights is prefetched to.
#pragma once

namespace lathe {

/// Whether this processor reads a stream faster through its first-level cache: Intel's, as
/// measured, where AMD's want the second level (bench/notes/cpu-matmul/06 and 04). False where the
/// vendor is unknown.
bool streams_through_first_level();

}  // namespace lathe
