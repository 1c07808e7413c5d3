// Sizes of prefix sums on the device (scan.cuh), for host code that launches them.
#pragma once

namespace lathe::cuda {

inline constexpr int kScanThreads = 1024;
inline constexpr int kScanPerThread = 4;
inline constexpr int kScanTile = kScanThreads * kScanPerThread;  // values that a block scans

}  // namespace lathe::cuda
