// The widest entries that the GPU's compressor makes, which plans refuse beyond.
#pragma once

#include <cstdint>

namespace lathe::cuda {

/// Elements of an entry, or of an index key that tokens share.
inline constexpr std::int32_t kCompressMostDim = 512;

}  // namespace lathe::cuda
