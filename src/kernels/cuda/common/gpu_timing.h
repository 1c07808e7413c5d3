// Shared by GPU benches: timing by events, and a device-to-device copy of the same number of bytes
// in the same run for comparison.
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
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

/// Options of a bench program.
struct BenchOptions {
  int repeats = 15;
  bool json = false;
  std::string_view filter;     // of rows: a part of their names
  const char* peer = nullptr;  // a file (bench_peer.h)
  const char* only = nullptr;  // one case instead of the bench's own ones
};

/// main() of a bench. Options are [--repeats N] and [--json]; where `run` takes it, [--filter
/// TEXT]; where it takes BenchOptions, also [--peer FILE] and [--case N,...]. Returns run(repeats,
/// json), run(repeats, json, filter) or run(options), or 2 for any other argument.
template <class Run>
int run_with_options(int argc, char** argv, Run run) {
  constexpr bool kAll = std::is_invocable_v<Run, BenchOptions>;
  constexpr bool kFilters = kAll || std::is_invocable_v<Run, int, bool, std::string_view>;
  BenchOptions o;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--json") {
      o.json = true;
    } else if (flag == "--repeats" && i + 1 < argc) {
      o.repeats = std::max(std::atoi(argv[++i]), 1);
    } else if (kFilters && flag == "--filter" && i + 1 < argc) {
      o.filter = argv[++i];
    } else if (kAll && flag == "--peer" && i + 1 < argc) {
      o.peer = argv[++i];
    } else if (kAll && flag == "--case" && i + 1 < argc) {
      o.only = argv[++i];
    } else {
      std::fprintf(stderr, "usage: %s %s[--repeats N] [--json]\n", argv[0],
                   kAll       ? "[--filter TEXT] [--peer FILE] [--case N,...] "
                   : kFilters ? "[--filter TEXT] "
                              : "");
      return 2;
    }
  }
  if constexpr (kAll) {
    return run(o);
  } else if constexpr (kFilters) {
    return run(o.repeats, o.json, o.filter);
  } else {
    return run(o.repeats, o.json);
  }
}

/// The numbers of --case. Exits unless there is one for each name of `names`.
inline std::vector<int> case_numbers(const char* text, const char* names) {
  std::vector<int> numbers;
  for (const char* at = text; *at != '\0';) {
    char* end = nullptr;
    numbers.push_back(static_cast<int>(std::strtol(at, &end, 10)));
    if (end == at) break;
    at = *end == ',' ? end + 1 : end;
  }
  const std::string_view list = names;
  if (std::ssize(numbers) == std::count(list.begin(), list.end(), ',') + 1) return numbers;
  std::fprintf(stderr, "--case %s: wanted %s\n", text, names);
  std::exit(2);
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

/// Median seconds of one call of each of `sides`, which are called in turns, so that all run at the
/// same clocks. The first round is not counted.
inline std::vector<double> time_in_turns(const Stream& stream, int repeats,
                                         const std::vector<std::function<Result<void>()>>& sides) {
  std::vector<std::vector<double>> seconds(sides.size());
  for (int i = -1; i < repeats; ++i) {
    for (std::size_t s = 0; s < sides.size(); ++s) {
      const double t = time_once(stream, sides[s]);
      if (i >= 0) seconds[s].push_back(t);
    }
  }
  std::vector<double> out;
  for (const auto& s : seconds) out.push_back(median(s));
  return out;
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
