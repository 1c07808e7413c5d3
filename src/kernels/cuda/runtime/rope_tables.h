// RoPE tables on the device; each is copied once.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/result.h"
#include "kernels/cuda/common/memory.h"
#include "kernels/cuda/common/stream.h"
#include "kernels/cuda/sm90/codec/codec.h"
#include "layout/rope/rope_write.h"

namespace lathe::cuda {

class RopeTables {
 public:
  /// The device's copy of `table`. The first call copies it and waits. Errors: out of memory.
  Result<RopeTableView> of(const RopeTable& table, const Stream& stream);

 private:
  std::map<std::uint64_t, RopeTableView> views_;  // by RopeTable::id()
  std::vector<DeviceArray<float>> bytes_;
};

}  // namespace lathe::cuda
