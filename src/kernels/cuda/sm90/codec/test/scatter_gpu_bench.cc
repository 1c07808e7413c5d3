// scatter_gpu_bench [--repeats N] [--json]: throughput of kernels that only copy bytes between rows
// and unordered slots, next to a device-to-device copy of the same number of bytes in the same run:
// an upper limit for scattered codecs.
//
// Rows are in a dense array. A row's record is at a random slot of a pool, and so are its scales if
// the layout stores them in a separate plane. Nothing is converted: where rows and records differ
// in size, bytes are mixed or repeated. Each case uses the fastest shape of those tried: 4 to 32
// lanes a row, 1 to 4 rows a lane, bulk copies with 8 to 128 rows a block, with and without L2
// cache hints.
#include "kernels/cuda/sm90/codec/scatter_gpu_bench.h"

#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "kernels/cuda/common/gpu_timing.h"

namespace lathe::cuda {
namespace {

constexpr std::int64_t kBytes = std::int64_t{2} << 30;  // read plus written

struct Rates {
  double own;
  double copy;
};

Rates measure(const Stream& stream, AgainstCopy& against, const ScatterCase& c, int repeats) {
  const ScatterShape& s = c.shape;
  const std::int64_t row_bytes = s.row + s.record + s.scales;
  const std::int64_t count = kBytes / row_bytes / 256 * 256;
  const auto rows = need(DeviceArray<std::byte>::make(count * s.row));
  const auto pool = need(DeviceArray<std::byte>::make(count / kScatterPage * s.page));
  const auto slots = need(DeviceArray<std::int32_t>::make(count));
  std::vector<std::int32_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(2));
  need(copy_to_device(std::span<const std::int32_t>(order), slots.data(), stream));
  for (const auto* a : {&rows, &pool}) {
    need(call_result(cudaMemsetAsync(a->data(), 1, a->span().size(), stream), "cudaMemsetAsync"));
  }
  const ScatterPlaces places{reinterpret_cast<unsigned long long>(rows.data()),
                             reinterpret_cast<unsigned long long>(pool.data()), slots.data(),
                             static_cast<unsigned long long>(count)};
  const Timing t = against.measure(count * row_bytes, repeats,
                                   [&] { return call_result(c.launch(places, stream), "launch"); });
  const double gb = static_cast<double>(count * row_bytes) * 1e-9;
  return {gb / t.seconds, gb / t.copy_seconds};
}

std::string operation_of(const ScatterShape& s) {
  return fmt::format("{} scattered, {} B and {}{} B", s.reads ? "read" : "write", s.row, s.record,
                     s.scales == 0 ? "" : fmt::format(" + {}", s.scales));
}

std::string describe(const ScatterShape& s) {
  const std::string how = s.lanes == 0 ? fmt::format("copies, {} rows a block", s.rows)
                                       : fmt::format("{} lanes x {} rows", s.lanes, s.rows);
  return how + (s.keeps ? ", scales kept" : "") + (s.drops ? ", the rest dropped first" : "");
}

int run(int repeats, bool json) {
  const auto device = open_device();
  if (!device) {
    std::fprintf(stderr, "%s\n", device.error().message().c_str());
    return 77;
  }
  std::fprintf(stderr, "%s, %d SMs\n", device->model.c_str(), device->sms);
  const Stream stream = need(Stream::make());
  AgainstCopy against(stream, kBytes);
  nlohmann::json out = nlohmann::json::array();
  if (!json) {
    fmt::print("{:<14} {:<38} {:>6} {:>6} {:>6}  {}\n", "layout", "operation", "GB/s", "copy",
               "ratio", "shape");
  }
  for (const ScatterCase& c : scatter_cases()) {
    const auto [own, copy] = measure(stream, against, c, repeats);
    const std::string operation = operation_of(c.shape), shape = describe(c.shape);
    if (json) {
      out.push_back({{"layout", c.layout},
                     {"operation", operation},
                     {"gb_per_s", own},
                     {"copy_gb_per_s", copy},
                     {"ratio", own / copy},
                     {"shape", shape}});
    } else {
      fmt::print("{:<14} {:<38} {:>6.0f} {:>6.0f} {:>6.3f}  {}\n", c.layout, operation, own, copy,
                 own / copy, shape);
    }
  }
  if (json) fmt::print("{}\n", out.dump(1));
  return 0;
}

}  // namespace
}  // namespace lathe::cuda

int main(int argc, char** argv) {
  return lathe::cuda::run_with_options(argc, argv, lathe::cuda::run);
}
