// codec_gpu_bench [--bytes N] [--repeats N] [--only TEXT] [--json]: prints the times of
// codec_speed.h.
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

#include "kernels/cuda/common/gpu_timing.h"
#include "kernels/cuda/sm90/codec/codec_speed.h"

namespace lathe::cuda {
namespace {

void print(const CodecSpeed& speed, bool json) {
  if (json) {
    nlohmann::json out = {{"throughput", nlohmann::json::array()},
                          {"latency", nlohmann::json::array()}};
    for (const CodecSpeed::Row& r : speed.rows) {
      out["throughput"].push_back({{"layout", r.layout},
                                   {"operation", r.operation},
                                   {"tokens", r.tokens},
                                   {"gb_per_s", r.gb_per_s},
                                   {"copy_gb_per_s", r.copy_gb_per_s},
                                   {"ratio", r.gb_per_s / r.copy_gb_per_s}});
    }
    for (const auto& [what, s] : speed.latencies) {
      out["latency"].push_back({{"operation", what}, {"microseconds", s * 1e6}});
    }
    fmt::print("{}\n", out.dump(1));
    return;
  }
  fmt::print("{:<44} {:<44} {:>9} {:>8} {:>8} {:>6}\n", "layout", "operation", "tokens", "GB/s",
             "copy", "ratio");
  for (const CodecSpeed::Row& r : speed.rows) {
    fmt::print("{:<44} {:<44} {:>9} {:>8.0f} {:>8.0f} {:>6.3f}\n", r.layout, r.operation, r.tokens,
               r.gb_per_s, r.copy_gb_per_s, r.gb_per_s / r.copy_gb_per_s);
  }
  for (const auto& [what, s] : speed.latencies) {
    fmt::print("{:<60} {:>8.2f} us (both launches, in a graph of 20)\n", what, s * 1e6);
  }
}

int run(const CodecSpeedOptions& options, bool json) {
  const auto device = open_device();
  if (!device) {
    std::fprintf(stderr, "%s\n", device.error().message().c_str());
    return 77;
  }
  std::fprintf(stderr, "%s, %d SMs\n", device->model.c_str(), device->sms);
  print(measure_codec_speed(options), json);
  return 0;
}

}  // namespace
}  // namespace lathe::cuda

int main(int argc, char** argv) {
  lathe::cuda::CodecSpeedOptions options;
  bool json = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (flag == "--json") {
      json = true;
    } else if (flag == "--bytes" && value != nullptr) {
      options.bytes = std::max(std::atoll(argv[++i]), 1LL << 20);
    } else if (flag == "--repeats" && value != nullptr) {
      options.repeats = std::max(std::atoi(argv[++i]), 1);
    } else if (flag == "--only" && value != nullptr) {
      options.only = argv[++i];
    } else {
      std::fprintf(stderr, "usage: %s [--bytes N] [--repeats N] [--only TEXT] [--json]\n", argv[0]);
      return 2;
    }
  }
  return lathe::cuda::run(options, json);
}
