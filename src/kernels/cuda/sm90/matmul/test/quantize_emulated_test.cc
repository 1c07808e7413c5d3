// Quantizing rows of x to e4m3, emulated, against base/float_formats.h.
// Compiled alone: it includes kernels.
#include "kernels/cuda/sm90/matmul/test/matmul_problem.h"
// Device code is included last: it redefines CUDA's keywords.
#include "kernels/cuda/sm90/matmul/quantize.cuh"

namespace lathe::cuda {
namespace {

using matmul_test::random_f32;

class QuantizeEmulated : public ::testing::Test {
 public:
  unsigned seed = std::random_device()();
  std::mt19937 random{seed};
};

// Codes and scales equal those of base/float_formats.h bit for bit, with zeros and a NaN among the
// rows.
TEST_F(QuantizeEmulated, HasTheBitsOfTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool power_of_two : {false, true}) {
      constexpr std::int64_t m = 5, k = 300, stride = 306, scale_stride = 6, blocks = 3;
      std::vector<float> x = random_f32(random, m * stride);
      for (float& v : x) v = to_f32(to_bf16(v));
      std::fill_n(x.begin() + stride, 128, 0.f);
      x[3 * stride + 7] = std::numeric_limits<float>::quiet_NaN();
      std::vector<bf16> halves;
      for (const float v : x) halves.push_back(to_bf16(v));
      std::vector<std::uint32_t> codes(m * k / 4);
      std::vector<float> scales(blocks * scale_stride);
      const QuantizeParams p{
          .x = dtype == DType::bf16 ? static_cast<const void*>(halves.data()) : x.data(),
          .rows = m,
          .cols = k,
          .x_stride = stride,
          .blocks = blocks,
          .scale_stride = scale_stride,
          .codes = reinterpret_cast<std::uint8_t*>(codes.data()),
          .scales = scales.data(),
          .x_bf16 = dtype == DType::bf16,
          .power_of_two = power_of_two,
          .places = nullptr,
          .copies = 1,
          .own = -1};
      emulate({(m * blocks * 32 + 127) / 128, 1, 1}, 128, quantize_rows_kernel, p);
      for (std::int64_t r = 0; r < m; ++r) {
        for (std::int64_t b = 0; b < blocks; ++b) {
          const std::int64_t first = b * 128, end = std::min<std::int64_t>(k, first + 128);
          float most = 0;
          bool nan = false;
          for (std::int64_t i = first; i < end; ++i) {
            const float v = x[static_cast<std::size_t>(r * stride + i)];
            nan |= std::isnan(v);
            most = std::max(most, std::abs(v));
          }
          const float got = scales[static_cast<std::size_t>(b * scale_stride + r)];
          if (nan) {
            EXPECT_TRUE(std::isnan(got));
            continue;
          }
          float scale = most == 0 ? 1.f : most / 448.f;
          if (power_of_two) scale = pow2_ceil(scale);
          ASSERT_EQ(got, scale) << "seed " << seed;
          for (std::int64_t i = first; i < end; ++i) {
            const float v = x[static_cast<std::size_t>(r * stride + i)];
            ASSERT_EQ(p.codes[r * k + i], to_e4m3(v / scale).bits) << "seed " << seed;
          }
        }
      }
    }
  }
}

// Rows that go to several places each, and to one in order after them.
TEST_F(QuantizeEmulated, WritesRowsToPlaces) {
  constexpr std::int64_t m = 6, k = 256, copies = 3, placed_rows = m * copies, own = 20;
  constexpr std::int64_t rows = own + m;
  const std::vector<float> x = random_f32(random, m * k);
  std::vector<std::int32_t> places(placed_rows);
  for (std::size_t i = 0; i < placed_rows; ++i) places[i] = static_cast<std::int32_t>(i);
  std::shuffle(places.begin(), places.end(), random);
  std::vector<std::uint32_t> plain(m * k / 4), placed(rows * k / 4);
  std::vector<float> plain_scales(2 * m), placed_scales(2 * rows);
  QuantizeParams p{.x = x.data(),
                   .rows = m,
                   .cols = k,
                   .x_stride = k,
                   .blocks = 2,
                   .scale_stride = m,
                   .codes = reinterpret_cast<std::uint8_t*>(plain.data()),
                   .scales = plain_scales.data(),
                   .x_bf16 = false,
                   .power_of_two = false,
                   .places = nullptr,
                   .copies = 1,
                   .own = -1};
  emulate({m * 2 * 32 / 128, 1, 1}, 128, quantize_rows_kernel, p);
  p.codes = reinterpret_cast<std::uint8_t*>(placed.data());
  p.scales = placed_scales.data();
  p.scale_stride = rows;
  p.places = places.data();
  p.copies = copies;
  p.own = own;
  emulate({m * 2 * 32 / 128, 1, 1}, 128, quantize_rows_kernel, p);
  for (std::int64_t i = 0; i < placed_rows + m; ++i) {
    const bool in_order = i >= placed_rows;
    const std::int64_t row = in_order ? i - placed_rows : i / copies;
    const std::int64_t to = in_order ? own + row : places[static_cast<std::size_t>(i)];
    EXPECT_EQ(std::memcmp(p.codes + to * k, plain.data() + row * k / 4, k), 0) << "seed " << seed;
    for (std::int64_t b = 0; b < 2; ++b) {
      EXPECT_EQ(p.scales[b * rows + to], plain_scales[static_cast<std::size_t>(b * m + row)]);
    }
  }
}

}  // namespace
}  // namespace lathe::cuda
