#include "tools/bench/bench_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "kernels/devices/query_gpu.h"
#include "plan/explain.h"

namespace lathe {

Result<void> check_bench_memory(Device device, double needed, std::string flag,
                                const std::string& what, std::string way_out) {
  const bool gpu = is_gpu(device);
  const std::int64_t held = gpu ? free_gpu_bytes() : describe_machine(device).memory_bytes;
  if (needed <= static_cast<double>(held)) return {};
  const auto bytes = static_cast<std::int64_t>(std::min(needed, 9e18));
  return Error{
      ErrorCode::out_of_range, std::move(flag),
      fmt::format("at most {} {}", gpu ? "the GPU's free" : "the machine's", human_bytes(held)),
      fmt::format("{}: {}", what, human_bytes(bytes)), std::move(way_out)};
}

}  // namespace lathe
