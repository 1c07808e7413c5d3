// Tests the parts of common/ that need no device: messages and arithmetic.
#include <gtest/gtest.h>

#include <random>

#include "kernels/cuda/common/cuda_error.h"
#include "kernels/cuda/common/device.h"
#include "kernels/cuda/common/fast_div.h"
#include "kernels/cuda/common/memory.h"

namespace lathe::cuda {
namespace {

TEST(FastDiv, DividesLikeTheOperator) {
  std::mt19937 random(1);
  const auto rng = [&] { return static_cast<std::uint32_t>(random()); };
  std::vector<std::uint32_t> divisors;
  for (std::uint32_t d = 1; d < 3000; ++d) divisors.push_back(d);
  for (int i = 0; i < 3000; ++i) divisors.push_back((rng() & 0x7fffffffu) >> (i % 31) | 1u);
  for (int i = 1; i < 31; ++i) {
    divisors.insert(divisors.end(), {(1u << i) - 1, 1u << i, (1u << i) + 1});
  }
  divisors.push_back(0x7fffffffu);
  for (const std::uint32_t d : divisors) {
    const FastDiv fast(d);
    std::vector<std::uint32_t> numbers = {0, 1, 0x7ffffffeu, 0x7fffffffu};
    // Multiples and the numbers just below them show whether the rounding is right.
    for (int i = 0; i < 20; ++i) {
      const std::uint32_t multiple = 0x7fffffffu / d * d - (rng() % (0x7fffffffu / d)) * d;
      numbers.insert(numbers.end(), {multiple, multiple - 1, rng() & 0x7fffffffu});
    }
    for (const std::uint32_t n : numbers) {
      ASSERT_EQ(fast(n & 0x7fffffffu), (n & 0x7fffffffu) / d) << n << " / " << d;
    }
  }
}

FoundDevice h200() {
  FoundDevice found;
  found.driver = 13010;
  found.runtime = 13000;
  found.count = 1;
  found.capability = 90;
  found.model = "NVIDIA H200";
  return found;
}

TEST(Device, SaysWhatIsMissingAndWhatIsNeeded) {
  EXPECT_TRUE(check_device(h200()).ok());
  const auto message = [](auto change) {
    FoundDevice found = h200();
    change(found);
    const auto result = check_device(found);
    return result.ok() ? std::string("ok") : result.error().message();
  };
  EXPECT_EQ(message([](FoundDevice& f) { f.driver = 13000; }), "ok");
  EXPECT_EQ(message([](FoundDevice& f) { f.driver = 12080; }),
            "CUDA driver: wanted one that serves CUDA 13.0 or newer, got one for CUDA 12.8; update "
            "the driver, or use --device cpu");
  // An older driver runs a newer runtime of the same major version.
  EXPECT_EQ(message([](FoundDevice& f) { f.runtime = 13020; }), "ok");
  EXPECT_EQ(message([](FoundDevice& f) { f.driver = 0; }),
            "CUDA driver: wanted one that serves CUDA 13.0, got none; install NVIDIA's driver, or "
            "use --device cpu");
  EXPECT_EQ(
      message([](FoundDevice& f) { f.count = 0; }),
      "CUDA device: wanted a Hopper GPU (compute capability 9.0), got no device; is it hidden "
      "by CUDA_VISIBLE_DEVICES? --device cpu needs none");
  const std::string silent = message([](FoundDevice& f) {
    f.count = 0;
    f.counted = cudaErrorSystemNotReady;
  });
  EXPECT_NE(silent.find("cudaGetDeviceCount"), std::string::npos);
  EXPECT_NE(silent.find("got cudaErrorSystemNotReady"), std::string::npos);
  EXPECT_NE(silent.find("does nvidia-fabricmanager run"), std::string::npos);
  EXPECT_EQ(message([](FoundDevice& f) {
              f.capability = 80;
              f.model = "NVIDIA A100";
            }),
            "CUDA device: wanted compute capability 9.0 (H100, H200), got 8.0 (NVIDIA A100); use "
            "--device cpu");
  EXPECT_EQ(message([](FoundDevice& f) { f.ordinal = 1; }), "CUDA device: wanted 0 to 0, got 1");
  EXPECT_EQ(message([](FoundDevice& f) { f.ordinal = -1; }), "CUDA device: wanted 0 to 0, got -1");
}

TEST(CudaError, NamesTheKernelItsShapeAndTheCaller) {
  EXPECT_TRUE(launch_result(cudaSuccess, {"encode", "", {}}).ok());
  const auto where = std::source_location::current();
  const auto failed = launch_result(cudaErrorLaunchFailure, {"encode", "mla_fp8, 7 rows", where});
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, ErrorCode::device);
  EXPECT_EQ(failed.error().field, "kernel encode (mla_fp8, 7 rows) launched at common_test.cc:" +
                                      std::to_string(where.line()));
  EXPECT_NE(failed.error().offered.find("cudaErrorLaunchFailure"), std::string::npos);
  const auto old = launch_result(cudaErrorNoKernelImageForDevice, {"encode", "", where});
  EXPECT_EQ(old.error().code, ErrorCode::unsupported);
  EXPECT_NE(old.error().hint.find("compute capability 9.0"), std::string::npos);
}

TEST(Memory, SaysWhatWasNeededAndWhatThereIs) {
  const Error error = out_of_memory(300, 200, 1000);
  EXPECT_EQ(error.code, ErrorCode::exhausted);
  EXPECT_EQ(error.message(),
            "device memory: wanted 300 bytes, got 200 bytes free of 1000; at most 200 bytes fit "
            "next to what is in use");
}

}  // namespace
}  // namespace lathe::cuda
