// Packing of 4-bit weights and orders of columns on the GPU, bit for bit.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cuda/common/test/gpu_test_util.h"
#include "kernels/cuda/sm90/matmul/pack/pack_weights.h"
#include "kernels/cuda/sm90/matmul/pack/packed_weights.h"
#include "kernels/cuda/sm90/matmul/pack/permute_columns.h"

namespace lathe::cuda {
namespace {

class PackGpu : public GpuTest {
 public:
  template <class T>
  DeviceArray<T> put(const std::vector<T>& v) {
    DeviceArray<T> out = std::move(DeviceArray<T>::make(std::ssize(v))).value();
    must(copy_to_device(std::span(v), out.data(), stream()));
    must(stream().wait());
    return out;
  }
  template <class T>
  std::vector<T> get(const DeviceArray<T>& from, std::size_t count) {
    std::vector<T> out(count);
    must(copy_to_host(from.data(), std::span(out), stream()));
    must(stream().wait());
    return out;
  }
  template <class T>
  std::vector<T> noise(std::int64_t count) {
    std::vector<T> out(static_cast<std::size_t>(count));
    for (T& v : out) v = static_cast<T>(random());
    return out;
  }

  unsigned seed = std::random_device()();
  std::mt19937 random{seed};
};

// Every column's code is the one that the checkpoint's order has.
TEST_F(PackGpu, Codes) {
  for (const bool u4 : {true, false}) {
    const std::int64_t rows = 37, words = 4 * 35;  // 1,120 columns
    const auto from = noise<std::uint32_t>(rows * words);
    const auto device = put(from);
    must(call_result(
        launch_pack_codes({reinterpret_cast<std::byte*>(device.data()), rows * words / 4, u4},
                          stream()),
        "pack_codes"));
    const auto packed = get(device, from.size());
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t col = 0; col < 8 * words; ++col) {
        const std::uint32_t word = from[static_cast<std::size_t>(r * words + col / 8)];
        ASSERT_EQ(packed_code(u4, packed.data() + r * words, col), word >> (col % 8 * 4) & 0xf)
            << "seed " << seed << ", row " << r << ", column " << col;
      }
    }
  }
}

TEST_F(PackGpu, Scales) {
  for (const std::int32_t size : {16, 32, 64, 128}) {
    for (const std::int32_t bytes : {1, 2}) {
      const std::int64_t weights = 3, rows = 50, cols = 1152, groups = cols / size;
      const auto from = noise<std::uint8_t>(weights * rows * groups * bytes);
      const PackedGroups shape = packed_groups(rows, cols, size);
      const auto device = put(from);
      const auto to = put(noise<std::uint8_t>(weights * shape.count() * bytes));
      must(call_result(launch_pack_scales({reinterpret_cast<const std::byte*>(device.data()),
                                           reinterpret_cast<std::byte*>(to.data()), weights, rows,
                                           groups, cols, size, bytes},
                                          stream()),
                       "pack_scales"));
      std::vector<std::uint8_t> want(static_cast<std::size_t>(weights * shape.count() * bytes));
      for (std::int64_t i = 0; i < weights * rows * groups; ++i) {
        const std::int64_t weight = i / (rows * groups), row = i / groups % rows;
        const std::int64_t at = weight * shape.count() + shape.at(row, i % groups);
        std::memcpy(&want[static_cast<std::size_t>(at * bytes)],
                    &from[static_cast<std::size_t>(i * bytes)], static_cast<std::size_t>(bytes));
      }
      EXPECT_EQ(get(to, want.size()), want) << "seed " << seed << ", size " << size;
    }
  }
}

TEST_F(PackGpu, OrderOfColumns) {
  const std::int64_t rows = 7, cols = 264, x_stride = 280, out_stride = 272;
  const auto x = noise<std::uint16_t>(rows * x_stride);
  std::vector<std::int32_t> columns(cols);
  std::iota(columns.begin(), columns.end(), 0);
  std::shuffle(columns.begin(), columns.end(), random);
  const auto device = put(x);
  const auto order = put(columns);
  const auto to = put(noise<std::uint16_t>(rows * out_stride));
  must(call_result(
      launch_permute_columns(
          {device.data(), order.data(), to.data(), rows, cols, x_stride, out_stride}, stream()),
      "permute_columns"));
  const auto got = get(to, static_cast<std::size_t>(rows * out_stride));
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    const std::int64_t row = i / cols, col = i % cols;
    const std::int32_t from = columns[static_cast<std::size_t>(col)];
    ASSERT_EQ(got[static_cast<std::size_t>(row * out_stride + col)],
              x[static_cast<std::size_t>(row * x_stride + from)])
        << "seed " << seed;
  }
}

}  // namespace
}  // namespace lathe::cuda

int main(int argc, char** argv) { return lathe::cuda::gpu_test_main(argc, argv); }
