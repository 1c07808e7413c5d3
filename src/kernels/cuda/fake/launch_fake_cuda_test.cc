// Tests launches without a GPU, and the faults that the fake runtime shows and a GPU would hide.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "kernels/cuda/common/memory.h"
#include "kernels/cuda/common/stream.h"
#include "kernels/cuda/fake/fake_cuda.h"
#include "kernels/cuda/sm90/codec/codec.h"
#include "layout/codec/codec.h"

namespace lathe::cuda {
namespace {

constexpr std::int64_t kLaunchTokens = 40;

// Rows and slots on the fake device, and the bytes that the CPU's codec encodes from them.
struct Encoding {
  CacheLayout layout{LayoutKind::mla_fp8_block};
  std::int32_t page = 16;
  std::int64_t pages = 4;
  Stream stream = std::move(Stream::make()).value();
  DeviceArray<float> rows = std::move(DeviceArray<float>::make(kLaunchTokens * 576)).value();
  DeviceArray<Slot> slots = std::move(DeviceArray<Slot>::make(kLaunchTokens)).value();
  DeviceArray<std::byte> pool =
      std::move(DeviceArray<std::byte>::make(pages * layout.page_stride(page))).value();

  static RowsView view(const float* data) {
    return {reinterpret_cast<const std::byte*>(data), DType::f32, kLaunchTokens, 576, 576};
  }
  Result<void> upload(std::span<const float> values, std::span<const Slot> list) {
    if (auto ok = copy_to_device(values, rows.data(), stream); !ok) return ok;
    return copy_to_device(list, slots.data(), stream);
  }
  Result<void> encode() {
    return encode_rows(view(rows.data()), slots.span(), {pool.data(), layout, page, pages}, {},
                       stream);
  }
  std::vector<std::byte> read() {
    std::vector<std::byte> out(static_cast<std::size_t>(pool.size()));
    EXPECT_TRUE(copy_to_host(pool.data(), std::span(out), stream).ok());
    return out;
  }
  std::vector<std::byte> of_the_cpu(std::span<const float> values, std::span<const Slot> list) {
    std::vector<std::byte> out(static_cast<std::size_t>(pool.size()), std::byte{0xff});
    EXPECT_TRUE(
        lathe::encode_rows(view(values.data()), list, {out.data(), layout, page, pages}, {}).ok());
    return out;
  }
};

struct Inputs {
  std::vector<float> rows;
  std::vector<Slot> slots;
};
Inputs inputs(unsigned seed) {
  std::mt19937 random(seed);
  Inputs in{std::vector<float>(kLaunchTokens * 576), std::vector<Slot>(kLaunchTokens)};
  for (float& v : in.rows) v = std::normal_distribution<float>()(random);
  for (std::size_t i = 0; i < in.slots.size(); ++i) in.slots[i] = Slot(static_cast<int>(i) + 7);
  std::shuffle(in.slots.begin(), in.slots.end(), random);
  return in;
}

TEST(FakeCuda, LaunchesRunTheKernelItself) {
  Encoding e;
  const Inputs in = inputs(1);
  ASSERT_TRUE(e.upload(in.rows, in.slots).ok());
  const fake::Counts before = fake::counts();
  ASSERT_TRUE(e.encode().ok());
  EXPECT_EQ(fake::counts().launches, before.launches + 1);
  EXPECT_EQ(fake::counts().waits, before.waits);
  EXPECT_EQ(e.read(), e.of_the_cpu(in.rows, in.slots));
}

TEST(FakeCuda, AGraphReplaysOnWhatTheArraysHoldThen) {
  Encoding e;
  auto graph = Graph::capture(e.stream, [&] { return e.encode(); });
  ASSERT_TRUE(graph.ok()) << graph.error().message();
  for (const unsigned seed : {2u, 3u}) {
    const Inputs in = inputs(seed);
    const fake::Counts before = fake::counts();
    ASSERT_TRUE(e.upload(in.rows, in.slots).ok());
    ASSERT_TRUE(graph->launch(e.stream).ok());
    EXPECT_EQ(fake::counts().launches, before.launches + 1);
    const auto written = e.read();
    const auto wanted = e.of_the_cpu(in.rows, in.slots);
    // Slots that no token uses keep their bytes.
    for (std::size_t i = 0; i < written.size(); ++i) {
      if (wanted[i] != std::byte{0xff}) {
        ASSERT_EQ(written[i], wanted[i]) << "byte " << i << ", seed " << seed;
      }
    }
  }
}

TEST(FakeCuda, NothingIsAllocatedWhileAStreamIsCaptured) {
  Encoding e;
  const auto graph = Graph::capture(e.stream, [&]() -> Result<void> {
    const auto bytes = allocate_device_bytes(64);
    if (!bytes) return bytes.error();
    return {};
  });
  ASSERT_FALSE(graph.ok());
  EXPECT_NE(graph.error().message().find("cudaMalloc"), std::string::npos);
}

TEST(FakeCuda, AnErrorOnTheDeviceComesWithTheNextWait) {
  Encoding e;
  fake::fail_next_wait(cudaErrorIllegalAddress);
  ASSERT_FALSE(e.stream.wait().ok());
  EXPECT_TRUE(e.stream.wait().ok());
}

TEST(FakeCuda, HasAsMuchMemoryAsATestSays) {
  const std::int64_t used = fake::device_bytes();
  fake::set_device_memory(used + 1000);
  const auto none = allocate_device_bytes(2000);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ErrorCode::exhausted);
  fake::set_device_memory(std::int64_t{16} << 30);
  EXPECT_TRUE(allocate_device_bytes(2000).ok());
  EXPECT_EQ(fake::device_bytes(), used);
}

TEST(FakeCudaDeathTest, TheHostCannotLookAtDeviceMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Encoding e;
        std::printf("%f\n", static_cast<double>(e.rows.data()[0]));
      },
      "");
}

}  // namespace
}  // namespace lathe::cuda
