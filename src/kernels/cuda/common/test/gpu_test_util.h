// Shared by GPU tests: a stream, arrays copied to the device and back, and a main() that skips
// without a device.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <list>
#include <span>
#include <vector>

#include "kernels/cuda/common/device.h"
#include "kernels/cuda/common/memory.h"
#include "kernels/cuda/common/stream.h"

namespace lathe::cuda {

inline constexpr int kSkipped = 77;  // the usual exit code of a skipped test

/// Fails the test with the error's message.
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

/// A vector's contents on the device. Host memory is not pinned, so copies wait for the stream.
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

/// Arrays on the device that live as long as the test, or until kept_ is cleared.
class GpuArraysTest : public GpuTest {
 protected:
  template <class T>
  std::span<T> put(const T* data, std::size_t count) {
    if (count == 0) return {};
    const auto* bytes = reinterpret_cast<const std::byte*>(data);
    kept_.emplace_back(*this, std::vector<std::byte>(bytes, bytes + count * sizeof(T)));
    return {reinterpret_cast<T*>(kept_.back().data()), count};
  }
  template <class T>
  std::span<const T> put(std::span<const T> host) {
    return put(host.data(), host.size());
  }
  /// An array filled with 0xff, NaN in every format.
  template <class T>
  std::span<T> room(std::int64_t count) {
    kept_.emplace_back(*this, std::vector<std::byte>(static_cast<std::size_t>(count) * sizeof(T),
                                                     std::byte{0xff}));
    return {reinterpret_cast<T*>(kept_.back().data()), static_cast<std::size_t>(count)};
  }

  std::list<DeviceCopy<std::byte>> kept_;
};

/// Runs all tests, or returns kSkipped where no suitable device is found.
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
