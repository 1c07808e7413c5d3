#include "kernels/devices/find_machine.h"

#include <fmt/format.h>

#include <string>

#include "kernels/devices/query_gpu.h"

namespace lathe {

Result<Machine> find_machine(std::string_view device) {
  if (device == "auto") {
    const auto gpu = query_gpu();
    return gpu && gpu->device == Device::sm90 ? *gpu : describe_machine(Device::cpu);
  }
  if (device == "cuda") {
    return query_gpu().value_or(describe_machine(Device::sm90));
  }
  if (const auto d = parse_enum<Device>(device)) return describe_machine(*d);
  return Error{ErrorCode::invalid_argument, "--device",
               "one of auto, cuda, " + known_names<Device>(), fmt::format("\"{}\"", device), ""};
}

}  // namespace lathe
