// Shared by GPU benches: timing by events, and a device-to-device copy of the same number of bytes
// in the same run for comparison.
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kernels/cuda/common/device.h"
#include "kernels/cuda/common/memory.h"
#include "kernels/cuda/common/stream.h"

namespace lathe::cuda {

/// The value; on an error, prints its message and exits.
template <class T>
T need(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "%s\n", result.error().message().c_str());
  std::exit(1);
}
inline void need(const Result<void>& result) {
  if (result.ok()) return;
  std::fprintf(stderr, "%s\n", result.error().message().c_str());
  std::exit(1);
}

/// main() of a bench whose only options are [--repeats N] and [--json], and [--filter TEXT] where
/// `run` takes it: of rows whose names have TEXT in them. Returns run(repeats, json) or
/// run(repeats, json, filter), or 2 for any other argument.
template <class Run>
int run_with_options(int argc, char** argv, Run run) {
  constexpr bool kFilters = std::is_invocable_v<Run, int, bool, std::string_view>;
  int repeats = 15;
  bool json = false;
  std::string_view filter;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--json") {
      json = true;
    } else if (flag == "--repeats" && i + 1 < argc) {
      repeats = std::max(std::atoi(argv[++i]), 1);
    } else if (kFilters && flag == "--filter" && i + 1 < argc) {
      filter = argv[++i];
    } else {
      std::fprintf(stderr, "usage: %s %s[--repeats N] [--json]\n", argv[0],
                   kFilters ? "[--filter TEXT] " : "");
      return 2;
    }
  }
  if constexpr (kFilters) {
    return run(repeats, json, filter);
  } else {
    return run(repeats, json);
  }
}

/// Copies host data to a new device array; waits for the copy.
template <class T>
DeviceArray<T> upload(const std::vector<T>& host, const Stream& stream) {
  auto array = need(DeviceArray<T>::make(std::ssize(host)));
  need(copy_to_device(std::span<const T>(host), array.data(), stream));
  need(stream.wait());
  return array;
}

class Event {
 public:
  Event() { need(call_result(cudaEventCreate(&event_), "cudaEventCreate")); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(const Stream& stream) {
    need(call_result(cudaEventRecord(event_, stream), "cudaEventRecord"));
  }
  /// Waits for `end`.
  static double seconds(const Event& begin, const Event& end) {
    need(call_result(cudaEventSynchronize(end.event_), "cudaEventSynchronize"));
    float ms = 0;
    need(call_result(cudaEventElapsedTime(&ms, begin.event_, end.event_), "cudaEventElapsedTime"));
    return ms * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

inline double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  const std::size_t n = v.size();
  return n % 2 == 1 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/// Seconds of one call of `work`, a Result<void>() that launches on the stream.
template <class Work>
double time_once(const Stream& stream, Work&& work) {
  static Event begin, end;
  begin.record(stream);
  need(work());
  end.record(stream);
  return Event::seconds(begin, end);
}

struct Timing {
  double seconds = 0;       // median
  double copy_seconds = 0;  // median of a copy that reads and writes the same number of bytes
};

/// Alternates work and copy, so that both run at the same clocks.
class AgainstCopy {
 public:
  AgainstCopy(const Stream& stream, std::int64_t max_bytes)
      : stream_(stream),
        from_(need(DeviceArray<std::byte>::make(max_bytes / 2))),
        to_(need(DeviceArray<std::byte>::make(max_bytes / 2))) {
    need(call_result(
        cudaMemsetAsync(from_.data(), 0x3c, static_cast<std::size_t>(from_.size()), stream_),
        "cudaMemsetAsync"));
  }
  /// `bytes`: read plus written by one call of `work`.
  template <class Work>
  Timing measure(std::int64_t bytes, int repeats, Work&& work) {
    const auto copied = static_cast<std::size_t>(std::min(bytes / 2, from_.size()));
    const auto copy = [&] {
      return call_result(
          cudaMemcpyAsync(to_.data(), from_.data(), copied, cudaMemcpyDeviceToDevice, stream_),
          "copy on the device");
    };
    time_once(stream_, work);
    time_once(stream_, copy);
    std::vector<double> own, of_copy;
    for (int i = 0; i < repeats; ++i) {
      own.push_back(time_once(stream_, work));
      of_copy.push_back(time_once(stream_, copy) * static_cast<double>(bytes / 2) /
                        static_cast<double>(copied));
    }
    return {median(own), median(of_copy)};
  }

 private:
  const Stream& stream_;
  DeviceArray<std::byte> from_;
  DeviceArray<std::byte> to_;
};

}  // namespace lathe::cuda
