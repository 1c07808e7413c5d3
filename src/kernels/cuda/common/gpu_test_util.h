// What tests on a GPU share: a stream, arrays that go there and back, and a main() that is skipped
// without a device.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <vector>

#include "kernels/cuda/common/device.h"
#include "kernels/cuda/common/memory.h"
#include "kernels/cuda/common/stream.h"

namespace lathe::cuda {

inline constexpr int kSkipped = 77;  // the usual exit code of a skipped test

/// Fails the test with the error's own words.
template <class T>
void must(const Result<T>& result) {
  ASSERT_TRUE(result.ok()) << result.error().message();
}

class GpuTest : public ::testing::Test {
 public:
  GpuTest() : stream_(std::move(Stream::make()).value()) {}
  const Stream& stream() const { return stream_; }

 private:
  Stream stream_;
};

/// A vector's contents on the device. Nothing is pinned, so copies wait for the stream.
template <class T>
class DeviceCopy {
 public:
  DeviceCopy(const GpuTest& test, const std::vector<T>& host)
      : array_(std::move(DeviceArray<T>::make(static_cast<std::int64_t>(host.size()))).value()) {
    write(test, host);
  }
  T* data() const { return array_.data(); }
  std::int64_t size() const { return array_.size(); }
  void write(const GpuTest& test, const std::vector<T>& host) {
    must(copy_to_device(std::span<const T>(host), data(), test.stream()));
    must(test.stream().wait());
  }
  std::vector<T> read(const GpuTest& test) const {
    std::vector<T> host(static_cast<std::size_t>(size()));
    must(copy_to_host(data(), std::span<T>(host), test.stream()));
    must(test.stream().wait());
    return host;
  }

 private:
  DeviceArray<T> array_;
};

/// Runs all tests, or returns kSkipped where the device does not suit.
inline int gpu_test_main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const auto device = open_device();
  if (!device) {
    std::printf("%s\n", device.error().message().c_str());
    return kSkipped;
  }
  std::printf("%s, %d SMs, CUDA runtime %d\n", device->model.c_str(), device->sms, CUDART_VERSION);
  return RUN_ALL_TESTS();
}

}  // namespace lathe::cuda
